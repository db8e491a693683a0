"""The replay in the status of a run: its figures, its verdict, its curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.manager.status.problems import ABSENT_S
from rlctl_agents.manager.status.report import StatusBuilder
from rlctl_agents.manager.trackers.curves import curve_values
from rlctl_agents.manager.web import metrics_page
from rlctl_agents.manager.web.status_page import page
from rlctl_agents.runtime.gauges import STOPPING, UNREADABLE
from rlctl_agents.runtime.metrics import exposition
from tests.manager.checkpoints.test_generations import saved
from tests.manager.world import ACTOR, LEARNER, POOL, Run, boot, everybody, ref, spec, status

SHARDS = (51, 52)
SPEC: dict[str, Any] = {
    "algorithm": {"name": "dqn"}, "replay": {"capacity": 1000}, "roles": {"replay": {"replicas": 2}},
}  # fmt: skip
GAUGES = {
    "rows": 400.0, "drawable": 390.0, "capacity": 512.0, "array_bytes": 2.0**20, "learning_starts": 200.0,
    "samples_per_insert": 8.0,
}  # fmt: skip


@pytest.fixture
def replayed(tmp_path: Path) -> Run:
    run = Run(tmp_path, **SPEC)
    for index, number in enumerate(SHARDS):
        run.join("replay", number, index)
    everybody(run)
    return run


def learn(run: Run, *, data: float, draw: float, credit: float, shard: float, shards: int = 2) -> dict[str, Any]:
    """Ten seconds with these shares of waiting; 20 rows a second into each shard, 160 out of it."""
    for second in range(1, 11):
        run.time.now += 1
        run.report("actor", ACTOR, counters={"wait_credit_seconds": credit * second}, model=ref(second))
        for number in SHARDS:
            counted = {
                "inserted": 100 + 20.0 * second,
                "overwritten": 0.0,
                "sampled": 160.0 * second,
                "priorities": 30.0 * second,
            }
            counted |= {"stale_priorities": 10.0 * second, "insert_seconds": shard / 4 * second, "draw_seconds": 0.0}
            counted["draw_seconds"] = shard * 3 / 4 * second
            run.report("replay", number, counters=counted, gauges=GAUGES)
        waits = {"wait_data_seconds": data * second, "wait_draw_seconds": draw * second}
        run.learn(
            LEARNER,
            steps=200 * second,
            version=second,
            counters=waits,
            gauges={"shards": float(shards), "sampled_per_insert": 8.0},
        )
        run.report("modelpool", POOL, model=ref(second))
    return status(run)


def test_a_run_without_a_replay_says_nothing_of_one(run: Run) -> None:
    everybody(run)
    found = status(run)
    assert found["replay"] is None
    assert "replay" not in found["members"]
    assert not [name for name in curve_values(found, {}) if "replay" in name or "draw" in name]


def test_the_status_holds_the_figures_of_a_replay_over_its_shards(replayed: Run) -> None:
    found = learn(replayed, data=0.5, draw=0.1, credit=0.0, shard=0.4)
    assert found["replay"] == {
        "shards": {"wanted": 2, "answer": 2},
        "rows": 800, "drawable": 780, "capacity": 1024, "array_bytes": 2 * 2**20,
        "dropped": 0, "inserted": 600, "sampled": 3200,
        "inserted_per_s": pytest.approx(40), "sampled_per_s": pytest.approx(320),
        "wanted_samples_per_insert": 8.0, "samples_per_insert": 8.0, "stale_priorities": 0.25,
    }  # fmt: skip
    assert found["members"]["replay"] == {"live": 2, "silent": 0}
    assert [one["sampled_per_s"] for one in found["roles"]["replay"]] == [160, 160]
    curves = curve_values(found, {})
    assert curves["replay/samples_per_insert"] == 8
    assert (curves["replay/shards"], curves["waits/learner_waits_draw"]) == (2, pytest.approx(0.1))
    text = exposition(metrics_page.families(replayed.manager, found)).decode()
    assert 'rlctl_replay_inserted_total{role="replay",run="r"} 600.0' in text
    assert 'rlctl_replay_rows{role="replay",run="r"} 400.0' in text, "a mean over shards, as gauges are"
    assert 'rlctl_learner_wait_seconds_total{role="learner",run="r",stage="draw"}' in text
    shown = page(found, (), found["time"])
    assert "2 of 2" in shown
    assert "800 of 1,024, 780 can be drawn" in shown
    assert "20 rows / s in, 160 out" in shown


def test_rows_of_a_shard_that_died_are_inserted_and_sampled_ones_and_stored_no_longer(replayed: Run) -> None:
    learn(replayed, data=0.5, draw=0.1, credit=0.0, shard=0.4)
    replayed.join("replay", 53, 0)
    replayed.report("replay", 53, counters={"inserted": 0.0, "sampled": 0.0}, gauges=GAUGES | {"rows": 0.0})
    found = status(replayed)["replay"]
    assert (found["rows"], found["inserted"], found["sampled"], found["samples_per_insert"]) == (400, 600, 3200, 8.0)
    assert found["dropped"] == 300, "what the first of them had inserted, and not overwritten"


@pytest.mark.parametrize(
    ("waits", "kind"),
    [
        ({"data": 0.5, "draw": 0.1, "credit": 0.0, "shard": 0.4}, "actor-bound"),
        ({"data": 0.1, "draw": 0.0, "credit": 0.5, "shard": 0.4}, "learner-bound"),
        ({"data": 0.5, "draw": 0.4, "credit": 0.0, "shard": 0.4}, "replay-bound"),
        ({"data": 0.5, "draw": 0.1, "credit": 0.4, "shard": 0.95}, "replay-bound"),
        ({"data": 0.1, "draw": 0.1, "credit": 0.1, "shard": 0.95}, "balanced"),
    ],
)
def test_the_verdict_tells_a_slow_replay_from_slow_actors_and_a_slow_learner(
    replayed: Run, waits: dict[str, float], kind: str
) -> None:
    found = learn(replayed, **waits)["verdict"]
    assert found["kind"] == kind
    assert found["shard_busy"] == pytest.approx(waits["shard"])
    assert ("samples per insert" in found["text"]) == (kind in ("actor-bound", "learner-bound"))


def test_before_anything_is_heard_of_a_replay_nothing_is_said(tmp_path: Path) -> None:
    found = status(Run(tmp_path, **SPEC))["replay"]
    assert found["shards"] == {"wanted": 2, "answer": None}
    assert (found["samples_per_insert"], found["stale_priorities"], found["rows"]) == (None, None, 0)


def test_a_replay_that_nobody_has_is_a_problem(replayed: Run) -> None:
    replayed.after(ABSENT_S + 60, ("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL))
    status(replayed)
    replayed.after(ABSENT_S + 1, ("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL))
    assert boot(SHARDS[0]) not in [one.boot for one in replayed.manager.members.leases.live("replay")]
    found = [one for one in status(replayed)["problems"] if "no replay" in one["text"]]
    assert found[0]["next"] == "rlctl logs replay --run r"


def test_a_shard_that_scale_adds_is_waited_for_from_then_on(replayed: Run) -> None:
    builder = StatusBuilder(replayed.manager, cores=8)

    def silent() -> list[str]:
        return [one["text"] for one in builder.build()["problems"] if "replay/2" in one["text"]]

    lives = [("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL), *(("replay", one) for one in SHARDS)]
    for replicas in (2, 3, 2, 3):  # one that went is not remembered either
        replayed.manager.reload(spec(**{**SPEC, "roles": {"replay": {"replicas": replicas}}}))
        assert silent() == [], replicas
        replayed.after(ABSENT_S + 60, *lives)
        assert len(silent()) == replicas - 2


def test_parts_that_a_shard_could_not_use_are_a_problem_and_one_event(replayed: Run) -> None:
    for _ in range(2):
        replayed.report("replay", SHARDS[1], gauges={**GAUGES, UNREADABLE: 2.0})
    (text,) = (one["text"] for one in status(replayed)["problems"] if "could not use" in one["text"])
    assert text == "replay/1 could not use 2 of its parts: it began with older rows or none"
    assert [one["kind"] for one in replayed.manager.events.since(0)[0]].count("unreadable") == 1


def test_rows_that_two_generations_are_without_are_a_problem_and_a_metric(replayed: Run) -> None:
    manifests, folder = replayed.manager.checkpoints.manifests, replayed.layout.checkpoints
    for number, shards in enumerate(((0, 1), (0,), (0,)), 1):
        assert not [one for one in status(replayed)["problems"] if "the rows of" in one["text"]], number
        manifests.commit(saved(folder, number, *shards))
    told = status(replayed)
    (found,) = (one for one in told["problems"] if "the rows of" in one["text"])
    assert found["text"] == "no generation since 1 has the rows of replay/1: no process"
    assert found["next"] == "rlctl logs replay/1 --run r"
    assert "rlctl_checkpoint_absent_parts" in exposition(metrics_page.families(replayed.manager, told)).decode()


def test_who_was_there_before_the_manager_has_a_minute_to_be_heard_again(replayed: Run) -> None:
    learn(replayed, data=0.0, draw=0.0, credit=0.0, shard=0.1)
    ended = [("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL)]
    for role, number in [*ended, *(("replay", shard) for shard in SHARDS)]:
        if role != "actor":  # which is killed, as the evaluator is
            replayed.report(role, number, gauges={STOPPING: 1.0})
    replayed.manager.store()
    replayed.start()
    assert [one.role for one in replayed.manager.members.leases.live()] == ["actor", "evaluator"], "others ended"
    for seconds in (9, 20, 30):
        replayed.after(seconds)
        assert status(replayed)["problems"] == []
    replayed.after(2)
    told = [one["text"] for one in status(replayed)["problems"]]
    assert {f"no {role} has reported for 61 s" for role in ("modelpool", "replay", "learner", "actor")} <= {*told}, told


def test_a_shard_that_hangs_is_a_problem_for_as_long_as_it_does(replayed: Run) -> None:
    learn(replayed, data=0.0, draw=0.0, credit=0.0, shard=0.1)
    lives = [("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL), ("replay", SHARDS[0])]
    replayed.after(2, *lives, ("replay", SHARDS[1]))
    builder = StatusBuilder(replayed.manager, cores=8)
    builder.build()
    for seconds in (10, 20, 40):
        replayed.after(seconds, *lives)
        told = [one["text"] for one in builder.build()["problems"] if "replay/1" in one["text"]]
        assert len(told) == 1, f"{seconds} s more: {told}"
    assert "has not reported for" in told[0]
    replayed.report("replay", SHARDS[1], gauges=GAUGES)
    replayed.join("replay", SHARDS[1], 1)
    assert not [one for one in status(replayed)["problems"] if "replay/1" in one["text"]]
