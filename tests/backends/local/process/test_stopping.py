"""The order in which processes end."""

from __future__ import annotations

from rlctl.backends.local.process.stopping import waves


def test_whoever_asks_ends_before_whoever_answers() -> None:
    names = ["manager-0", "modelpool-0", "learner-0", "actor-0", "actor-1", "evaluator-0"]
    assert waves(names) == [["learner-0", "actor-0", "actor-1", "evaluator-0"], ["manager-0", "modelpool-0"]]


def test_nobody_is_waited_for_who_is_not_to_end() -> None:
    assert waves(["manager-0"]) == [["manager-0"]]
    assert waves([]) == []
