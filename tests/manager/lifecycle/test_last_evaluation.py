"""The last evaluation: a run that stops by steps or time ends with a measurement of its last model, or says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlctl_agents.manager.evaluation.evaluations import JOIN_S, MEASURE_S, REST_S
from rlctl_agents.manager.evaluation.matches import PLAY_S
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

RESTS = {"rests": 1.0}
BATCH_ROWS = spec().policy().algorithm.batch_size
NO_JUDGE = (("modelpool", POOL), ("learner", LEARNER), ("actor", ACTOR))
ALL = (*NO_JUDGE, ("evaluator", JUDGE))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, stop={"agent_steps": 5000}, evaluation={"episodes": 2, "every": 10})


def reach(run: Run, *, published: int) -> None:
    """The learner has learned from 5000 steps and rests at version 50; the modelpool holds another one, perhaps."""
    run.learn(LEARNER, steps=5000, version=50, gauges=RESTS)
    run.report("modelpool", POOL, model=ref(published))
    run.manager.turn()
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def why_not(run: Run) -> list[str]:
    return [event["text"] for event in run.manager.events.since(0)[0] if event["kind"] == "not_evaluated"]


def test_a_run_that_stops_by_steps_ends_when_its_last_model_is_measured_and_that_return_stays(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=4000, version=40)
    evaluate(run, 40, 1.0, 2.0)
    reach(run, published=40)
    assert commit(run, 1, steps=5000).ok
    run.manager.turn()
    assert run.manager.stop.phase == "saving", "everything is saved, but the last weights are not published"
    assert run.report("evaluator", JUDGE).match is None

    run.report("modelpool", POOL, model=ref(50))
    run.manager.turn()
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.seats == {0: ref(50)}
    assert match.quota is not None
    assert match.quota.episodes == 2
    assert not run.report("actor", ACTOR).stop
    assert play(run, match, 7.0, 9.0).ok
    run.manager.turn()
    assert run.manager.stop.phase == "saving", "the other mode is to come"
    measure(run, 5.0, 7.0)
    assert run.manager.stop.phase == "telling"
    found = status(run)
    assert {mode: one["mean"] for mode, one in found["evaluations"].items()} == {"greedy": 8, "sample": 6}
    assert (found["evaluation"]["mean"], found["evaluation"]["steps"]) == (8, 5000)
    assert found["evaluation"]["ref"]["version"] == 50
    lines = (run.layout.results / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["returns"] for line in lines[-2:]] == [[7, 9], [5, 7]]
    assert why_not(run) == []
    run.manager.store()
    run.start()
    assert run.manager.state.progress.evaluation is not None
    assert run.manager.state.progress.evaluation.mean == 8


def test_when_its_time_is_over_the_learner_rests_so_that_what_is_measured_is_what_is_saved(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"wall_time": 40}, evaluation={"episodes": 2})
    everybody(run)
    assert run.learn(LEARNER, steps=100, version=1).stop_steps == 0
    run.after(40, *ALL)
    assert run.manager.state.progress.met == "40 s >= 40 s"
    assert run.learn(LEARNER, steps=200, version=2).stop_steps == 1
    assert run.join("learner", LEARNER).stop_steps == 1
    assert run.report("actor", ACTOR).stop_steps == 0
    run.learn(LEARNER, steps=300, version=3, gauges=RESTS)
    run.report("modelpool", POOL, model=ref(3))
    run.manager.turn()
    measure(run, 1.0, 1.0)
    assert not run.manager.evaluations.awaits
    assert run.learn(LEARNER, steps=300, version=3).stop_steps == 1, "it rests until it is told to stop"


def test_what_is_played_of_an_older_model_is_taken_from_its_evaluator_and_does_not_count(run: Run) -> None:
    everybody(run)
    old = order_evaluation(run, 40)
    reach(run, published=40)
    assert run.report("evaluator", JUDGE).match == old, "nobody knows yet which model is the last"
    run.report("modelpool", POOL, model=ref(50))
    run.manager.turn()
    last = run.report("evaluator", JUDGE).match
    assert last is not None
    assert last.seats == {0: ref(50)}
    assert not play(run, old, 1.0, 1.0).ok
    assert play(run, last, 7.0, 9.0).ok
    assert status(run)["evaluation"]["mean"] == 8


def test_an_evaluation_of_the_last_model_that_has_begun_goes_on(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 50)
    reach(run, published=50)
    assert run.report("evaluator", JUDGE).match == match
    run.join("evaluator", 44, prefer=1)
    other = run.report("evaluator", 44).match
    assert other is not None
    assert other.quota is not None
    assert other.quota.mode == "sample", "of two, one plays the other mode meanwhile"
    assert play(run, match, 7.0, 9.0).ok
    assert play(run, other, 1.0, 1.0).ok
    run.manager.turn()
    assert not run.manager.evaluations.awaits


def test_a_last_model_that_was_measured_is_measured_in_the_other_mode_alone(run: Run) -> None:
    everybody(run)
    evaluate(run, 50, 7.0, 9.0)
    reach(run, published=50)
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.quota is not None
    assert match.quota.mode == "sample"
    measure(run, 1.0, 1.0)
    assert not run.manager.evaluations.awaits
    assert status(run)["evaluation"]["mean"] == 8
    assert why_not(run) == []


def test_a_learner_that_does_not_come_to_rest_is_not_waited_for(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.manager.turn()
    run.report("modelpool", POOL, model=ref(48))
    run.after(REST_S - 1, *ALL)
    assert run.report("evaluator", JUDGE).match is None
    run.after(1, *ALL)
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.seats == {0: ref(48)}


def test_without_a_learner_the_newest_published_model_is_the_last(run: Run) -> None:
    everybody(run)
    reach(run, published=48)
    run.learn(LEARNER, steps=5000, version=50, gauges={"stopping": 1.0})
    run.after(LEAVING_S + 1, ("modelpool", POOL), ("actor", ACTOR), ("evaluator", JUDGE))
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.seats == {0: ref(48)}


def test_a_short_run_waits_for_an_evaluator_that_is_still_starting(run: Run) -> None:
    for role, number in NO_JUDGE:
        run.join(role, number)
    reach(run, published=50)
    run.after(JOIN_S / 2, *NO_JUDGE)
    assert run.manager.evaluations.awaits
    run.join("evaluator", JUDGE)
    measure(run, 7.0, 9.0)
    assert not run.manager.evaluations.awaits


def test_a_run_without_an_evaluator_ends_without_and_says_so(run: Run) -> None:
    for role, number in NO_JUDGE:
        run.join(role, number)
    reach(run, published=50)
    run.after(JOIN_S - 1, *NO_JUDGE)
    assert run.manager.evaluations.awaits
    assert status(run)["stop"]["not_evaluated"] is None
    run.after(1, *NO_JUDGE)
    assert not run.manager.evaluations.awaits
    said = "the last model, version 50, was not evaluated: no evaluator lives"
    assert why_not(run) == [said]
    assert status(run)["stop"]["not_evaluated"] == said


def test_a_run_that_asks_for_no_evaluator_waits_for_none(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000}, roles={"evaluator": {"replicas": 0}})
    for role, number in NO_JUDGE:
        run.join(role, number)
    reach(run, published=50)
    assert not run.manager.evaluations.awaits


def test_a_run_whose_evaluator_dies_at_the_end_ends_without_and_says_so(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    run.after(JOIN_S, *ALL)
    assert run.report("evaluator", JUDGE).match is not None
    run.after(EXPIRES_S + JOIN_S - 2, *NO_JUDGE)
    assert run.manager.evaluations.awaits
    run.after(3, *NO_JUDGE)
    assert not run.manager.evaluations.awaits
    assert kinds(run).count("not_evaluated") == 1


def test_an_evaluator_that_is_killed_at_the_end_has_time_to_come_back(run: Run) -> None:
    everybody(run)
    run.after(JOIN_S, *ALL)
    reach(run, published=50)
    assert run.report("evaluator", JUDGE).match is not None
    run.after(EXPIRES_S + JOIN_S / 2, *NO_JUDGE)
    run.join("evaluator", 44)
    measure(run, 7.0, 9.0, judge=44)
    assert not run.manager.evaluations.awaits
    assert why_not(run) == []


def test_another_evaluator_takes_over_from_one_that_dies_at_the_end(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    assert run.report("evaluator", JUDGE).match is not None
    run.join("evaluator", 44, prefer=0)
    assert play(run, run.report("evaluator", 44).match, 7.0, 9.0).ok


def test_an_evaluator_that_takes_too_long_is_not_waited_for_and_the_remedy_is_said(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    run.after(MEASURE_S - 1, *ALL)
    assert run.manager.evaluations.awaits
    run.after(1, *ALL)
    assert not run.manager.evaluations.awaits
    (text,) = why_not(run)
    assert text == (
        "the last model, version 50, was not evaluated: no evaluator was done within 600 s; fewer evaluation.episodes "
        "take less, or of slow resets fewer evaluation.envs"
    )


def test_an_evaluator_within_a_long_reset_is_at_its_match_and_its_status_tells_the_way_out(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 40)
    assert match is not None
    at_it = {"model": ref(40), "gauges": {"plays": float(match.id), "envs": 25.0}}
    run.report("evaluator", JUDGE, **at_it)
    run.time.now += 1500
    for role, number in NO_JUDGE:
        run.report(role, number)
    assert run.report("evaluator", JUDGE, **at_it).match == match
    told = [problem["text"] for problem in status(run)["problems"]]
    assert any("no step for 1500 s" in text and "fewer evaluation.envs" in text for text in told)
    assert play(run, match, 1.0, 1.0).ok


def test_an_evaluator_gets_no_other_match_before_it_has_left_the_one_that_was_taken_from_it(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 40)
    assert match is not None
    at_it = {"model": ref(40), "gauges": {"plays": float(match.id)}}
    run.report("evaluator", JUDGE, **at_it)
    run.time.now += PLAY_S
    for _ in range(3):
        run.time.now += 10
        assert run.report("evaluator", JUDGE, **at_it).match is None
    other = run.report("evaluator", JUDGE, model=ref(40)).match
    assert other is not None
    assert other.id == match.id + 1, "none was given and taken meanwhile"


def test_who_asks_to_stop_meanwhile_does_not_wait_for_the_measurement(run: Run) -> None:
    everybody(run)
    reach(run, published=40)
    run.manager.stop.finish("stopped on request")
    assert not run.manager.evaluations.awaits
    assert why_not(run) == ["the last model was not evaluated: stopped on request"]
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def test_a_run_asked_for_more_steps_while_its_last_model_is_measured_goes_on(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    last = run.report("evaluator", JUDGE).match
    more = spec(stop={"agent_steps": 9000}, evaluation={"episodes": 2, "every": 10})
    assert run.manager.reload(more) == ["stop.agent_steps: 5000 -> 9000"]
    assert (run.manager.stop.phase, run.manager.state.progress.met) == ("running", None)
    assert not run.manager.evaluations.awaits
    assert run.learn(LEARNER, steps=5000, version=50).stop_steps == 9000
    said = [event["text"] for event in run.manager.events.since(0)[0] if event["kind"] == "goes_on"]
    assert said == ["the run goes on: 5000 agent steps >= 5000 is not enough any more"]
    assert play(run, last, 7.0, 9.0).ok, "what was measured meanwhile counts"

    run.learn(LEARNER, steps=9000, version=90, gauges=RESTS)
    run.report("modelpool", POOL, model=ref(90))
    run.manager.turn()
    assert run.manager.state.progress.met == "9000 agent steps >= 9000"
    measure(run, 1.0, 3.0)
    assert run.manager.stop.phase == "saving"
    assert not run.manager.evaluations.awaits
    assert why_not(run) == []


def test_other_settings_that_are_met_all_the_same_do_not_hold_up_the_end(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    run.manager.reload(spec(stop={"agent_steps": 4000}))
    assert run.manager.evaluations.awaits
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def test_a_run_that_ends_by_steps_confirms_a_model_that_has_reached_the_goal_first(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"eval_return": 5, "agent_steps": 5000}, evaluation={"episodes": 2})
    everybody(run)
    reach(run, published=50)
    modes = []
    while (match := run.report("evaluator", JUDGE).match) is not None:
        assert match.quota is not None
        modes.append((match.quota.mode, match.seed))
        assert play(run, match, 6.0, 6.0).ok
    run.manager.turn()
    assert [mode for mode, _ in modes] == ["greedy", "greedy", "sample"]
    assert modes[0][1] != modes[1][1]
    assert status(run)["models"]["goal"]["version"] == 50
    assert run.manager.state.progress.met == "5000 agent steps >= 5000"


def end_once_measured(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    commit(run, 1, steps=5000)
    measure(run, 7.0, 9.0)
    assert run.manager.stop.phase == "telling"


def stop_on_request(run: Run) -> None:
    everybody(run)
    run.manager.stop.finish("stopped on request")


def stop_what_is_measured_on_request(run: Run) -> None:
    everybody(run)
    reach(run, published=50)
    run.manager.stop.finish("stopped on request")


@pytest.mark.parametrize("end", [end_once_measured, stop_on_request, stop_what_is_measured_on_request])
def test_more_that_is_asked_of_a_run_too_late_is_refused(run: Run, end: Callable[[Run], None]) -> None:
    end(run)
    with pytest.raises(ValueError, match="the run is ending; run the same command again when it has ended"):
        run.manager.reload(spec(stop={"agent_steps": 9000}))
    assert run.manager.settings.stop.agent_steps == 5000
    assert run.manager.reload(run.manager.settings) == []
