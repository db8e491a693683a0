"""Between the receiver and the learner: what becomes of segments while the weights change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pydantic import TypeAdapter

from rlctl.spec.algorithms import AnyAlgorithm
from rlctl_agents.experience.batching import ArrivalOrder, Outcome
from rlctl_agents.experience.on_policy import OnPolicySource, limits
from rlctl_agents.experience.staging import Staging
from rlctl_agents.types.experience import SegmentBlock
from rlctl_agents.wire.experience.credit import Credits, Peer
from tests.experience.test_batching import SCHEMA, T, segment
from tests.manager.world import ref


class Receiver:
    """Gives what has `arrived`, and remembers what became of it."""

    def __init__(self) -> None:
        self.arrived: list[SegmentBlock] = []
        self.settled: list[tuple[Outcome, int | None]] = []

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def wake(self) -> None:
        pass

    def settle(self, segment: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        self.settled.append((outcome, rows))

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


class Source(OnPolicySource):
    """Of a learner at version 10, with limits of its receiver's."""

    def __init__(self, receiver: Receiver, streams: int, budget: Callable[[int], int] = lambda rows: 100) -> None:
        self.version = 10
        super().__init__(
            receiver, ArrivalOrder(SCHEMA, 5), Staging(torch.device("cpu")), SCHEMA,
            streams=streams, weights=lambda: ref(self.version), limits=lambda rows: (budget(rows), 3 * rows),
        )  # fmt: skip


@pytest.fixture
def intake(receiver: Receiver) -> Source:
    """A source with batches of two columns."""
    return Source(receiver, 2)


def test_a_learner_that_added_nothing_to_three_updates_learns_from_segments_of_their_weights(
    receiver: Receiver, intake: Source
) -> None:
    for version in (11, 12, 13):
        intake.version = version
        intake.passed_by()
    receiver.arrived = [segment([1, 2], version=13)]
    intake.step(0.0)
    columns = intake.take(0.0)
    assert columns is not None
    intake.version = 14
    intake.give_back(columns)
    intake.step(0.0)
    assert receiver.settled == [("consumed", 2 * T)]


def test_a_batch_half_filled_before_others_stepped_holds_no_rows_that_are_too_old_now(
    receiver: Receiver, intake: Source
) -> None:
    receiver.arrived = [segment([1], version=10)]
    intake.step(0.0)
    intake.version = 16
    intake.passed_by()
    receiver.arrived = [segment([2], version=16)]
    intake.step(0.0)
    assert receiver.settled == [("stale", T)]
    assert intake.take(0.0) is None
    receiver.arrived = [segment([3], version=16)]
    intake.step(0.0)
    batch = intake.take(0.0)
    assert batch is not None
    assert batch.version.min() == 16


def test_what_was_said_last_of_the_weights_counts(receiver: Receiver, intake: Source) -> None:
    intake.version = 12
    intake.resize(2)
    intake.version = 13
    intake.passed_by()
    receiver.arrived = [segment([1, 2], version=13)]
    intake.step(0.0)
    assert receiver.settled == []
    assert intake.take(0.0) is not None


class Budgeted(Receiver):
    """One sender, of blocks of so many columns, that sends whatever the receiver's credit allows."""

    def __init__(self, columns: int, block: int, max_lag_versions: int) -> None:
        super().__init__()
        self.lag, self.block, self.peer = max_lag_versions, block, Peer("a")
        self.credits = Credits(self.budget(columns), columns * T, 3 * columns * T)

    def budget(self, columns: int) -> int:
        return max(2, self.lag) * columns * T

    def settle(self, segment: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        assert rows is not None
        self.credits.settle(self.peer, rows)

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        self.credits.resize(budget_rows, batch_size, queue_rows)

    def send(self) -> bool:
        """One block, if it may."""
        peer, rows = self.peer, self.block * T
        self.credits.hear(peer, sent=peer.sent, want=rows, grant=peer.number, block_rows=rows)
        self.credits.deal()
        if peer.unused < rows:
            return False
        self.credits.hear(peer, sent=peer.sent + rows, want=rows, grant=peer.number)
        self.credits.queue(peer, rows)
        self.arrived.append(segment([1] * self.block))
        return True

    @property
    def limits(self) -> tuple[int, int, int]:
        return self.credits.budget_rows, self.credits.batch_size, self.credits.queue_rows


@pytest.mark.parametrize(("max_lag_versions", "block"), [(50, 1), (2, 4)])
@pytest.mark.parametrize("filled", [4, 16, 32])
def test_a_batch_begun_before_the_group_grew_is_filled_up_and_then_all_is_of_the_new_size(
    max_lag_versions: int, block: int, filled: int
) -> None:
    receiver = Budgeted(64, block, max_lag_versions)
    intake = Source(receiver, 64, lambda rows: receiver.budget(rows // T))
    for _ in range(filled // block):
        assert receiver.send()
    intake.step(0.0)
    intake.resize(16)
    sizes = []
    for _ in range(300):
        intake.step(0.0)
        if (columns := intake.take(0.0)) is not None:
            sizes.append(columns.version.shape[1])
            intake.give_back(columns)
        receiver.send()
    assert sizes[:3] == [64, 16, 16]
    assert receiver.limits == (receiver.budget(16), 16 * T, 3 * 16 * T)


@pytest.mark.parametrize(("max_lag_versions", "batches"), [(0, 1), (1, 2), (8, 8)])
@pytest.mark.parametrize("name", ["impala", "package.module:Mine"])
def test_nothing_is_gathered_beside_a_batch_that_it_would_be_too_old_for(
    name: str, max_lag_versions: int, batches: int
) -> None:
    section = {"name": name, "unroll_length": 4, "batch_size": 24, "max_lag_versions": max_lag_versions}
    config = TypeAdapter(AnyAlgorithm).validate_python(section)
    assert limits(config, 12)[0] == 12 * batches
