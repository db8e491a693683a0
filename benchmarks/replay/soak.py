"""A replay in shards under a hundred actors for minutes, while one shard after the other is killed.

    python -m benchmarks.replay.soak ACTORS SHARDS SECONDS KILL_EVERY_S WARM_S

It has to show: the ledger balances, samples per insert stay at the ratio, memory is flat, learning does not stop.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, NamedTuple

from benchmarks.scaling.fleet import Fleet, fleet, until_all_act
from benchmarks.scaling.settings import run_spec
from benchmarks.scaling.soak import killed, quantiles
from benchmarks.shared import processes
from benchmarks.shared.product import Spec

LOOK_S = 0.5
SETTLE_S = 15.0
"""Wait until shards and learner have reported the last rows."""
RATIO = 8.0
ROWS_PER_ACTOR = 400
"""Rows of the replay's capacity per actor: full after half a minute of steps of 50 ms."""
CORE = ("manager", "modelpool", "learner", "replay")


class Soak(NamedTuple):
    """Size, length and kills of a run."""

    actors: int
    shards: int
    seconds: float
    kill_every_s: float
    warm_s: float
    """Before the first kill, with the replay full: a process that listens grows until each connection has carried 450
    messages each way (docs/operations.md, Sizes): the manager's one each second, the modelpool's two every three."""


class Killed(NamedTuple):
    """A shard that was killed."""

    pid: int
    index: int
    at_s: float


def spec_of(form: Soak) -> Spec:
    """Ape-X on vectors of 16 numbers; a step takes 50 ms."""
    spec = run_spec(0, 50.0, 0.1)
    spec["roles"]["replay"] = {"replicas": form.shards, "memory": "512Mi"}
    capacity = form.actors * ROWS_PER_ACTOR
    return spec | {
        "algorithm": {"name": "apex_dqn"},
        "replay": {"capacity": capacity, "samples_per_insert": RATIO, "learning_starts": starts(form)},
    }


def starts(form: Soak) -> int:
    """`replay.learning_starts`."""
    return min(1000, form.actors * ROWS_PER_ACTOR // 4)


def soak(form: Soak) -> dict[str, Any]:
    """Figures of one such run.

    Raises:
        RuntimeError, TimeoutError: it does not come up.
    """
    with fleet(form.actors, spec_of(form)) as crew:
        until_all_act(crew, form.actors, 120 + 2 * form.actors)
        filled(crew)
        time.sleep(form.warm_s)
        watch = Watch(crew, form)
        until = time.monotonic() + form.seconds
        while (now := time.monotonic()) < until:
            watch.look(now, kill=now < until - form.kill_every_s / 2)
            time.sleep(LOOK_S)
        found = watch.figures()
        crew.halt()
        time.sleep(SETTLE_S)
        told = crew.run.stored()
        ledger = told["policies"]["main"]["ledger"]
        error = limiter_error(told["replay"], form)
        names = ("produced", "consumed", "fenced", "stale", "lost", "in_flight", "balanced")
        return found | {"limiter_error_at_end": error, **{name: ledger[name] for name in names}}


def filled(crew: Fleet) -> None:
    """Wait until the replay is full: memory grows until then.

    Raises:
        TimeoutError: it does not fill.
    """
    deadline = time.monotonic() + 180
    while True:
        told = crew.run.stored().get("replay") or {}
        if told.get("capacity") and told["rows"] >= 0.9 * told["capacity"]:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the replay holds {told.get('rows', 0)} rows after 180 s")
        time.sleep(LOOK_S)


def limiter_error(replay: dict[str, Any], form: Soak) -> float:
    """|sampled / inserted - ratio| / ratio after `learning_starts`, by the counts of the shards."""
    paid = replay.get("inserted", 0) - starts(form)
    return abs(replay["sampled"] / paid / RATIO - 1) if paid > 0 else 0.0


def consumed(told: dict[str, Any]) -> float:
    """Agent steps learned from, of a status."""
    return float(told.get("totals", {}).get("consumed_steps", 0))


class Watch:
    """Kills shards in turn, and measures the run's recovery."""

    def __init__(self, crew: Fleet, form: Soak) -> None:
        self._crew, self._form = crew, form
        now = time.monotonic()
        self._began, self._next_kill = now, now + form.kill_every_s
        self._killed: Killed | None = None
        self._moved, self._steps = now, consumed(crew.run.stored())
        self._first_steps = self._steps
        self._pause_s = self._error = 0.0
        self._recovery_s: list[float] = []
        self._memory: list[dict[str, float]] = []
        self._kills = 0

    def look(self, now: float, *, kill: bool) -> None:
        """Do what is due: kill, or look at the run."""
        told = self._crew.run.stored()
        replay = told.get("replay") or {}
        self._error = max(self._error, limiter_error(replay, self._form))
        if (steps := consumed(told)) > self._steps:
            self._moved, self._steps = now, steps
        self._pause_s = max(self._pause_s, now - self._moved)
        self._see_recovered(now, replay)
        if kill and now >= self._next_kill and self._killed is None:
            self._next_kill = now + self._form.kill_every_s
            self._memory.append(self._used())
            self._kill(now)

    def figures(self) -> dict[str, Any]:
        """Figures so far."""
        first, last = self._memory[0], self._used()
        return {
            "kills": self._kills,
            "not_recovered": int(self._killed is not None),
            **quantiles("recovery", self._recovery_s),
            "learned_from_per_s": (self._steps - self._first_steps) / (time.monotonic() - self._began),
            "longest_pause_s": self._pause_s,
            "limiter_error_most": self._error,
            **{f"{role}_mib_first": round(first[role], 1) for role in CORE},
            **{f"{role}_mib_last": round(last[role], 1) for role in CORE},
        }

    def _used(self) -> dict[str, float]:
        return {role: processes.memory(self._crew.run.pids(role)).pss_mib for role in CORE}

    def _shard(self, index: int) -> int | None:
        pids = self._crew.run.pids("replay")
        return next((pid for pid in pids if f"--name replay-{index} " in processes.command_line(pid)), None)

    def _kill(self, now: float) -> None:
        index = self._kills % self._form.shards
        pid = self._shard(index)
        if pid is not None and killed(pid):
            self._kills += 1
            self._killed = Killed(pid, index, now)

    def _see_recovered(self, now: float, replay: dict[str, Any]) -> None:
        """A new process of that name, while the status has all shards answer, which it says a second late."""
        if self._killed is None or now - self._killed.at_s < 2 * LOOK_S:
            return
        pid = self._shard(self._killed.index)
        back = pid is not None and pid != self._killed.pid
        if back and replay.get("shards", {}).get("answer") == self._form.shards:
            self._recovery_s.append(now - self._killed.at_s)
            self._killed = None


if __name__ == "__main__":
    actors, shards, *times_s = sys.argv[1:]
    print(json.dumps(soak(Soak(int(actors), int(shards), *map(float, times_s))), indent=1))
