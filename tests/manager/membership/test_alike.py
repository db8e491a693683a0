"""Learners of another spec or image wait until those that learn have left."""

from __future__ import annotations

import pytest

from rlctl_agents.manager.membership.leases import LEAVING_S
from rlctl_agents.manager.status.problems import ROLLS_S
from rlctl_agents.runtime.gauges import STOPPING
from rlctl_agents.types.control import Hello, Origin
from tests.manager.world import ACTOR, LEARNER, Run, boot, status

OLD, NEW = Origin("n", "i@sha256:1", "s1"), Origin("n", "i@sha256:1", "s2")
FIRST, SECOND, THIRD, FOURTH = LEARNER, 20, 21, 22


@pytest.fixture
def two(run: Run) -> Run:
    """A run whose two learners step together."""
    run.join("actor", ACTOR)
    for index, number in enumerate((FIRST, SECOND)):
        run.join("learner", number, index, origin=OLD)
    return run


def stands_still(run: Run) -> bool:
    return any("their update stands still" in one["text"] for one in status(run)["problems"])


@pytest.mark.parametrize("origin", [NEW, Origin("n", "i@sha256:2", "s1")], ids=["spec", "image"])
def test_one_of_another_kind_waits_until_the_last_has_left(two: Run, origin: Origin) -> None:
    waits = two.join("learner", THIRD, 1, origin=origin)
    assert (waits.index, waits.wait) == (-1, "learner/0 of another spec or image must leave first")
    assert not two.manager.members.leases.known(boot(THIRD))
    for number in (FIRST, SECOND):
        two.report("learner", number, gauges={STOPPING: 1.0})
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


def test_after_a_restart_of_the_manager_those_of_old_are_waited_for_before_they_have_spoken(two: Run) -> None:
    two.manager.store()
    two.start()
    assert two.join("learner", THIRD, 1, origin=NEW).wait
    assert two.join("learner", FIRST, 0, origin=OLD).index == 0
    assert two.join("learner", THIRD, 1, origin=NEW).wait
    assert two.join("learner", SECOND, 1, origin=OLD).index == 1


def test_one_of_another_run_is_refused_and_does_not_wait(two: Run) -> None:
    with pytest.raises(ValueError, match="this is the manager of run r"):
        two.manager.hello(Hello("learner", boot(THIRD), 1, "cd" * 16, origin=NEW))


def test_the_wait_is_one_event_and_a_problem_when_it_lasts(two: Run) -> None:
    alive = (("actor", ACTOR), ("learner", FIRST), ("learner", SECOND))
    for _ in range(int(ROLLS_S) - 1):
        two.join("learner", THIRD, 2, origin=NEW)
        two.after(1.0, *alive)
    told = [one["text"] for one in two.manager.events.since(0)[0] if one["kind"] == "waits"]
    assert told == ["a learner waits: learner/0, learner/1 of another spec or image must leave first"]
    assert two.manager.admission.waited_s == ROLLS_S - 1
    assert not stands_still(two)
    two.join("learner", THIRD, 2, origin=NEW)
    two.after(1.0, *alive)
    assert stands_still(two)
