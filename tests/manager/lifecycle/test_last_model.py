"""A run finishes with the weights that it claims: what was learned and lost is learned again, or the run has failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl_agents.manager.evaluation.evaluations import JOIN_S
from rlctl_agents.manager.lifecycle.stop import SAVE_S, TELL_S
from rlctl_agents.manager.membership.leases import LEAVING_S
from rlctl_agents.manager.timing import EXPIRES_S
from tests.manager.world import (
    ACTOR,
    JUDGE,
    LEARNER,
    POOL,
    Run,
    commit,
    evaluate,
    everybody,
    kinds,
    measure,
    order_evaluation,
    play,
    ref,
    spec,
    status,
)

SECOND = 22
"""Number of the boot of the learner that comes after."""
RESTS = {"rests": 1.0}
NO_LEARNER = (("modelpool", POOL), ("actor", ACTOR), ("evaluator", JUDGE))
NO_POOL = (("learner", LEARNER), ("actor", ACTOR), ("evaluator", JUDGE))
ALL = (*NO_LEARNER, ("learner", LEARNER))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, stop={"agent_steps": 5000}, evaluation={"episodes": 2, "every": 10})


def reach(run: Run) -> None:
    """The learner has learned from 5000 steps, and the modelpool holds its weights."""
    run.learn(LEARNER, steps=5000, version=50, gauges=RESTS)
    run.report("modelpool", POOL, model=ref(50))
    run.manager.turn()
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def step(run: Run) -> str:
    return run.manager.stop.phase


def measure_last(run: Run) -> None:
    measure(run, 7.0, 9.0)
    assert not run.manager.evaluations.awaits


def kill_learner(run: Run) -> None:
    """Let the learner fall silent for ever."""
    run.after(EXPIRES_S + 1, *NO_LEARNER)
    assert run.manager.members.leases.live("learner") == []


def come_back(run: Run, *, steps: int) -> None:
    """The learner was started again, and went on from a generation with so many steps."""
    run.join("learner", SECOND)
    run.learn(SECOND, steps=0, version=steps // 100, lineage=2, gauges={"steps": float(steps)})
    run.manager.turn()


def test_a_new_manager_does_not_finish_a_run_by_steps_that_nobody_alive_has_learned_from(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=2000)
    reach(run)
    run.manager.store()
    run.start()
    run.manager.turn()
    assert run.manager.state.progress.met is None
    come_back(run, steps=2000)
    assert run.manager.state.progress.met is None
    run.learn(SECOND, steps=3000, version=50, lineage=2, gauges={"steps": 5000.0})
    run.manager.turn()
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def test_a_new_manager_without_any_generation_claims_nothing(run: Run) -> None:
    everybody(run)
    reach(run)
    run.manager.store()
    run.start()
    run.manager.turn()
    assert run.manager.state.progress.met is None
    run.settings = spec(stop={"wall_time": 10})
    run.start()
    run.after(11)
    assert run.manager.state.progress.met is None, "time is over, but nothing is left of what was learned"


def test_a_new_manager_believes_a_learner_that_lives_on(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.manager.store()
    run.start()
    run.join("learner", LEARNER)
    run.manager.turn()
    assert run.manager.state.progress.met is None
    run.learn(LEARNER, steps=5000, version=50)
    run.manager.turn()
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def test_a_new_manager_measures_and_finishes_a_run_of_which_the_last_model_is_saved(run: Run) -> None:
    everybody(run)
    reach(run)
    commit(run, 5, steps=5000)
    run.manager.store()
    run.start()
    everybody(run)
    reach(run)
    assert run.manager.evaluations.awaits
    measure_last(run)
    assert step(run) == "telling"


def test_a_kept_model_that_reaches_a_lower_goal_ends_the_run_once_confirmed_though_its_learner_is_gone(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, evaluation={"episodes": 2})
    everybody(run)
    commit(run, 2, steps=2000)
    run.learn(LEARNER, steps=5000, version=50)
    evaluate(run, 50, 9.0, 9.0)
    run.manager.store()
    run.settings = spec(stop={"eval_return": 5}, evaluation={"episodes": 2})
    run.start()
    come_back(run, steps=2000)
    assert run.manager.state.progress.met is None
    run.join("evaluator", 44)
    match = run.report("evaluator", 44).match
    assert match is not None
    assert match.seats == {0: ref(50)}
    assert play(run, match, 6.0, 7.0).ok
    run.manager.turn()
    assert run.manager.state.progress.met == (
        "evaluation mean 6.5 >= 5 over 2 episodes on fresh seeds (greedy, version 50)"
    )


def test_a_run_whose_learner_is_killed_during_the_last_evaluation_learns_again_what_was_lost(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=2000)
    reach(run)
    kill_learner(run)
    measure_last(run)
    assert step(run) == "saving", "the model that was measured is saved nowhere"
    come_back(run, steps=2000)
    assert run.manager.state.progress.met is None
    assert step(run) == "running"
    assert kinds(run).count("goes_on") == 1
    assert run.learn(SECOND, steps=0, version=20, lineage=2, gauges={"steps": 2000.0}).stop_steps == 5000
    run.learn(SECOND, steps=3000, version=50, lineage=2, gauges={"steps": 5000.0, **RESTS})
    run.report("modelpool", POOL, model=ref(50, 2))
    run.manager.turn()
    assert run.manager.evaluations.awaits
    measure(run, 1.0, 3.0)
    assert commit(run, 5, steps=5000, sender=SECOND).ok
    run.manager.turn()
    assert step(run) == "telling"
    assert status(run)["evaluation"]["mean"] == 2


def test_a_run_whose_learner_is_killed_and_never_comes_back_says_which_model_was_not_saved(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=2000)
    reach(run)
    kill_learner(run)
    measure_last(run)
    run.after(SAVE_S["finish"] - 1, *NO_LEARNER)
    assert step(run) == "saving"
    text = "the last model, at 5000 steps, was not saved: newest generation 1 at 2000 steps"
    assert text in [problem["text"] for problem in status(run)["problems"]]
    run.after(2 + TELL_S, *NO_LEARNER)
    assert run.manager.stop.phase == "over"
    assert run.manager.stop.unsaved == text


def test_a_learner_that_was_killed_after_its_last_model_was_saved_holds_nobody_up(run: Run) -> None:
    everybody(run)
    reach(run)
    commit(run, 1, steps=5000)
    kill_learner(run)
    measure_last(run)
    assert step(run) == "telling"
    assert run.manager.stop.unsaved == ""


def test_what_was_learned_between_the_last_order_and_rest_is_saved_too(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, steps=100, version=1)
    run.after(40, *ALL)
    assert commit(run, 1, steps=100).ok
    run.learn(LEARNER, steps=300, version=3, gauges=RESTS)
    run.report("modelpool", POOL, model=ref(3))
    run.manager.turn()
    measure_last(run)
    assert step(run) == "saving"
    assert run.learn(LEARNER, steps=300, version=3, gauges=RESTS).checkpoint == 2
    assert commit(run, 2, steps=300).ok
    run.manager.turn()
    assert step(run) == "telling"


def test_a_batch_learned_after_the_model_that_reached_the_goal_is_no_trouble(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"eval_return": 5}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    evaluate(run, 50, 9.0, 9.0)
    assert play(run, run.report("evaluator", JUDGE).match, 7.0, 8.0).ok
    run.manager.turn()
    assert step(run) == "saving"
    assert run.learn(LEARNER, steps=5000, version=50).checkpoint == 1
    assert commit(run, 1, steps=5000).ok
    run.learn(LEARNER, steps=5100, version=51, gauges=RESTS)
    run.manager.turn()
    assert run.manager.evaluations.awaits, "the other mode is played"
    assert run.manager.stop.unsaved == ""
    measure(run, 6.0, 7.0)
    assert step(run) == "telling"


def test_who_asks_for_the_end_does_not_wait_for_a_learner_that_goes_on_learning(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.learn(LEARNER, steps=1000, version=10)
    run.manager.stop.finish("stopped on request")
    assert commit(run, 1, steps=1100).ok
    run.learn(LEARNER, steps=1200, version=12)
    run.manager.turn()
    assert step(run) == "telling"


def test_a_modelpool_that_is_frozen_during_the_last_evaluation_is_named_as_the_cause(run: Run) -> None:
    everybody(run)
    reach(run)
    assert run.report("evaluator", JUDGE).match is not None
    run.after(EXPIRES_S + JOIN_S + 2, *NO_POOL)
    assert not run.manager.evaluations.awaits
    (text,) = (one["text"] for one in run.manager.events.since(0)[0] if one["kind"] == "not_evaluated")
    assert "modelpool/0 has not been heard for 30 s" in text
    assert "evaluation.episodes" not in text


def test_an_evaluator_that_has_the_last_model_needs_no_modelpool(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 50)
    reach(run)
    for second in range(round(EXPIRES_S + JOIN_S) + 5):
        run.report("evaluator", JUDGE, model=ref(50), counters={"agent_steps": float(second)})
        run.after(1, ("learner", LEARNER), ("actor", ACTOR))
    assert run.manager.evaluations.awaits
    assert play(run, match, 7.0, 9.0).ok


def test_a_run_that_is_taken_down_during_its_last_evaluation_is_measured_by_the_next_manager(run: Run) -> None:
    everybody(run)
    reach(run)
    commit(run, 5, steps=5000)
    for role, number in (("actor", ACTOR), ("evaluator", JUDGE)):
        run.report(role, number, gauges={"stopping": 1.0})
        run.after(LEAVING_S + 1, ("learner", LEARNER), ("modelpool", POOL))
    run.learn(LEARNER, steps=5000, version=50, gauges={"stopping": 1.0})
    run.after(LEAVING_S + 1, ("modelpool", POOL))
    run.report("modelpool", POOL, gauges={"stopping": 1.0})
    run.after(LEAVING_S + 1)
    assert run.manager.evaluations.awaits
    run.manager.stop.leave()
    run.manager.stop.leave()
    assert run.manager.stop.phase == "over"
    assert run.manager.stop.how == "leave"
    assert not run.manager.evaluations.awaits
    assert status(run)["stop"] == {"conditions": {"agent_steps": 5000}, "met": None, "not_evaluated": None}
    assert kinds(run).count("left") == 1
    run.manager.store()
    run.start()
    run.join("modelpool", 11)
    run.join("evaluator", 44)
    come_back(run, steps=5000)
    assert run.manager.evaluations.awaits
    run.learn(SECOND, steps=0, version=50, lineage=2, gauges={"steps": 5000.0, **RESTS})
    run.report("modelpool", 11, model=ref(50, 2))
    run.manager.turn()
    measure(run, 7.0, 9.0, judge=44)
    assert step(run) == "telling"
