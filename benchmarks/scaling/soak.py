"""A hundred actors and more, for minutes, while one of them is killed at random every few seconds.

Most are light. Their parent, scaling/light.py, forks a killed one anew from a warm process. A few are the product's
own, with torch: its supervisor sees that they died and starts them again. The two take turns in being killed, and their
recovery is told apart.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.fleet import Fleet, fleet, until_all_act
from benchmarks.scaling.settings import SEGMENT_STEPS, run_spec
from benchmarks.scaling.shares import seen
from benchmarks.shared import processes, product
from benchmarks.shared.stats import jain

LOOK_S = 0.05
SETTLE_S = 20.0
"""Wait until the manager has closed the books of the last killed actor."""
QUIET_S = 30.0
"""Time before the end without a kill, so that the last killed actor can recover."""


class Soak(NamedTuple):
    """Size, length and kills of a run."""

    actors: int  # light ones
    real: int  # the product's own, beside them
    seconds: float
    kill_every_s: float
    minute_s: float  # over so long shares are compared
    latency_ms: float = 50.0
    cpu_ms: float = 0.1


class Killed(NamedTuple):
    """One kill of an actor."""

    actor: int
    pid: int
    at_s: float


def soak(form: Soak) -> dict[str, Any]:
    """Figures of one such run.

    Raises:
        RuntimeError, TimeoutError: it does not come up.
    """
    with fleet(form.actors, run_spec(form.real, form.latency_ms, form.cpu_ms), real=form.real) as crew:
        until_all_act(crew, form.actors, 120 + 2 * form.actors + 20 * form.real)
        first = seen(crew.run, [crew.parent])
        watch = Watch(crew, random.Random(0), form.kill_every_s, form.minute_s)
        until = time.monotonic() + form.seconds
        quiet_s = min(QUIET_S, form.seconds / 4)
        while (now := time.monotonic()) < until:
            watch.look(now, kill=now < until - quiet_s)
            time.sleep(LOOK_S)
        found = product.rates(first.mark, seen(crew.run, [crew.parent]).mark) | watch.figures()
        used = processes.memory(crew.pids())
        alive = len(crew.pids())
        settle_s = min(SETTLE_S, form.seconds)
        time.sleep(settle_s)
        ledger = crew.run.stored()["policies"]["main"]["ledger"]
        return found | {
            "ids_alive": alive,
            "pss_mib": used.pss_mib,
            "threads": used.threads,
            "sockets": used.sockets,
            **{name: ledger[name] for name in ("produced", "consumed", "stale", "lost", "in_flight", "balanced")},
            "lost_segments_per_kill": ledger["lost"] / SEGMENT_STEPS / max(1, watch.kills),
            "unwritten_rows": unwritten(crew, watch.rows_of_dead, settle_s / 2),
        }


def unwritten(crew: Fleet, rows_of_dead: int, settle_s: float) -> int:
    """Steps that were made and are in no segment that the ledger knows: by the actors' own counts.

    Args:
        rows_of_dead: of those of the product's own actors that were killed.
        settle_s: so long the learner hears of what was sent, and the manager of it.
    """
    real = sum(crew.rows_of_real(index) for index in range(crew.real))
    crew.halt()
    stepped = int(np.asarray(crew.steps).sum()) + real + rows_of_dead
    time.sleep(settle_s)
    produced = crew.run.stored()["policies"]["main"]["ledger"]["produced"]
    crew.go_on()
    return stepped - int(produced)


class Watch:
    """Kills actors, and measures when each comes back."""

    def __init__(self, crew: Fleet, chance: random.Random, kill_every_s: float, minute_s: float) -> None:
        self._crew, self._chance = crew, chance
        self._kill_every_s, self._minute_s = kill_every_s, minute_s
        now = time.monotonic()
        self._next_kill, self._minute = now + kill_every_s, now + minute_s
        self._steps = np.array(crew.steps)
        self._waiting: list[Killed] = []
        self._waiting_real: list[Killed] = []
        self._begun: dict[int, int] = {}  # index -> steps when its new process was first seen
        self._recovery_s: list[float] = []
        self._recovery_real_s: list[float] = []
        self._fairness: list[tuple[float, float]] = []
        self._fewest = len(crew.steps)
        self.kills = self.kills_of_real = 0
        self.rows_of_dead = 0
        """Rows that the product's own actors had written when they were killed."""

    def look(self, now: float, *, kill: bool = True) -> None:
        """Do what is due: kill, or look at the actors."""
        self._see_recovered(now)
        if kill and now >= self._next_kill:
            self._next_kill = now + self._kill_every_s
            self._kill(now)
        if now >= self._minute:
            self._minute = now + self._minute_s
            steps = np.array(self._crew.steps)
            self._fairness.append(fairness(steps - self._steps))
            self._steps = steps
            self._fewest = min(self._fewest, len(self._crew.pids()))

    def figures(self) -> dict[str, Any]:
        """So far; kills are those of all."""
        return {
            "kills": self.kills,
            "kills_of_real": self.kills_of_real,
            "not_recovered": len(self._waiting) + len(self._waiting_real),
            **quantiles("recovery", self._recovery_s),
            **quantiles("recovery_real", self._recovery_real_s),
            "jain_least": min((one for one, _ in self._fairness), default=float("nan")),
            "share_least": min((one for _, one in self._fairness), default=float("nan")),
            "fewest_alive": self._fewest,
        }

    def _kill(self, now: float) -> None:
        if self.kills % 2 and self._kill_real(now):
            return
        index = self._chance.randrange(len(self._crew.steps))
        if any(one.actor == index for one in self._waiting):
            return
        pid = int(self._crew.pid_of[index])
        if killed(pid):
            self.kills += 1
            self._waiting.append(Killed(index, pid, now))

    def _kill_real(self, now: float) -> bool:
        """The next in turn; False when it is not there, or has not recovered from the last time."""
        if not self._crew.real:
            return False
        index = self.kills_of_real % self._crew.real
        pid = self._crew.pid_of_real(index)
        if pid is None or any(one.actor == index for one in self._waiting_real):
            return False
        rows = self._crew.rows_of_real(index)
        if not killed(pid):
            return False
        self.rows_of_dead += rows
        self.kills += 1
        self.kills_of_real += 1
        self._waiting_real.append(Killed(index, pid, now))
        return True

    def _see_recovered(self, now: float) -> None:
        for one in list(self._waiting):
            if int(self._crew.pid_of[one.actor]) == one.pid:
                continue
            steps = int(self._crew.steps[one.actor])
            if steps > self._begun.setdefault(one.actor, steps):
                self._recovery_s.append(now - one.at_s)
                self._waiting.remove(one)
                del self._begun[one.actor]
        for one in list(self._waiting_real):
            if self._crew.rows_of_real(one.actor) > SEGMENT_STEPS:  # a new process answers: a dead one does not
                self._recovery_real_s.append(now - one.at_s)
                self._waiting_real.remove(one)


def killed(pid: int) -> bool:
    """Kill it; False when it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def quantiles(name: str, values: list[float]) -> dict[str, float]:
    """Median and 95 % of some seconds; not numbers when there are none."""
    found = np.asarray(values or [np.nan])
    return {f"{name}_p50_s": float(np.median(found)), f"{name}_p95_s": float(np.quantile(found, 0.95))}


def fairness(steps: NDArray[np.int64]) -> tuple[float, float]:
    """Jain's index of a minute, and the least share as a multiple of the median."""
    median = float(np.median(steps))
    return jain(steps.astype(np.float64)), float(steps.min()) / median if median else 0.0
