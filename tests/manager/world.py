"""Helpers of the manager's tests: a clock that is told the time, and a manager without sockets."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.checkpoint.policy import describe, pack_policy
from rlctl_agents.manager.coordinator import Coordinator
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.addresses import Addresses
from rlctl_agents.types.control import (
    Commit,
    EvalResult,
    Experience,
    Generation,
    Hello,
    Lease,
    Match,
    Orders,
    Reply,
    Report,
)
from rlctl_agents.types.experience import Field, ModelRef, Schema
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from rlctl_agents.weights import disk_store
from rlctl_agents.weights.client import Model

UID = "ab" * 16
PATTERN = "ipc:///tmp/s/{role}-{index}.{channel}"
POOL, LEARNER, ACTOR, JUDGE = 1, 2, 3, 4
"""Numbers of the boots of `everybody`."""


class Time:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def boot(number: int) -> str:
    return f"{number:016x}"


def experience(steps: int = 20, seats: int = 1, width: int = 4) -> Experience:
    fields = (Field("obs", "float32", (width,), "row+1"), Field("reward", "float32", (), "row"))
    return Experience(Spaces(Box((width,), "float32"), Discrete(2), seats), Schema(steps, fields))


def ref(version: int, lineage: int = 1) -> ModelRef:
    return ModelRef("main", lineage, version)


def spec(**sections: Any) -> Spec:
    return Spec.model_validate({"run": "r", "env": {"id": "-"}, **sections})


class Run:
    """A run on disk; `manager` is its present manager."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.time = Time()
        self.layout = Layout(folder)
        self.layout.make()
        self.settings = spec(**sections)
        self.managers = 0
        self.manager = self.start()

    def start(self, **more: Any) -> Coordinator:
        """Another life of the manager."""
        self.managers += 1
        self.manager = Coordinator(
            run="r", uid=UID, boot=boot(900 + self.managers), settings=self.settings, layout=self.layout,
            addresses=Addresses(PATTERN, self.time), clock=Clock(self.time, lambda: 1.7e9 + self.time.now),
            **more,
        )  # fmt: skip
        return self.manager

    def join(self, role: str, number: int, prefer: int | None = 0, **values: Any) -> Lease:
        """A process says hello."""
        if role in ("actor", "evaluator"):
            values.setdefault("experience", experience())
        return self.manager.hello(Hello(role, boot(number), prefer, UID, **values))

    def report(self, role: str, number: int, **values: Any) -> Orders:
        """A process reports."""
        values.setdefault("term", self.manager.life.term)
        return self.manager.report(Report(role=role, boot=boot(number), **values))

    def learn(self, number: int, steps: int, version: int, lineage: int = 1, **values: Any) -> Orders:
        """The learner reports, with batches of 100 steps."""
        counters = {"consumed_steps": float(steps), "updates": steps / 100, **values.pop("counters", {})}
        return self.report("learner", number, counters=counters, model=ref(version, lineage), **values)

    def after(self, seconds: float, *alive: tuple[str, int]) -> None:
        """Time passes; these processes report each second."""
        end = self.time.now + seconds
        while self.time.now < end:
            self.time.now = min(self.time.now + 1.0, end)
            for role, number in alive:
                seen = self.manager.members.seen.get(boot(number))
                self.manager.report(Report(role, boot(number), self.manager.life.term) if seen is None else seen)
            self.manager.turn()


def everybody(run: Run) -> None:
    """One of each role joins."""
    run.join("modelpool", POOL)
    run.join("actor", ACTOR)
    run.join("learner", LEARNER)
    run.join("evaluator", JUDGE)


def part(run: Run, number: int, *, made: int = 0) -> str:
    """The learner's part of a generation lies on the volume; its file."""
    file = f"main-{number:06d}-learner-{made:012x}.safetensors"
    (run.layout.checkpoints / file).write_bytes(b"x")
    return file


def commit(
    run: Run,
    number: int,
    *,
    steps: int = 640,
    term: int | None = None,
    sender: int = LEARNER,
    made: int = 0,
    version: int | None = None,
    lineage: int = 1,
) -> Reply:
    """A learner writes a generation and says so."""
    file = part(run, number, made=made)
    model = ref(number * 10 if version is None else version, lineage)
    generation = Generation(
        number, "main", term or run.manager.life.term, model, steps, 1.7e9, {"learner": file}, {"learner": "ab"}
    )
    return run.manager.commit(Commit(generation, boot(sender)))


def order_evaluation(run: Run, version: int, *, judge: int = JUDGE) -> Match | None:
    """Match that the evaluator is told to play when the modelpool holds that version."""
    run.report("modelpool", POOL, model=ref(version))
    return run.report("evaluator", judge).match


def play(run: Run, match: Match | None, *returns: float) -> Reply:
    """The evaluator has played a match."""
    assert match is not None
    assert match.quota is not None
    mean = sum(returns) / len(returns)
    kept = keep(run.layout.models, match.seats[0]) if mean > match.quota.keep_above else ""
    return run.manager.result(
        EvalResult(match.id, match.seats[0], match.quota.mode, list(returns), [1] * len(returns), 1.0, kept=kept)
    )


def measure(run: Run, *returns: float, judge: int = JUDGE) -> None:
    """The evaluator plays all that it is told to, with these returns."""
    while (match := run.report("evaluator", judge).match) is not None:
        assert play(run, match, *returns).ok
    run.manager.turn()


def keep(folder: Path, of: ModelRef) -> str:
    """The modelpool keeps a model that an evaluator brings; the file that describes it."""
    data = f"weights of {of}".encode()
    return disk_store.keep(folder, Model(of, hashlib.sha256(data).hexdigest(), data, described(of)))


def described(of: ModelRef) -> bytes:
    """Its `policy.json`."""
    made = experience()
    return pack_policy(describe(of, 100 * of.version, made.spaces, made.schema, {}, {}))


def evaluate(run: Run, version: int, *returns: float) -> Reply:
    """The evaluator measures what the modelpool holds."""
    return play(run, order_evaluation(run, version), *returns)


def kinds(run: Run) -> list[str]:
    """Of all events of the present manager."""
    return [event["kind"] for event in run.manager.events.since(0)[0]]


def status(run: Run) -> dict[str, Any]:
    return StatusBuilder(run.manager, cores=8).build()


class Volume:
    """Takes nothing that must be durable while `error` is set. Only the operating system is replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        really = os.fsync

        def fsync(handle: int) -> None:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            really(handle)

        monkeypatch.setattr(os, "fsync", fsync)


class Waiting(threading.Event):
    """A flag of which each wait lets time pass, and other things happen."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time, self.waits = time, list[float]()
        self.then: Callable[[], None] | None = None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.time.now += timeout
        self.waits.append(timeout)
        if self.then is not None:
            self.then()
        return self.is_set()
