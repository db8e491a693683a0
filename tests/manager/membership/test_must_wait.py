"""Learners of another spec or image wait until those that learn have left."""

from __future__ import annotations

import pytest

from rlctl_agents.manager.membership.leases import LEAVING_S
from rlctl_agents.runtime.process import STOPPING
from rlctl_agents.types.control import Origin
from tests.manager.world import ACTOR, LEARNER, Run, boot

OLD, NEW = Origin("n", "i@sha256:1", "s1"), Origin("n", "i@sha256:1", "s2")
FIRST, SECOND, THIRD, FOURTH = LEARNER, 20, 21, 22


@pytest.fixture
def two(run: Run) -> Run:
    """A run whose two learners step together."""
    run.join("actor", ACTOR)
    for index, number in enumerate((FIRST, SECOND)):
        run.join("learner", number, index, origin=OLD)
    return run


@pytest.mark.parametrize("origin", [NEW, Origin("n", "i@sha256:2", "s1")], ids=["spec", "image"])
def test_one_of_another_kind_waits_until_the_last_has_left(two: Run, origin: Origin) -> None:
    waits = two.join("learner", THIRD, 1, origin=origin)
    assert (waits.index, waits.wait) == (-1, "learner/0 of another spec or image must leave first")
    assert not two.manager.members.leases.known(boot(THIRD))
    for index, number in enumerate((FIRST, SECOND)):
        two.report("learner", number, index=index, gauges={STOPPING: 1.0})
    assert two.join("learner", THIRD, 1, origin=origin).wait  # the other may be saving its last generation
    two.after(LEAVING_S, ("actor", ACTOR))
    assert two.join("learner", THIRD, 1, origin=origin).index == 1
    assert two.join("learner", FOURTH, 0, origin=origin).index == 0


def test_one_that_takes_the_place_of_the_only_other_waits_for_none(run: Run) -> None:
    run.join("actor", ACTOR)
    run.join("learner", FIRST, 0, origin=OLD)
    assert run.join("learner", SECOND, 0, origin=NEW).index == 0


def test_one_that_lost_its_lease_meanwhile_waits_too(two: Run) -> None:
    two.after(100.0, ("actor", ACTOR))
    assert two.join("learner", THIRD, 1, origin=NEW).index == 1
    assert two.join("learner", FIRST, 0, origin=OLD).wait.startswith("learner/1 of another spec")


def test_after_a_restart_of_the_manager_those_of_old_keep_their_lease(two: Run) -> None:
    two.start()
    assert two.join("learner", FIRST, 0, origin=OLD).index == 0
    assert two.join("learner", THIRD, 1, origin=NEW).wait
    assert two.join("learner", SECOND, 1, origin=OLD).index == 1


def test_the_wait_is_an_event_once_a_minute(two: Run) -> None:
    for _ in range(3):
        two.join("learner", THIRD, 1, origin=NEW)
    told = [one["text"] for one in two.manager.events.since(0)[0] if one["kind"] == "waits"]
    assert told == ["a learner waits: learner/0 of another spec or image must leave first"]
