"""Numbers that `scale` has set, as a manager hears of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.kubernetes.fakes.lab import Lab


@pytest.fixture
def told(lab: Lab) -> list[Any]:
    """Of a run with two learners that is up: what its manager is told from now on."""
    lab.up(roles={"learner": {"replicas": 2}, "actor": {"replicas": 4}})
    lab.settle()
    heard: list[Any] = []

    def manager(method: str, path: str, body: Any) -> tuple[int, Any]:
        heard.append((method, path, body))
        return 200, {}

    lab.api.manager = manager
    return heard


def replicas(told: list[Any]) -> dict[str, int]:
    method, path, body = told[-1]
    assert (method, path) == ("POST", "/reload")
    return {role: fields["replicas"] for role, fields in body["live"]["roles"].items() if "replicas" in fields}


@pytest.mark.parametrize(("role", "count", "heard"), [("learner", 3, 3), ("learner", 0, 1), ("evaluator", 0, 0)])
def test_the_manager_hears_of_another_number_of_those_whom_it_waits_for(
    lab: Lab, told: list[Any], role: str, count: int, heard: int
) -> None:
    lab.scale(**{role: count})
    assert replicas(told) == {"learner": 2, "evaluator": 1} | {role: heard}
    lab.scale(**{role: count})
    assert len(told) == 2, "a manager that was started again meanwhile is told again"


def test_the_manager_hears_of_another_number_of_shards(lab: Lab) -> None:
    lab.up(algorithm={"name": "dqn"}, roles={"replay": {"replicas": 2}, "actor": {"replicas": 4}})
    lab.settle()
    heard: list[Any] = []

    def manager(method: str, path: str, body: Any) -> tuple[int, Any]:
        heard.append((method, path, body))
        return 200, {}

    lab.api.manager = manager
    for count in (3, 1):
        lab.scale(replay=count)
        assert replicas(heard) == {"learner": 1, "evaluator": 1, "replay": count}
        assert lab.replicas("pong-replay", "StatefulSet") == count
    lab.up(algorithm={"name": "dqn"}, roles={"replay": {"replicas": 2}, "actor": {"replicas": 4}})
    assert lab.replicas("pong-replay", "StatefulSet") == 1, "an up of the same spec keeps it"


def test_the_number_of_actors_is_none_of_its_business(lab: Lab, told: list[Any]) -> None:
    lab.scale(actor=6)
    assert told == []


def test_an_up_that_keeps_the_number_of_a_scale_tells_that_one(lab: Lab, told: list[Any]) -> None:
    lab.scale(learner=1)
    lab.up(roles={"learner": {"replicas": 2}, "actor": {"replicas": 4}}, stop={"eval_return": 400})
    assert replicas(told)["learner"] == 1
    assert told[-1][2]["live"]["stop"]["eval_return"] == 400


def test_a_manager_that_does_not_answer_is_no_reason_not_to_scale(lab: Lab, told: list[Any]) -> None:
    lab.api.manager = None
    lab.scale(learner=1)
    assert lab.replicas("pong-learner", "StatefulSet") == 1
