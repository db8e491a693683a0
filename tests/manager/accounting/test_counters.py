"""Rates, lag, totals, the verdict and the problems: what a user reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rlctl_agents.manager.accounting.counters import LagWindow, Rates, StoredTotals, Totals
from rlctl_agents.manager.evaluation.matches import Standstill
from rlctl_agents.manager.status.bottleneck import Verdict, Waits, judge
from rlctl_agents.manager.status.problems import NO_UPDATE_S, SILENT_S, Facts, find
from rlctl_agents.types.control import Histogram
from tests.manager.world import Time


@pytest.fixture
def time() -> Time:
    return Time()


def test_a_rate_is_the_growth_of_the_last_seconds(time: Time) -> None:
    rates = Rates(time, window_s=10)
    rates.begin("A")
    for second in range(1, 61):
        time.now += 1
        rates.hear("A", {"steps": 100.0 * min(second, 30)})
        assert rates.of("A", "steps") == pytest.approx(100) or second > 30
    assert rates.of("A", "steps") == 0, "nothing has grown for half a minute"
    assert rates.of("A", "unknown") == 0
    assert rates.of("B", "steps") == 0


def test_a_rate_spans_no_more_than_the_window(time: Time) -> None:
    rates = Rates(time, window_s=10)
    rates.begin("A")
    time.now += 1
    rates.hear("A", {"steps": 1e6})
    for _ in range(11):
        time.now += 1
        rates.hear("A", {"steps": 1e6})
    assert rates.of("A", "steps") == 0


def test_who_has_fallen_silent_has_no_rate(time: Time) -> None:
    rates = Rates(time, window_s=10)
    rates.begin("A")
    time.now += 5
    rates.hear("A", {"steps": 500})
    time.now += 9
    assert rates.of("A", "steps") == 100
    time.now += 1
    assert rates.of("A", "steps") == 0


def test_a_manager_that_meets_a_running_process_does_not_count_its_past(time: Time) -> None:
    rates = Rates(time)
    rates.hear("A", {"steps": 1e9})
    assert rates.of("A", "steps") == 0
    time.now += 1
    rates.hear("A", {"steps": 1e9 + 50})
    assert rates.of("A", "steps") == 50


def test_rates_of_processes_add_up(time: Time) -> None:
    rates = Rates(time)
    for boot in ("A", "B"):
        rates.begin(boot)
    time.now += 1
    for boot, amount in (("A", 10.0), ("B", 30.0)):
        rates.hear(boot, {"steps": amount})
    assert rates.sum(["A", "B"], "steps") == 40
    assert rates.mean(["A", "B"], "steps") == 20
    assert rates.mean([], "steps") == 0
    rates.forget("A")
    assert rates.sum(["A", "B"], "steps") == 30


def test_totals_keep_what_the_dead_have_done() -> None:
    totals = Totals()
    totals.hear("actor", "A", {"env_steps": 100})
    totals.hear("actor", "B", {"env_steps": 10, "episodes": 1})
    totals.hear("actor", "A", {"env_steps": 90})  # an older report, come late
    totals.close("A")
    totals.close("A")
    totals.hear("learner", "L", {"updates": 7})
    assert totals.sum("actor", "env_steps") == 110
    assert totals.of("actor") == {"env_steps": 110, "episodes": 1}
    assert totals.roles() == ["actor", "learner"]
    again = Totals()
    again.restore(msgspec.json.decode(msgspec.json.encode(totals.store()), type=StoredTotals))
    again.hear("actor", "B", {"env_steps": 20})
    assert again.sum("actor", "env_steps") == 120
    assert again.boots() == {"B", "L"}


def lags(**buckets: int) -> Histogram:
    counts = [buckets.get(f"b{index}", 0) for index in range(5)]
    bounds = [0.0, 1.0, 2.0, 4.0]
    total = sum(count * bound for count, bound in zip(counts, [*bounds, 9.0], strict=True))
    return Histogram(bounds, counts, total)


def test_lag_of_a_learner_that_ran_before_the_manager_begins_with_its_first_report(time: Time) -> None:
    window = LagWindow(time)
    window.hear("L", lags(b4=1_000_000))
    assert window.value() is None
    time.now += 1
    window.hear("L", lags(b4=1_000_000, b0=10))
    assert window.value() == (0, 0, 0)


def test_lag_is_that_of_the_last_seconds(time: Time) -> None:
    window = LagWindow(time)
    window.begin("L")
    window.hear("L", lags(b4=1000))
    for _ in range(12):
        time.now += 1
        window.hear("L", lags(b4=1000, b0=94, b1=1, b3=5))
    assert window.value() is None, "nothing new for ten seconds"
    time.now += 1
    window.hear("L", lags(b4=1000, b0=94 + 90, b1=1 + 5, b3=5 + 5))
    found = window.value()
    assert found is not None
    assert found.mean == pytest.approx((5 * 1 + 5 * 4) / 100)
    assert (found.p95, found.max) == (1, 4)


def test_a_learner_that_is_not_heard_any_more_has_no_lag(time: Time) -> None:
    window = LagWindow(time)
    window.begin("L")
    window.hear("L", lags(b4=1000))
    time.now += window.window_s
    assert window.value() is None


def test_lag_beyond_the_last_bound_is_shown_as_twice_that(time: Time) -> None:
    window = LagWindow(time)
    window.begin("L")
    window.hear("L", lags(b4=10))
    found = window.value()
    assert found is not None
    assert (found.p95, found.max) == (8, 8)
    window.forget("L")
    assert window.value() is None


def verdict(samples_per_insert: float = 0.0, **waits: float) -> Verdict:
    shares = {"learner_waits_data": 0.0, "actor_waits_credit": 0.0, "actor_waits_model": 0.0} | waits
    return judge(
        Waits(**shares), started=True, actors=2, cores_busy=1.0, cores=8, one_machine=True, run="r",
        samples_per_insert=samples_per_insert,
    )  # fmt: skip


def test_a_learner_that_waits_for_experience_needs_more_actors() -> None:
    found = verdict(learner_waits_data=0.61)
    assert found.kind == "actor-bound"
    assert found.text == "actor-bound: the learner waits for experience 61 % of the time"
    assert found.suggest == "rlctl scale actor=6 --run r"
    assert verdict(learner_waits_data=1.0).suggest == "rlctl scale actor=8 --run r", "not more than four times as many"


def test_actors_that_wait_for_credit_wait_for_the_learner() -> None:
    found = verdict(actor_waits_credit=0.5, learner_waits_data=0.1)
    assert found.kind == "learner-bound"
    assert found.suggest == "rlctl scale actor=1 --run r"


def test_actors_that_wait_for_weights_wait_for_the_modelpool() -> None:
    assert verdict(actor_waits_model=0.4, actor_waits_credit=0.3).kind == "modelpool-bound"
    assert verdict(actor_waits_model=0.4).suggest == "", "there is one modelpool"
    assert "waits to publish" in verdict(learner_waits_model=0.4).text


def test_short_waits_are_balance() -> None:
    found = verdict(learner_waits_data=0.12, actor_waits_credit=0.05)
    assert (found.kind, found.suggest) == ("balanced", "")
    assert "12 %" in found.text


def test_a_slow_simulator_is_named_when_the_learner_starves_because_of_it() -> None:
    found = verdict(learner_waits_data=0.9, actor_simulates=0.95)
    assert found.kind == "simulator-bound"
    assert "the simulator takes 95 % of the actors' time" in found.text
    assert found.suggest == "rlctl scale actor=8 --run r", "more simulators side by side"
    assert verdict(learner_waits_data=0.9, actor_simulates=0.3).kind == "actor-bound", (
        "most of their time goes elsewhere"
    )
    assert verdict(actor_waits_credit=0.3, actor_simulates=0.6).kind == "learner-bound", (
        "it is slow, and nobody waits for it"
    )
    assert verdict(actor_simulates=0.99).kind == "balanced"


def test_a_slow_modelpool_is_named_although_others_wait_longer_because_of_it() -> None:
    assert verdict(learner_waits_model=0.7, actor_waits_credit=0.9).kind == "modelpool-bound", (
        "no credit from a learner that waits"
    )
    assert verdict(learner_waits_data=0.9, actor_waits_model=0.6, actor_simulates=0.2).kind == "modelpool-bound", (
        "that is why it starves"
    )
    assert verdict(learner_waits_data=0.9, actor_waits_model=0.3, actor_simulates=0.6).kind == "simulator-bound"
    assert verdict(learner_waits_model=0.3, learner_waits_data=0.6).kind == "actor-bound"


def test_a_learner_that_may_not_draw_waits_for_actors_and_actors_without_credit_for_the_learner() -> None:
    found = verdict(learner_waits_data=0.5, learner_waits_draw=0.1, samples_per_insert=8.0)
    assert found.text == "actor-bound: the learner waits for experience 50 % of the time, at 8 samples per insert"
    assert found.suggest == "rlctl scale actor=4 --run r"
    assert verdict(learner_waits_data=0.5, actor_simulates=0.9, samples_per_insert=8.0).kind == "simulator-bound"
    found = verdict(actor_waits_credit=0.5, shard_busy=0.5, samples_per_insert=256.0)
    assert found.text == (
        "learner-bound: actors wait to be allowed to send 50 % of the time, at 256 samples per insert"
    )


def test_a_learner_that_waits_for_draws_waits_for_the_replay() -> None:
    found = verdict(learner_waits_data=0.5, learner_waits_draw=0.4, shard_busy=0.2)
    assert (found.kind, found.suggest) == ("replay-bound", "")
    assert found.text == "replay-bound: the learner waits for draws 40 % of the time"
    assert verdict(learner_waits_data=0.1, learner_waits_draw=0.1, shard_busy=0.95).kind == "balanced", (
        "who is busy holds nobody up"
    )


@pytest.mark.parametrize(
    ("waits", "text"),
    [
        ({"learner_waits_data": 0.6, "learner_waits_draw": 0.1}, "the learner waits for experience 60 % of the time"),
        ({"learner_waits_data": 0.6, "learner_waits_draw": 0.5}, "the learner waits for draws 50 % of the time"),
        ({"learner_waits_data": 0.3, "actor_waits_credit": 0.7}, "actors wait to be allowed to send 70 % of the time"),
    ],
)
def test_who_waits_while_a_shard_computes_all_the_time_waits_for_the_replay(waits: dict[str, float], text: str) -> None:
    found = verdict(**waits, shard_busy=0.97, samples_per_insert=8.0)
    assert found.text == f"replay-bound: {text}, and its busiest shard computes 97 % of it"


def test_a_modelpool_that_is_slow_is_named_before_a_replay() -> None:
    assert (
        verdict(learner_waits_model=0.5, learner_waits_data=0.4, learner_waits_draw=0.4, shard_busy=1.0).kind
        == "modelpool-bound"
    )


def test_more_actors_are_not_suggested_for_a_machine_that_is_full() -> None:
    found = judge(Waits(0.6, 0.0, 0.0), started=True, actors=2, cores_busy=1.9, cores=2, one_machine=True, run="r")
    assert found.kind == "actor-bound"
    assert found.suggest == ""
    assert "all 2 cores of this machine are busy" in found.text


@pytest.mark.parametrize(("actors", "suggest"), [(2, "rlctl scale actor=4 --run r"), (4, ""), (9, "")])
def test_not_more_actors_than_cores_are_suggested(actors: int, suggest: str) -> None:
    found = judge(Waits(0.6, 0.0, 0.0), started=True, actors=actors, cores_busy=1.0, cores=4, one_machine=True, run="r")
    assert found.suggest == suggest
    assert ("the 4 cores of this machine are all in use" in found.text) == (suggest == "")


@pytest.mark.parametrize(
    ("actors", "at_once", "suggest"),
    [(1, 4, "rlctl scale actor=3 --run r"), (2, 4, "rlctl scale actor=4 --run r"), (4, 4, ""), (1, 0, "")],
)
def test_not_more_actors_than_a_batch_holds_are_suggested(actors: int, at_once: int, suggest: str) -> None:
    waits = Waits(0.6, 0.0, 0.0)
    found = judge(
        waits, started=True, actors=actors, cores_busy=1.0, cores=64, one_machine=True, run="r", at_once=at_once
    )
    assert found.suggest == suggest
    held = "a batch holds blocks of" in found.text
    assert held == (suggest != "rlctl scale actor=3 --run r")


def test_part_of_a_core_counts_as_busy_and_is_no_place_for_an_actor() -> None:
    busy = judge(Waits(0.6, 0.0, 0.0), started=True, actors=1, cores_busy=1.4, cores=1.5, one_machine=True, run="r")
    assert "all 1.5 cores of this machine are busy" in busy.text
    idle = judge(Waits(0.6, 0.0, 0.0), started=True, actors=1, cores_busy=0.5, cores=2.5, one_machine=True, run="r")
    assert idle.suggest == "rlctl scale actor=2 --run r"


def test_before_the_first_seconds_of_learning_nothing_is_judged() -> None:
    found = judge(Waits(0.9, 0.0, 0.9), started=False, actors=0, cores_busy=0, cores=2, one_machine=True, run="r")
    assert (found.kind, found.text) == ("starting", "starting: no actor has reported yet")


NOBODY_WAITS = Waits(0.1, 0.1, 0.0)


def test_where_nobody_waits_and_nothing_is_learned_the_run_is_not_balanced() -> None:
    def found(idle_s: float, waits: Waits = NOBODY_WAITS) -> str:
        return judge(
            waits, started=True, actors=2, cores_busy=0.1, cores=2, one_machine=True, run="r", idle_s=idle_s
        ).kind

    assert (found(7.9), found(8.0)) == ("balanced", "stalled")
    assert found(60.0, Waits(0.9, 0.0, 0.0)) == "actor-bound", "an actor that takes long for a step"


def test_of_a_learner_that_is_gone_or_goes_on_it_is_not_said_that_it_begins() -> None:
    def found(**of: Any) -> str:
        return judge(
            Waits(0.0, 0.0, 0.0), started=False, actors=2, cores_busy=0, cores=2, one_machine=True, run="r", **of
        ).text

    assert found() == "starting: the learner makes its first updates"
    assert found(learners=0) == "starting: no learner has reported yet"
    assert found(learners=0, again=True) == "stalled: no learner reports"
    assert "goes on" in found(again=True)


FINE = Facts(now_s=500, live={"learner": 1, "actor": 4, "modelpool": 1}, started=True)


def test_a_batch_that_the_actors_are_still_making_is_no_problem_until_it_takes_twice_as_long() -> None:
    assert not find(replace(FINE, idle_s=79, batch_s=40.0), "r")
    assert "no update for 81 s" in find(replace(FINE, idle_s=81, batch_s=40.0), "r")[0]["text"]


@pytest.mark.parametrize(
    ("change", "text", "command"),
    [
        ({"silent": {"actor/3": SILENT_S}}, "actor/3 has said nothing for 8 s", "rlctl logs actor/3"),
        ({"idle_s": NO_UPDATE_S}, "no update for 30 s although 4 actors run", "rlctl logs learner"),
        ({"idle_s": 31, "started": False}, "nothing was learned in 31 s although 4", "rlctl logs learner"),
        (
            {"idle_s": 61, "started": False, "live": {"learner": 1, "actor": 1, "modelpool": 1}},
            "nothing was learned in 61 s although 1 actor runs",
            "rlctl logs learner",
        ),
        ({"idle_s": 61, "env_step_s": 2.5}, "4 actors run: the simulator takes 2.5 s for a step", "rlctl logs actor"),
        (
            {"live": {"actor": 4, "modelpool": 1}, "absent": {"learner": 60.0}},
            "no learner has reported for 60 s",
            "rlctl logs learner",
        ),
        (
            {"live": {"actor": 4, "modelpool": 1}, "absent": {"learner": SILENT_S}},
            "no learner has reported for 8 s",
            "rlctl logs learner",
        ),
        (
            {"absent": {"replay/1": 40.0, "replay/0": SILENT_S - 1}},
            "replay/1 has not reported for 40 s: its rows are not drawn",
            "rlctl logs replay/1",
        ),
        ({"nonfinite": 3, "optimizer_steps": 2999}, "3 optimizer steps were left out because", "rlctl logs learner"),
        ({"nonfinite": 1}, "1 optimizer step was left out because", "rlctl logs learner --level WARNING"),
        ({"stale_share": 0.18}, "18 % of the rows are too old", "rlctl status -o json"),
        ({"ledger_faults": ["actor/3 counts rows backwards"]}, "does not balance: actor/3", "rlctl logs manager"),
        ({"rejected_per_s": {("modelpool", "disk"): 0.1}}, "modelpool cannot keep models: the volume", "df -h; df -i"),
        ({"rejected_per_s": {("modelpool", "lineage"): 2.0}}, "modelpool rejects messages (lineage): 2", "rlctl logs"),
        ({"late_generation": (12, 75.0)}, "generation 12 was ordered 75 s ago", "rlctl logs learner"),
        (
            {"late_generation": (12, 200.0), "late_parts": ["replay/0", "replay/1"]},
            "generation 12 was ordered 200 s ago and waits for replay/0, replay/1",
            "rlctl logs replay",
        ),
        (
            {"late_generation": (12, 600.0), "late_parts": ["replay/0"], "generations_every_s": 900.0},
            "generation 12 was ordered 600 s ago and waits for replay/0",
            "rlctl logs replay",
        ),
        ({"damaged": ["generation-000002.json"]}, "generation-000002.json is damaged", "rlctl logs manager"),
        ({"disk": "cannot store x: No space left on device"}, "No space left on device", "df -h; df -i"),
        ({"disk": "cannot remove x: Is a directory"}, "Is a directory", "rlctl logs manager --level ERROR"),
        ({"unusable": [7]}, "generation 7 cannot be used", "rlctl logs learner"),
        ({"lost": "x: torn", "now_s": 5}, "x: torn", "rlctl logs manager"),
        ({"broken": ("lock-step was broken", "actor/1")}, "lock-step was broken", "rlctl logs actor/1"),
        ({"endless_steps": 200_001}, "no episode has ended after 200001 steps: set env.max", "rlctl logs evaluator"),
        (
            {"standstill": Standstill(25, 0, 700.0)},
            "an evaluator has made no step for 700 s: one of its environments hangs, or they are slow: most are reset "
            "one after the other, here 25; fewer evaluation.envs take less",
            "rlctl logs evaluator",
        ),
        (
            {"standstill": Standstill(25, 2)},
            "2 evaluations were given up after 3480 s without a step, and none was done since: one of its environments",
            "rlctl logs evaluator",
        ),
        (
            {"standstill": Standstill(1, 1)},
            "an evaluation was given up after 600 s without a step, and none was done since: its environment hangs in",
            "rlctl logs evaluator",
        ),
        ({"refused": "actor/0 does not fit actor/1"}, "refuses a process: actor/0 does not", "rlctl logs manager"),
    ],
)
def test_a_problem_is_told_in_words_with_the_next_command(change: dict[str, object], text: str, command: str) -> None:
    (problem,) = find(replace(FINE, **change), "r")  # type: ignore[arg-type]
    assert text in problem["text"]
    assert problem["next"].startswith(command)
    assert problem["next"].endswith(" --run r") or command == "df -h; df -i"


def test_nothing_is_wrong_with_a_run_that_learns() -> None:
    assert find(FINE, "r") == []
    almost = {"idle_s": NO_UPDATE_S - 0.1, "stale_share": 0.09}
    almost |= {"late_generation": (12, 599.0), "late_parts": ["replay/0"], "generations_every_s": 900.0}
    almost |= {"nonfinite": 3, "optimizer_steps": 3000}
    almost |= {"absent": {"learner": 59.0}, "now_s": 59.0}  # since the manager was started again
    assert find(replace(FINE, **almost), "r") == []  # type: ignore[arg-type]
    starting = Facts(now_s=500, absent={"learner": 59.0, "actor": 59.0, "modelpool": 59.0})
    assert find(starting, "r") == [], "everybody is still starting"


def test_many_silent_processes_do_not_fill_the_screen() -> None:
    problems = find(replace(FINE, silent={f"actor/{index}": 9.0 for index in range(1000)}), "r")
    assert len(problems) == 6
    assert problems[-1]["text"].startswith("995 more")
