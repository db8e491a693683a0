"""Between the receiver and the learner: what becomes of segments while the weights change."""

from __future__ import annotations

import pytest

from rlctl_agents.roles.assembler import Arrival, Outcome, allocate_columns
from rlctl_agents.roles.intake import Intake
from rlctl_agents.types.experience import Segment
from tests.roles.test_assembler import SCHEMA, T, segment
from tests.roles.world import ref


class Receiver:
    """Gives what has `arrived`, and remembers what became of it."""

    def __init__(self) -> None:
        self.arrived: list[Segment] = []
        self.settled: list[tuple[Outcome, int | None]] = []

    def poll(self, timeout_s: float) -> list[Segment]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def wake(self) -> None:
        pass

    def settle(self, segment: Segment, outcome: Outcome, rows: int | None = None) -> None:
        self.settled.append((outcome, rows))

    def resize(self, budget_rows: int, batch_rows: int, queue_rows: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def intake(receiver: Receiver) -> Intake:
    """Of a learner at version 10, whose batches are two columns."""
    return Intake(receiver, Arrival(SCHEMA, 5), [allocate_columns(SCHEMA, 2) for _ in range(2)], ref(10))


def test_a_learner_that_added_nothing_to_three_updates_learns_from_segments_of_their_weights(
    receiver: Receiver, intake: Intake
) -> None:
    for version in (11, 12, 13):
        intake.learned(ref(version))
    receiver.arrived = [segment([1, 2], version=13)]
    intake.step(0.0)
    columns = intake.take(0.0)
    assert columns is not None
    intake.give_back(columns, ref(14))
    intake.step(0.0)
    assert receiver.settled == [("consumed", 2 * T)]


def test_what_was_said_last_of_the_weights_counts(receiver: Receiver, intake: Intake) -> None:
    intake.move(ref(12), [allocate_columns(SCHEMA, 2) for _ in range(2)], 100, 100)
    intake.learned(ref(13))
    receiver.arrived = [segment([1, 2], version=13)]
    intake.step(0.0)
    assert receiver.settled == []
    assert intake.take(0.0) is not None
