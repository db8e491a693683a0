"""The status of a run: every key from the first second, figures, what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from rlctl_agents.manager.accounting.counters import MOST_COUNTERS
from rlctl_agents.manager.lifecycle.stop import TELL_S
from rlctl_agents.manager.membership.registry import load_members
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.trackers.curves import curve_values
from rlctl_agents.manager.web import metrics_page
from rlctl_agents.runtime.metrics import exposition
from rlctl_agents.types.control import EvalResult, Histogram
from rlctl_agents.types.figures import MAX_INFO
from tests.manager.world import (
    ACTOR,
    JUDGE,
    LEARNER,
    POOL,
    UID,
    Run,
    boot,
    everybody,
    order_evaluation,
    play,
    ref,
    spec,
    status,
)


def test_the_status_has_every_key_of_the_contract_from_the_first_second(run: Run) -> None:
    first = status(run)
    assert list(first) == [
        "apiVersion", "run", "uid", "term", "phase", "time", "wall_s", "cpu_s", "verdict", "throughput", "replay",
        "totals", "lag", "train_return", "train_info", "evaluation", "evaluations", "models", "recordings", "cadence",
        "history", "stop", "policies", "members", "roles", "init", "checkpoint", "resumed", "problems",
    ]  # fmt: skip
    assert (first["apiVersion"], first["run"], first["uid"], first["phase"]) == ("rlctl/v1", "r", UID, "starting")
    assert first["verdict"]["kind"] == "starting"
    assert set(first["totals"]) == {
        "env_steps", "frames", "agent_steps", "consumed_steps", "learned_steps", "updates", "episodes",
    }  # fmt: skip


def test_numbers_that_environments_tell_are_means_over_actors_and_few(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, gauges={"info.is_success": 0.25, "info.score": 3.0, "info.bad name\n": 1.0})
    run.join("actor", 77, 1)
    many = {f"info.n{number:03}": 1.0 for number in range(50)}
    run.report("actor", 77, gauges={"info.is_success": 0.75, "info.x": float("nan"), **many})
    found = status(run)
    assert list(found["train_info"])[:2] == ["is_success", "n000"]
    assert found["train_info"]["is_success"] == 0.5
    assert len(found["train_info"]) == MAX_INFO
    assert curve_values(found, {})["info/is_success/train"] == 0.5


def test_numbers_of_an_evaluation_are_in_status_files_events_curves_and_metrics(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 40)
    assert match is not None
    told = {"is_success": 0.5, "score": float("inf")}
    assert run.manager.result(EvalResult(match.id, ref(40), "greedy", [1.0, 2.0], [1, 1], 1.0, told)).ok
    assert status(run)["evaluation"]["info"] == {"is_success": 0.5}, "what is not finite would hide all else"
    assert json.loads((run.layout.results / "evaluations.jsonl").read_text())["info"] == {"is_success": 0.5}
    (event,) = (one for one in run.manager.events.since(0)[0] if one["kind"] == "evaluation")
    assert event["info"] == {"is_success": 0.5}
    ((_, values),) = run.manager.evaluations.undrawn
    assert values == {"return/evaluation": 1.5, "info/is_success/evaluation": 0.5}
    page = exposition(metrics_page.families(run.manager, status(run))).decode()
    assert 'rlctl_evaluation_info{mode="greedy",run="r",term="is_success"} 0.5' in page


def test_both_modes_of_evaluation_are_told_under_one_name_in_status_metrics_and_curves(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50, gauges={"rests": 1.0})
    run.report("modelpool", POOL, model=ref(50))
    run.manager.turn()
    for mean in (8.0, 6.0):
        match = run.report("evaluator", JUDGE, model=ref(50)).match
        assert match is not None
        assert play(run, match, mean, mean).ok
    found = status(run)
    assert {mode: one["mean"] for mode, one in found["evaluations"].items()} == {"greedy": 8, "sample": 6}
    page = exposition(metrics_page.families(run.manager, found)).decode()
    assert 'rlctl_evaluation_return{mode="greedy",run="r"} 8.0' in page
    assert 'rlctl_evaluation_return{mode="sample",run="r"} 6.0' in page
    curves = {tag: value for _, values in run.manager.evaluations.undrawn for tag, value in (values or {}).items()}
    assert curves == {"return/evaluation": 8.0, "return/evaluation_sample": 6.0}


def test_the_status_of_a_learning_run_holds_its_figures(run: Run) -> None:
    everybody(run)
    histogram = Histogram([0.0, 1.0, 2.0], [0, 0, 0, 0])
    for second in range(1, 11):
        run.time.now += 1
        steps = {"env_steps": 200.0 * second, "frames": 800.0 * second, "agent_steps": 200.0 * second}
        waits = {"wait_credit_seconds": 0.1 * second, "wait_model_seconds": 0.0}
        gauges = {"train_return": 42.0}
        run.report("actor", ACTOR, counters=steps | waits | {"episodes": 500.0}, gauges=gauges, model=ref(second))
        histogram = Histogram([0.0, 1.0, 2.0], [0, 90 * second, 10 * second, 0], 110.0 * second)
        run.learn(
            LEARNER, steps=200 * second, version=second, histograms={"lag_versions": histogram},
            counters={"wait_data_seconds": 0.7 * second, "learned_steps": 200.0 * second},
            gauges={
                "steps": 200.0 * second, "learned": 600.0 * second, "loss.policy": 0.5, "lr": 1e-3,
                "grad_norm": float("nan"),
            },
        )  # fmt: skip
        run.report("modelpool", POOL, model=ref(second))
    found = status(run)
    assert found["phase"] == "running"
    assert found["verdict"]["kind"] == "actor-bound"
    assert found["verdict"]["learner_waits_data"] == pytest.approx(0.7)
    assert found["verdict"]["actor_waits_credit"] == pytest.approx(0.1)
    assert found["throughput"]["env_steps_per_s"] == pytest.approx(200)
    assert found["throughput"]["frames_per_s"] == pytest.approx(800)
    assert found["throughput"]["consumed_steps_per_s"] == pytest.approx(200)
    assert found["throughput"]["updates_per_s"] == pytest.approx(2)
    assert found["totals"]["env_steps"] == 2000
    assert (found["totals"]["consumed_steps"], found["totals"]["learned_steps"]) == (2000, 6000), "each three times"
    assert found["policies"]["main"]["learned_steps"] == 6000
    assert found["lag"] == {"mean": 1.1, "p95": 2.0, "max": 2.0}
    assert found["train_return"] == {"mean": 42.0, "episodes": 100}
    assert found["policies"]["main"]["ref"]["version"] == 10
    (actor,) = found["roles"]["actor"]
    assert (actor["index"], actor["boot"], actor["env_steps_per_s"]) == (0, boot(ACTOR), 200)
    curves = curve_values(found, run.manager.members.seen[boot(LEARNER)].gauges)
    assert curves["loss/policy"] == 0.5
    assert curves["learner/lr"] == 1e-3
    assert curves["return/train"] == 42
    assert "learner/grad_norm" not in curves, "not a number is not a point"
    assert msgspec.json.decode(msgspec.json.encode(found))["run"] == "r"


def test_a_role_is_missed_a_minute_after_it_was_heard_last_and_no_sooner(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=2)
    others = (("modelpool", POOL), ("actor", ACTOR), ("evaluator", JUDGE))

    def missed(seconds: int) -> list[str]:
        found: list[str] = []
        for _ in range(seconds):
            run.after(1, *others)
            found += [each["text"] for each in builder.build()["problems"] if each["text"].startswith("no learner")]
        return found

    for _ in range(100):  # the manager itself has been there for long
        run.after(1, *others, ("learner", LEARNER))
        builder.build()
    assert missed(59) == [], "it is being restarted"
    assert missed(2) == ["no learner has reported for 60 s", "no learner has reported for 61 s"]
    run.join("learner", 22)
    assert missed(10) == []


def told_of_modelpools(builder: StatusBuilder) -> list[str]:
    return [one["text"] for one in builder.build()["problems"] if one["text"].startswith("modelpool/")]


def test_a_modelpool_that_gets_nothing_new_is_a_problem_as_long_as_the_first_one_has_newer_weights(run: Run) -> None:
    everybody(run)
    run.join("modelpool", 11, prefer=1)
    builder, pools = StatusBuilder(run.manager, cores=2), (("modelpool", POOL), ("modelpool", 11))
    run.report("modelpool", POOL, model=ref(5))
    run.report("modelpool", 11, model=ref(5))
    builder.build()
    run.after(40, *pools)
    assert told_of_modelpools(builder) == [], "nothing new is there"
    run.report("modelpool", POOL, model=ref(6))
    builder.build()
    run.after(29, *pools)
    assert told_of_modelpools(builder) == []
    run.after(1, *pools)
    (text,) = told_of_modelpools(builder)
    assert text == "modelpool/1 has had no new weights for 30 s, which modelpool/0 has: its actors play older ones"
    run.report("modelpool", 11, model=ref(6))
    assert told_of_modelpools(builder) == []


def test_the_first_modelpool_is_missed_though_others_are_there(run: Run) -> None:
    everybody(run)
    run.join("modelpool", 11, prefer=1)
    builder = StatusBuilder(run.manager, cores=2)
    run.after(70, ("modelpool", POOL), ("modelpool", 11))
    builder.build()
    run.after(59, ("modelpool", 11))
    assert told_of_modelpools(builder) == []
    run.after(1, ("modelpool", 11))
    (text,) = told_of_modelpools(builder)
    assert text.startswith("modelpool/0 has not reported for 60 s")


def test_numbers_that_json_lacks_become_null(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, gauges={"train_return": float("inf")})
    assert status(run)["train_return"]["mean"] is None
    assert b"Infinity" not in msgspec.json.encode(status(run))


@pytest.mark.parametrize("odd", [float("inf"), float("nan"), -1.0, 1e300])
def test_figures_that_cannot_be_neither_end_the_manager_nor_spoil_its_books(run: Run, odd: float) -> None:
    """A process with an actor's key may report any."""
    everybody(run)
    sane = {"env_steps": 70.0, "episodes": 3.0}
    run.report("actor", ACTOR, counters=sane)
    named = {f"{number}" * 40: 1.0 for number in range(1000)}
    gauges = {"memory_bytes": odd, "train_return": 1.0}
    run.report("actor", ACTOR, counters=named | dict.fromkeys(sane, odd), gauges=gauges)
    told = status(run)
    assert (told["totals"]["env_steps"], told["totals"]["episodes"]) == (70, 3)
    assert len(run.manager.members.totals.of("actor")) <= MOST_COUNTERS + len(sane)
    run.manager.store()
    assert load_members(run.layout.results).totals.boots[boot(ACTOR)].counters["env_steps"] == 70


def test_a_learner_that_stands_still_is_a_problem(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=8)
    run.learn(LEARNER, steps=100, version=1)
    builder.build()
    run.after(40, ("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL))
    problems = builder.build()["problems"]
    assert any("no update for 40 s although 1 actor runs" in problem["text"] for problem in problems)


def joined(run: Run) -> dict[str, int]:
    return {role: sum(one["joined"] for one in members) for role, members in status(run)["roles"].items()}


NOBODY = {"modelpool": 0, "learner": 0, "actor": 0, "evaluator": 0}


def test_the_status_says_of_everybody_whether_it_has_reported_to_the_present_manager(run: Run) -> None:
    everybody(run)
    assert joined(run) == NOBODY, "a learner with a lease may still be reading its generation"
    for role, number in (("modelpool", POOL), ("learner", LEARNER), ("actor", ACTOR), ("evaluator", JUDGE)):
        run.report(role, number)
    assert joined(run) == dict.fromkeys(NOBODY, 1)
    run.join("actor", 33, prefer=0)
    assert joined(run) == {**NOBODY, "modelpool": 1, "learner": 1, "evaluator": 1}, "another boot, another joining"
    run.report("learner", LEARNER, gauges={"stopping": 1.0})
    assert joined(run) == {**NOBODY, "modelpool": 1, "evaluator": 1}
    run.manager.store()
    run.start()
    assert len(status(run)["roles"]["modelpool"]) == 1
    assert joined(run) == NOBODY, "their leases are of an earlier life"


def test_a_learner_that_stands_still_because_of_a_slow_simulator_is_told_with_the_actors_logs(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=8)
    run.report("actor", ACTOR, counters={"env_steps": 4.0, "env_seconds": 20.0})
    run.learn(LEARNER, steps=100, version=1)
    builder.build()
    run.after(40, ("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL))
    text = "no update for 40 s although 1 actor runs: the simulator takes 5 s for a step"
    assert {"text": text, "next": "rlctl logs actor --run r"} in builder.build()["problems"]


def test_at_the_very_end_the_verdict_is_that_of_the_training_again(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=8)
    run.manager.stop.finish("stopped on request")
    assert builder.build()["verdict"]["text"] == "ending: saving the last generation"
    run.manager.turn()
    assert builder.build()["verdict"]["text"] == "ending: the processes stop"
    run.after(TELL_S)
    assert run.manager.stop.phase == "over"
    assert builder.build(finished=True)["verdict"]["kind"] == "starting"


def test_a_run_that_ends_shows_how_fast_it_was_and_that_nobody_learns_is_no_problem(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=8)
    for second in range(1, 11):
        run.time.now += 1
        waits = {"wait_data_seconds": 0.7 * second}
        run.report("actor", ACTOR, counters={"env_steps": 200.0 * second})
        run.learn(LEARNER, steps=200 * second, version=second, counters=waits)
    before = builder.build()
    assert before["verdict"]["kind"] == "actor-bound"
    run.manager.reload(spec(stop={"agent_steps": 2000}))
    run.after(40, ("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL), ("evaluator", JUDGE))
    assert run.manager.evaluations.awaits
    after = builder.build()
    assert (after["throughput"], after["lag"]) == (before["throughput"], before["lag"])
    assert after["verdict"] == {
        **before["verdict"], "kind": "ending", "text": "ending: waiting for the last model", "suggest": ""
    }  # fmt: skip
    assert not any("no update" in problem["text"] for problem in after["problems"])
    run.learn(LEARNER, steps=2000, version=10, gauges={"rests": 1.0})
    run.report("modelpool", POOL, model=ref(10))
    run.manager.turn()
    assert builder.build()["verdict"]["text"] == "ending: measuring version 10, greedy"
