"""Ends of a run, as the manager sees them: goal, steps, time, request, time in vain, latecomers, lock-step."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlctl.spec.schema import Stop
from rlctl_agents.manager.evaluation.matches import Evaluation
from rlctl_agents.manager.lifecycle.finished import still_met
from rlctl_agents.manager.lifecycle.stop import LEARNER_S, TooLate, met
from rlctl_agents.runtime.process import UserFault
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
    play,
    ref,
    spec,
    status,
)


def problems(run: Run) -> list[str]:
    return [problem["text"] for problem in status(run)["problems"]]


def confirm(run: Run, *returns: float) -> None:
    """The evaluator plays the model that has reached the goal once more, on fresh seeds."""
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.quota is not None
    assert match.quota.mode == "greedy"
    assert play(run, match, *returns).ok
    run.manager.turn()


@pytest.fixture
def aims(tmp_path: Path) -> Run:
    """A run with a return as its goal, which has learned a little."""
    run = Run(tmp_path, stop={"eval_return": 5}, evaluation={"episodes": 2, "every": 10})
    everybody(run)
    run.learn(LEARNER, steps=1000, version=10)
    return run


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (Stop(eval_return=475), "evaluation mean 480 >= 475 over 100 episodes on fresh seeds (greedy, version 8)"),
        (Stop(eval_return=480), "evaluation mean 480 >= 480 over 100 episodes on fresh seeds (greedy, version 8)"),
        (Stop(eval_return=481), None),
        (Stop(agent_steps=9000), "9000 agent steps >= 9000"),
        (Stop(agent_steps=9001), None),
        (Stop(wall_time=60), "70 s >= 60 s"),
        (Stop(wall_time=71), None),
        (Stop(), None),
    ],
)
def test_a_run_stops_when_a_condition_is_met_and_says_which(stop: Stop, words: str | None) -> None:
    goal = Evaluation(480, 0.0, 480, 480, 100, "greedy", ref(8), 5000, 60.0, 2.0, 0.0)
    found = met(stop, goal=goal, steps=9000, wall_s=70, learned=True)
    assert (None if found is None else found.why) == words


def test_a_run_that_has_reached_its_goal_measures_it_in_both_modes_saves_tells_everybody_and_ends(aims: Run) -> None:
    run = aims
    run.report("actor", ACTOR, gauges={"train_return": 500.0}, counters={"episodes": 1000.0})
    run.manager.turn()
    assert run.manager.stop.phase == "running", "returns of training end no run"
    evaluate(run, 10, 9.0, 9.0)
    run.manager.turn()
    assert run.manager.stop.phase == "running", "it may have been luck"
    confirm(run, 7.0, 7.0)
    orders = run.learn(LEARNER, steps=1100, version=11)
    assert (orders.stop_steps, orders.checkpoint) == (1, 1), "it rests, and saves a last generation"
    other = run.report("evaluator", JUDGE).match
    assert other is not None
    assert other.quota is not None
    assert (other.seats, other.quota.mode) == ({0: ref(10)}, "sample")
    assert play(run, other, 2.0, 4.0).ok
    run.manager.turn()
    assert not run.report("actor", ACTOR).stop, "nothing is saved yet"
    assert commit(run, 1, steps=1100).ok
    run.manager.turn()
    for role, process in (("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL), ("evaluator", JUDGE)):
        assert run.report(role, process, gauges={"stopping": 1.0}).stop
    run.manager.turn()
    assert run.manager.stop.phase == "telling", "they may have last words"
    run.time.now += 1.1
    run.manager.turn()
    assert run.manager.stop.phase == "over"
    shown = status(run)
    assert shown["stop"]["met"] == "evaluation mean 7 >= 5 over 2 episodes on fresh seeds (greedy, version 10)"
    assert (shown["evaluation"]["mean"], shown["evaluations"]["sample"]["mean"]) == (7, 3)
    assert shown["models"]["goal"]["other"]["mean"] == 3


def test_a_goal_that_was_confirmed_ends_the_run_of_the_next_manager_too(aims: Run) -> None:
    evaluate(aims, 10, 9.0, 9.0)
    confirm(aims, 7.0, 7.0)
    aims.start()
    aims.manager.turn()
    assert aims.manager.state.progress.met is not None
    assert still_met(aims.settings, aims.layout) is not None
    assert still_met(spec(stop={"eval_return": 7.5}), aims.layout) is None, "more is asked than it has reached"
    assert still_met(spec(stop={"eval_return": 5}, evaluation={"mode": "sample"}), aims.layout) is None


def test_a_lower_goal_is_reached_by_a_figure_that_is_fresh_already(aims: Run) -> None:
    evaluate(aims, 10, 9.0, 9.0)
    confirm(aims, 3.0, 4.0)
    aims.manager.reload(spec(stop={"eval_return": 3}, evaluation={"episodes": 2, "every": 10}))
    aims.manager.turn()
    assert aims.manager.state.progress.met == (
        "evaluation mean 3.5 >= 3 over 2 episodes on fresh seeds (greedy, version 10)"
    )


def test_a_manager_asked_to_leave_waits_for_a_generation_of_a_learner_that_lives(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    for _ in range(3):  # as each turn of the loop says it
        run.manager.stop.leave()
        run.manager.turn()
    assert run.manager.stop.phase == "saving"
    with pytest.raises(TooLate, match="its successor"):
        run.manager.stop.finish("stopped on request")
    assert run.learn(LEARNER, steps=5100, version=51).checkpoint == 1
    assert commit(run, 1).ok
    run.manager.turn()
    assert run.manager.stop.phase == "over"
    assert not run.report("actor", ACTOR).stop, "the others go on"
    assert run.manager.state.progress.met is None


def test_a_manager_asked_to_leave_when_nobody_learns_goes_at_once(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.time.now += 5
    run.manager.stop.leave()
    run.manager.turn()
    assert run.manager.stop.phase == "over"


def test_a_run_of_which_everybody_was_told_stays_finished_when_its_manager_is_asked_to_leave(run: Run) -> None:
    everybody(run)
    run.manager.stop.finish("stopped on request")
    run.manager.turn()
    assert run.report("actor", ACTOR).stop
    run.manager.stop.leave()
    assert (run.manager.stop.phase, run.manager.stop.how) == ("over", "finish")
    assert run.manager.state.progress.met == "stopped on request"


def test_a_run_that_was_asked_to_stop_stops_under_the_next_manager_where_this_one_is_killed(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.manager.stop.finish("stopped on request")
    run.start()
    everybody(run)
    run.manager.turn()
    assert run.manager.stop.phase == "running", "what the learner has learned is not known yet"
    run.learn(LEARNER, steps=5100, version=51)
    run.manager.turn()
    wanted = run.learn(LEARNER, steps=5100, version=51).checkpoint
    assert run.manager.stop.phase == "saving"
    assert commit(run, wanted, steps=5100, version=51).ok
    run.manager.turn()
    assert run.manager.stop.phase == "telling"
    assert run.manager.state.progress.met == "stopped on request"


def test_a_run_that_was_asked_to_stop_stops_though_no_learner_comes_back(run: Run) -> None:
    run.manager.stop.finish("stopped on request")
    run.start()
    run.after(59)
    assert run.manager.stop.phase == "running"
    run.after(2)
    assert run.manager.stop.phase != "running"


def test_more_that_is_asked_of_a_run_that_was_asked_to_stop_comes_too_late_under_the_next_manager_too(run: Run) -> None:
    run.manager.stop.finish("stopped on request")
    run.start()
    with pytest.raises(TooLate, match="when it has ended"):
        run.manager.reload(spec(stop={"agent_steps": 9000}))


@pytest.mark.parametrize("order", ["leave", "go_on"])
def test_a_request_to_stop_that_was_taken_back_is_not_obeyed_later(run: Run, order: str) -> None:
    everybody(run)
    run.manager.stop.finish("stopped on request")
    run.manager.stop.leave() if order == "leave" else run.manager.stop.go_on("more is asked")
    run.manager.store()
    run.start()
    assert run.manager.stop.phase == "running"


def test_the_learner_hears_after_how_many_steps_it_makes_no_update_and_nobody_else_does(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000})
    run.join("actor", ACTOR)
    assert run.join("learner", LEARNER).stop_steps == 5000
    run.manager.reload(spec(stop={"agent_steps": 9000}))
    assert run.learn(LEARNER, steps=100, version=1).stop_steps == 9000
    assert run.report("actor", ACTOR).stop_steps == 0
    run.manager.reload(spec())
    assert run.learn(LEARNER, steps=100, version=1).stop_steps == 0


def test_time_that_is_over_in_vain_ends_the_manager_with_the_users_fault_and_the_next_up_has_it_again(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    everybody(run)
    run.after(39, ("actor", ACTOR), ("learner", LEARNER))
    with pytest.raises(UserFault, match=r"stop\.wall_time of 40 s is over, and nothing was ever learned from$"):
        run.after(1, ("actor", ACTOR), ("learner", LEARNER))
    assert run.manager.state.progress.met is None
    run.start()
    run.after(39)
    assert run.manager.stop.phase == "running"


def test_time_that_is_over_in_vain_says_who_never_joined_and_an_event_of_it_stays(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    run.join("modelpool", POOL)
    run.join("actor", ACTOR)
    with pytest.raises(UserFault) as failed:
        run.after(40, ("actor", ACTOR))
    assert str(failed.value).endswith("nothing was ever learned from: no learner had joined")
    assert f'"{failed.value}"' in (run.layout.results / "events.jsonl").read_text()
    assert kinds(run)[-1] == "failed"


def test_a_run_whose_weights_are_lost_fails_once_its_time_is_over_and_no_learner_comes_back(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40})
    everybody(run)
    run.learn(LEARNER, steps=700, version=7)
    run.after(30)
    run.manager.state.save_progress()
    run.start()  # its node is gone with that of the learner
    run.join("actor", ACTOR)
    run.after(10 + LEARNER_S - 1, ("actor", ACTOR))
    assert run.manager.stop.phase == "running"
    with pytest.raises(UserFault, match=r"40 s is over, and what was learned is lost with its learner$"):
        run.after(2, ("actor", ACTOR))


def test_who_comes_too_late_to_a_run_that_ends_is_no_problem(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.manager.stop.finish("stopped on request")
    run.manager.turn()
    with pytest.raises(ValueError, match="the run is finished"):
        run.join("actor", 33)
    assert problems(run) == []
    refusal = run.manager.admission.refusal
    assert refusal is not None
    assert refusal[0] == "the run is finished and takes no new process"


def test_a_process_started_again_breaks_lock_step_and_it_is_said_once(tmp_path: Path) -> None:
    run = Run(tmp_path, sync=True)
    everybody(run)
    run.join("actor", ACTOR)
    run.learn(LEARNER, steps=700, version=7)
    assert not any("lock-step" in text for text in problems(run))
    run.join("actor", 33, prefer=0)
    run.join("actor", 34, prefer=0)
    run.manager.store()
    run.start()
    run.join("learner", 22)
    said = "lock-step was broken: actor 0 was started again; from step 700 on this run cannot be repeated"
    assert said in problems(run)
    assert (run.layout.results / "events.jsonl").read_text().count("lock-step was broken") == 1


def test_a_learner_started_again_breaks_lock_step_where_it_goes_on(tmp_path: Path) -> None:
    run = Run(tmp_path, sync=True)
    everybody(run)
    run.learn(LEARNER, steps=700, version=7)
    run.join("learner", 22)
    assert any("learner 0 was started again; from step 0 on" in text for text in problems(run))


def test_without_lock_step_whoever_starts_again_breaks_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.join("actor", 33, prefer=0)
    assert run.manager.state.progress.broken is None
