"""A learner with an actor that sends impossible values, beside one in good order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.roles import actor, learner
from rlctl_agents.runtime.manager_session import ManagerSession
from rlctl_agents.runtime.process import Process, open_wire
from rlctl_agents.types.control import Account, Match
from rlctl_agents.types.experience import ModelRef, Schema
from rlctl_agents.wire.experience import ExperienceSender
from tests.support.chain import private_folder
from tests.support.fakes import RUN, Manager, Pool, process_of, running, wait_until
from tests.support.workers.small import NEWEST, consumed, spec_of

SPEC = spec_of(env={"id": "tests.envs.tiny:Memory"})
STREAMS = 4


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        Layout(folder).make()
        yield folder


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(folder) as manager:
        manager.index = None
        manager.matches["actor"] = Match(1, {0: NEWEST}, (0,), 7)
        yield manager


def blocks(schema: Schema, change: Callable[[dict[str, Any]], object]) -> dict[str, np.ndarray[Any, Any]]:
    fields = {one.name: np.zeros(schema.block_shape(one, STREAMS), one.dtype) for one in schema.fields}
    fields["valid"][:] = True
    fields["log_prob"][:] = -0.7
    change(fields)
    return fields


def outside(fields: dict[str, Any]) -> None:
    fields["action"][1, 2] = 1000


def not_a_number(fields: dict[str, Any]) -> None:
    fields["obs"][1, 2] = np.nan


def above_0(fields: dict[str, Any]) -> None:
    fields["log_prob"][1, 2] = 20.0


class BadActor:
    """Has a lease, and sends one and the same block again and again."""

    def __init__(self, manager: Manager, change: Callable[[dict[str, Any]], object]) -> None:
        self.process: Process = process_of("actor", manager, SPEC, name="actor-1")
        self.wire = open_wire(self.process.arguments)
        member = ManagerSession(self.process, self.wire)
        lease = member.join()
        assert lease is not None
        assert lease.experience is not None
        member.close()
        self.schema = lease.experience.schema
        self.change = change
        self.sender = ExperienceSender(
            self.wire, lease.peers["learner/0"]["experience"], run=RUN, boot=self.process.boot, schema=self.schema,
            term=1,
        )  # fmt: skip

    def send(self) -> None:
        version = np.zeros((self.schema.unroll_length, STREAMS), np.int64)
        fields = blocks(self.schema, self.change)
        streams = range(7_000_000, 7_000_000 + STREAMS)
        self.sender.offer(
            model=ModelRef("main", 1, 0), stream=streams, row0=[0] * STREAMS, version=version, fields=dict(fields)
        )
        self.sender.poll(0.01)

    def close(self) -> None:
        self.sender.close()
        self.wire.close()


def test_an_actor_reports_figures_of_its_episodes(folder: Path, manager: Manager) -> None:
    def episodes() -> float:
        report = manager.newest("actor")
        return report.figures[0].count if report is not None and report.figures else 0.0

    with (
        Pool(folder),
        running(actor.main, process_of("actor", manager, SPEC, name="actor-0")) as acting,
        running(learner.main, process_of("learner", manager, SPEC, volume=folder)),
    ):
        wait_until(lambda: episodes() > 0 or bool(acting), "episodes")
    assert acting == []
    report = manager.newest("actor")
    assert report is not None
    _, lengths, *shares = report.figures
    assert lengths.mean > 1
    assert sum(share.mean for share in shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (outside, "action holds 1000 in 1 of 20 places; it must be from 0 to 1"),
        (not_a_number, "obs holds nan in 3 of 72 places"),
        (above_0, "log_prob holds 20 in 1 of 20 places; the log-probability of a discrete action is at most 0"),
    ],
)
def test_a_learner_goes_on_learning_and_quarantines_who_sends_values_that_cannot_be(
    folder: Path, manager: Manager, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    def account(of: BadActor) -> Account:
        report = manager.newest("learner")
        return (report.accounts if report is not None else {}).get(of.process.boot, Account(None))  # type: ignore[arg-type]

    with (
        Pool(folder),
        running(actor.main, process_of("actor", manager, SPEC, name="actor-0")) as acting,
        running(learner.main, process_of("learner", manager, SPEC, volume=folder)) as learning,
    ):
        wait_until(lambda: consumed(manager) > 0, "updates")
        bad = BadActor(manager, change)
        try:

            def refused() -> bool:
                bad.send()
                return bool(account(bad).fault or learning)

            wait_until(refused, "the quarantine")
            assert learning == []
            assert account(bad).fault == said
            before = consumed(manager)
            for _ in range(30):
                bad.send()
            wait_until(lambda: consumed(manager) >= before + 15 * 40 or bool(learning), "fifteen updates more")
        finally:
            bad.close()
    assert (acting, learning) == ([], [])
    last = account(bad)
    assert (last.consumed, last.queued) == (0, 0)
    assert last.invalid == last.received > 0
    report = manager.newest("learner")
    assert report is not None
    assert report.counters["nonfinite"] == 0
