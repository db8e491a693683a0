"""A game of several seats: what an evaluation says of it is no goal until models play each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager.lifecycle.finished import still_met
from rlctl_agents.runtime.process import UserFault
from tests.manager.world import ACTOR, JUDGE, LEARNER, POOL, Run, evaluate, experience, play, spec, status


def test_a_return_is_no_goal_in_a_game_of_several_seats_and_the_way_out_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"eval_return": 0})
    run.manager.turn()
    run.join("actor", ACTOR, experience=experience(seats=2))
    with pytest.raises(UserFault, match=r"2 seats.* about 0 .*stop\.agent_steps or stop\.wall_time$") as failed:
        run.manager.turn()
    assert run.manager.state.progress.met is None
    assert f'"{failed.value}"' in (run.layout.results / "events.jsonl").read_text()


def test_a_return_does_not_become_the_goal_of_a_running_game_of_several_seats(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000}, evaluation={"episodes": 2})
    run.join("actor", ACTOR, experience=experience(seats=2))
    with pytest.raises(ValueError, match=r"stop\.eval_return cannot be judged: the environment has 2 seats"):
        run.manager.reload(spec(stop={"agent_steps": 5000, "eval_return": 0}))
    assert run.manager.settings.stop.eval_return is None
    run.manager.turn()


def test_a_manager_that_knows_no_seats_yet_does_not_believe_what_was_measured_on_several(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 4000}, evaluation={"episodes": 2})
    for role, number in (("modelpool", POOL), ("learner", LEARNER)):
        run.join(role, number)
    for role, number in (("actor", ACTOR), ("evaluator", JUDGE)):
        run.join(role, number, experience=experience(seats=2))
    run.learn(LEARNER, steps=100, version=1)
    assert evaluate(run, 1, 0.5, 0.5).ok
    assert status(run)["evaluation"]["seats"] == 2
    run.manager.store()
    run.settings = spec(stop={"eval_return": 0}, evaluation={"episodes": 2})
    (run.layout.results / "ledger.json").unlink()  # and with it what was agreed
    run.start()
    for role, number in (("modelpool", POOL), ("learner", LEARNER)):
        run.join(role, number)
    run.join("evaluator", JUDGE)
    run.learn(LEARNER, steps=100, version=1)
    run.manager.turn()
    while (match := run.report("evaluator", JUDGE).match) is not None:  # what seems to have reached the goal
        assert play(run, match, 0.5, 0.5).ok
    run.manager.turn()
    assert run.manager.state.progress.met is None
    assert still_met(run.settings, run.layout) is None, "nor does a manager of a run that is finished"
