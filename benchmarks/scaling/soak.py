"""A hundred actors and more, for minutes, while one of them is killed at random every few seconds."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.fleet import Fleet, everybody, fleet
from benchmarks.scaling.settings import SEGMENT_STEPS
from benchmarks.shared import processes, product
from benchmarks.shared.stats import jain

LOOK_S = 0.05
SETTLE_S = 20.0
"""Until the manager has closed the books of the last who was killed."""


class Killed(NamedTuple):
    """One kill and what came of it."""

    actor: int
    pid: int
    at_s: float


def soak(
    count: int, *, seconds: float, kill_every_s: float, minute_s: float = 60.0, latency_ms: float = 50.0
) -> dict[str, Any]:
    """Figures of one such run.

    Raises:
        RuntimeError, TimeoutError: it does not come up.
    """
    with fleet(count, latency_ms, 0.1) as crew:
        everybody(crew, count, 120 + 2 * count)
        first = crew.mark()
        watch = Watch(crew, random.Random(0), kill_every_s, minute_s)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            watch.look(time.monotonic())
            time.sleep(LOOK_S)
        found = product.rates(first, crew.mark()) | watch.figures()
        used = processes.memory(crew.pids())
        time.sleep(min(SETTLE_S, seconds))
        status = crew.run.stored()
        ledger = status["policies"]["main"]["ledger"]
        lost_segments = ledger["lost"] / SEGMENT_STEPS
        return found | {
            "ids_alive": len(crew.pids()),
            "pss_mib": used.pss_mib,
            "threads": used.threads,
            "sockets": used.sockets,
            "produced": ledger["produced"],
            "consumed": ledger["consumed"],
            "lost": ledger["lost"],
            "stale": ledger["stale"],
            "balanced": ledger["balanced"],
            "lost_segments_per_kill": lost_segments / max(1, found["kills"]),
        }


class Watch:
    """Kills, and sees who comes back when."""

    def __init__(self, crew: Fleet, chance: random.Random, kill_every_s: float, minute_s: float) -> None:
        self._crew, self._chance = crew, chance
        self._kill_every_s, self._minute_s = kill_every_s, minute_s
        now = time.monotonic()
        self._next_kill, self._minute = now + kill_every_s, now + minute_s
        self._steps = np.array(crew.steps)
        self._waiting: list[Killed] = []
        self._begun: dict[int, int] = {}  # index -> steps when its new process was first seen
        self._recovery_s: list[float] = []
        self._fairness: list[tuple[float, float]] = []
        self._fewest = len(crew.steps)
        self.kills = 0

    def look(self, now: float) -> None:
        """Whatever is due."""
        self._see_recovered(now)
        if now >= self._next_kill:
            self._next_kill = now + self._kill_every_s
            self._kill(now)
        if now >= self._minute:
            self._minute = now + self._minute_s
            steps = np.array(self._crew.steps)
            self._fairness.append(fairness(steps - self._steps))
            self._steps = steps
            self._fewest = min(self._fewest, len(self._crew.pids()))

    def figures(self) -> dict[str, Any]:
        """So far."""
        recovered = np.asarray(self._recovery_s or [np.nan])
        return {
            "kills": self.kills,
            "not_recovered": len(self._waiting),
            "recovery_p50_s": float(np.median(recovered)),
            "recovery_p95_s": float(np.quantile(recovered, 0.95)),
            "jain_least": min((one for one, _ in self._fairness), default=float("nan")),
            "share_least": min((one for _, one in self._fairness), default=float("nan")),
            "fewest_alive": self._fewest,
        }

    def _kill(self, now: float) -> None:
        index = self._chance.randrange(len(self._crew.steps))
        if any(one.actor == index for one in self._waiting):
            return
        pid = int(self._crew.pid_of[index])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.kills += 1
        self._waiting.append(Killed(index, pid, now))

    def _see_recovered(self, now: float) -> None:
        for one in list(self._waiting):
            if int(self._crew.pid_of[one.actor]) == one.pid:
                continue
            steps = int(self._crew.steps[one.actor])
            if steps > self._begun.setdefault(one.actor, steps):
                self._recovery_s.append(now - one.at_s)
                self._waiting.remove(one)
                del self._begun[one.actor]


def fairness(steps: NDArray[np.int64]) -> tuple[float, float]:
    """Jain's index of a minute, and the least share as a multiple of the median."""
    median = float(np.median(steps))
    return jain(steps.astype(np.float64)), float(steps.min()) / median if median else 0.0
