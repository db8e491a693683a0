"""The manager without sockets: hello, reports, evaluations, generations, the end, and its successor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl_agents.roles.pace import EXPIRES_S
from rlctl_agents.roles.status import StatusBuilder, encode, scalars
from rlctl_agents.types.control import Account, Commit, EvalResult, Generation, Hello, Histogram, Match, Said
from rlctl_agents.types.experience import Ledger
from tests.roles.world import UID, Run, boot, experience, ref, spec

POOL, LEARNER, ACTOR, JUDGE = 1, 2, 3, 4


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path, evaluation={"episodes": 2, "every": 10}, checkpoint={"every": 60, "keep": 2})


def everybody(run: Run) -> None:
    run.join("modelpool", POOL)
    run.join("actor", ACTOR)
    run.join("learner", LEARNER)
    run.join("evaluator", JUDGE)


def commit(run: Run, number: int, *, rows: int = 640, term: int | None = None, sender: int = LEARNER) -> Said:
    file = f"main-{number:06d}-learner.safetensors"
    (run.layout.checkpoints / file).write_bytes(b"x")
    generation = Generation(
        number, "main", term or run.manager.term, ref(number * 10), rows, 1.7e9, {"learner": file}, {"learner": "ab"}
    )
    return run.manager.commit(Commit(generation, boot(sender)))


def order_evaluation(run: Run, version: int) -> Match | None:
    run.report("modelpool", POOL, model=ref(version))
    return run.report("evaluator", JUDGE).match


def evaluate(run: Run, version: int, *returns: float) -> Said:
    match = order_evaluation(run, version)
    assert match is not None
    return run.manager.result(EvalResult(match.id, match.seats[0], "greedy", list(returns), [1] * len(returns), 1.0))


def kinds(run: Run) -> list[str]:
    return [event["kind"] for event in run.manager.events.since(0)[0]]


def status(run: Run) -> dict[str, Any]:
    return StatusBuilder(run.manager, cores=8).build()


def step(run: Run) -> str:
    return run.manager.ending.step


def over(run: Run) -> bool:
    return run.manager.over


def test_a_lease_says_everything_that_a_process_needs(run: Run) -> None:
    pool, actor, learner = run.join("modelpool", POOL), run.join("actor", ACTOR), run.join("learner", LEARNER)
    assert pool.bind.keys() == {"rpc", "notice"}
    assert actor.match is not None
    assert actor.match.learn == (0,)
    assert set(actor.peers) == {"learner/0", "modelpool/0"}
    assert (actor.term, actor.manager) == (1, boot(901))
    assert learner.bind.keys() == {"experience"}
    assert learner.experience == experience()
    assert (learner.next_lineage, learner.generations) == (1, ())


def test_a_learner_that_asks_too_early_hears_of_the_environment_later_and_keeps_its_lineage(run: Run) -> None:
    assert run.join("learner", LEARNER).experience is None
    run.join("actor", ACTOR)
    again = run.join("learner", LEARNER)
    assert again.experience == experience()
    assert again.next_lineage == 1


def test_a_process_of_another_run_is_refused_and_the_refusal_is_a_problem(run: Run) -> None:
    for _ in range(3):
        with pytest.raises(ValueError, match="not of cdcdcdcd"):
            run.manager.hello(Hello("actor", boot(9), 0, "cd" * 16))
    assert kinds(run).count("refused") == 1, "said again every half second, told once"
    assert any("refuses a process" in problem["text"] for problem in status(run)["problems"])


def test_whoever_is_not_known_is_told_to_say_hello(run: Run) -> None:
    assert not run.report("actor", ACTOR).known
    everybody(run)
    assert run.report("actor", ACTOR).known
    assert not run.report("actor", ACTOR, term=0).known, "it was leased by an earlier manager"


def test_who_was_replaced_is_told_to_stop(run: Run) -> None:
    everybody(run)
    run.join("actor", 33, prefer=0)
    orders = run.report("actor", ACTOR)
    assert orders.stop
    assert run.report("actor", 33).known


def test_peers_are_issued_again_when_they_change(run: Run) -> None:
    everybody(run)
    assert set(run.report("actor", ACTOR).peers) == {"learner/0", "modelpool/0"}
    run.join("modelpool", 11, prefer=1)
    run.manager.turn()
    assert set(run.report("actor", ACTOR).peers) == {"learner/0", "modelpool/0", "modelpool/1"}


def test_a_silent_process_loses_its_lease(run: Run) -> None:
    everybody(run)
    run.after(EXPIRES_S + 1, ("learner", LEARNER), ("modelpool", POOL))
    assert [one.role for one in run.manager.leases.live()] == ["learner", "modelpool"]
    assert kinds(run).count("gone") == 2


def test_an_evaluation_is_of_a_model_that_the_pool_holds_and_counts_its_rows(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    match = order_evaluation(run, 40)
    assert match is not None
    assert match.seats == {0: ref(40)}
    assert evaluate(run, 40, 10.0, 30.0) == Said(True)
    newest = status(run)["evaluation"]
    assert (newest["mean"], newest["rows"], newest["episodes"]) == (20, 4000, 2)
    stored = json.loads((run.layout.results / "evaluations.jsonl").read_text())
    assert stored["returns"] == [10, 30]
    assert stored["ref"] == {"policy": "main", "lineage": 1, "version": 40}


def test_an_evaluation_told_twice_counts_once(run: Run) -> None:
    everybody(run)
    match = order_evaluation(run, 40)
    assert match is not None
    result = EvalResult(match.id, ref(40), "greedy", [1.0, 2.0], [1, 1], 1.0)
    assert run.manager.result(result).ok
    assert not run.manager.result(result).ok
    assert len(status(run)["history"]) == 1


def test_returns_of_training_do_not_end_a_run(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"eval_return": 100})
    everybody(run)
    run.report("actor", ACTOR, gauges={"train_return": 500.0}, counters={"episodes": 1000.0})
    run.manager.turn()
    assert step(run) == "not"


def test_a_run_ends_when_an_evaluation_is_good_enough(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"eval_return": 100}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    evaluate(run, 50, 90.0, 120.0)
    run.manager.turn()
    number = run.learn(LEARNER, rows=5100, version=51).checkpoint
    assert number == 1, "a last generation first"
    assert not run.report("actor", ACTOR).stop
    assert commit(run, number).ok
    run.manager.turn()
    for role, process in (("actor", ACTOR), ("learner", LEARNER), ("modelpool", POOL), ("evaluator", JUDGE)):
        assert run.report(role, process, gauges={"stopping": 1.0}).stop
    run.manager.turn()
    assert not over(run), "they may have last words"
    run.time.now += 1.1
    run.manager.turn()
    assert over(run)
    assert run.manager.progress.met == "evaluation mean 105 >= 100 over 2 episodes (greedy, version 50)"


def test_stop_conditions_are_read_again(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    run.manager.turn()
    assert step(run) == "not"
    changes = run.manager.reload(spec(stop={"rows": 5000}, evaluation={"episodes": 2}, checkpoint={"keep": 2}))
    assert changes == ["stop.rows: None -> 5000"]
    run.manager.turn()
    assert run.manager.ending.how == "finish"


def test_a_successor_judges_by_the_conditions_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path, stop={"rows": 5000})
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    run.manager.turn()
    run.manager.store()
    run.settings = spec(stop={"rows": 9000})
    run.start()
    run.manager.turn()
    assert run.manager.progress.met is None
    assert step(run) == "not"


def test_generations_are_ordered_in_time_and_the_learner_is_told_until_it_is_done(run: Run) -> None:
    everybody(run)
    assert run.learn(LEARNER, rows=640, version=1).checkpoint == 0
    run.manager.turn()
    run.after(61, ("learner", LEARNER), ("actor", ACTOR))
    assert run.learn(LEARNER, rows=6400, version=10).checkpoint == 1
    assert commit(run, 1, rows=6400).ok
    assert run.learn(LEARNER, rows=7000, version=11).checkpoint == 0
    assert status(run)["checkpoint"]["rows"] == 6400


def test_old_generations_are_removed(run: Run) -> None:
    everybody(run)
    for number in (1, 2, 3, 4):
        assert commit(run, number, rows=number).ok
    assert sorted(path.name for path in run.layout.checkpoints.glob("generation-*")) == [
        "generation-000003.json",
        "generation-000004.json",
    ]


def test_only_the_learner_of_the_present_term_commits(run: Run) -> None:
    everybody(run)
    assert not commit(run, 1, sender=ACTOR).ok
    assert not commit(run, 1, term=7).ok
    run.join("learner", 22, prefer=0)
    assert not commit(run, 1, sender=LEARNER).ok, "it was replaced"
    assert commit(run, 1, sender=22).ok


def test_a_manager_that_was_frozen_and_overtaken_commits_nothing(run: Run) -> None:
    everybody(run)
    frozen = run.manager
    run.start()
    run.manager, successor = frozen, run.manager
    said = commit(run, 1)
    assert not said.ok
    assert said.why == "a manager of term 2 has taken over"
    run.manager = successor
    run.join("learner", LEARNER)
    assert commit(run, 1).ok


def test_each_learner_boot_opens_a_lineage_and_hears_of_the_generations(run: Run) -> None:
    everybody(run)
    commit(run, 1, rows=1000)
    commit(run, 2, rows=2000)
    run.manager.store()
    lease = run.join("learner", 22, prefer=0)
    assert lease.next_lineage == 2
    assert [one.number for one in lease.generations] == [2, 1]
    run.start()
    assert run.join("learner", 22).next_lineage == 2, "the same boot, the same lineage"
    assert run.join("learner", 23).next_lineage == 3


def test_status_says_from_where_a_learner_went_on_and_rows_go_back_to_there(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=9000, version=90)
    commit(run, 1, rows=7000)
    run.join("learner", 22, prefer=0)
    gauges = {"rows": 7100.0, "resumed_generation": 1.0}
    run.learn(22, rows=100, version=71, lineage=2, gauges=gauges)
    run.learn(22, rows=100, version=71, lineage=2, gauges=gauges)
    found = status(run)
    assert found["resumed"] == {
        "number": 1, "rows": 7000, "text": "learner 0 went on from generation 1: version 10, 7000 rows",
    }  # fmt: skip
    assert found["policies"]["main"]["rows"] == 7100
    assert found["totals"]["consumed_rows"] == 9100, "what was learned and forgotten was learned all the same"
    assert kinds(run).count("resumed") == 1
    assert run.manager.curve == [(7000, None)]


def test_a_learner_that_found_the_newest_generation_damaged_says_which_it_took(run: Run) -> None:
    everybody(run)
    commit(run, 1, rows=1000)
    commit(run, 2, rows=2000)
    run.join("learner", 22, prefer=0)
    run.learn(22, rows=0, version=10, lineage=2, gauges={"rows": 1000.0, "resumed_generation": 1.0})
    found = status(run)
    assert found["resumed"]["number"] == 1
    assert found["checkpoint"]["number"] == 1, "a damaged one is not what the run could go on from"
    assert [one["text"] for one in found["problems"]] == [
        "generation 2 cannot be used; the learner went on from another"
    ]
    run.manager.store()
    run.start()
    assert status(run)["checkpoint"]["number"] == 1


def test_status_does_not_tell_of_the_life_before(run: Run) -> None:
    everybody(run)
    commit(run, 1, rows=1000)
    run.join("learner", 22, prefer=0)
    run.learn(22, rows=0, version=10, lineage=2, gauges={"rows": 1000.0, "resumed_generation": 1.0})
    run.join("learner", 23, prefer=0)
    assert status(run)["resumed"] is None
    run.learn(23, rows=0, version=10, lineage=3, gauges={"rows": 1000.0, "resumed_generation": 1.0})
    assert status(run)["resumed"]["number"] == 1


def test_without_its_progress_a_run_goes_on_from_the_newest_generation(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=9000, version=90)
    commit(run, 1, rows=7000)
    run.manager.store()
    for path in run.layout.results.glob("progress.json*"):
        path.unlink()
    run.start()
    assert run.manager.rows == 7000
    assert run.join("learner", 22).next_lineage > 100, "nobody knows which lineages were given away"


def test_torn_progress_and_term_do_not_end_the_run(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=900, version=9)
    run.manager.store()
    run.manager.store()
    (run.layout.results / "progress.json").write_bytes(b"\0" * 9)
    (run.layout.run / "term").write_bytes(b"\0")
    run.start()
    assert run.manager.rows == 900
    assert run.manager.term > 100
    assert run.join("learner", 22).next_lineage > 100
    (problem,) = status(run)["problems"]
    assert "went on from the previous one" in problem["text"]
    assert problem["next"] == "rlctl logs manager --level ERROR --run r"


def account(sent: int, consumed: int) -> Account:
    return Account(Ledger(sent, 0, sent), received=consumed, consumed=consumed)


def test_the_ledger_outlives_actors_learners_and_managers(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, sent={boot(LEARNER): Ledger(100, 0, 90)}, pending=10)
    run.report("learner", LEARNER, accounts={boot(ACTOR): account(80, 80)})
    assert status(run)["policies"]["main"]["ledger"] == {
        "produced": 100, "consumed": 80, "dropped": 0, "stale": 0, "fenced": 0, "invalid": 0, "lost": 0,
        "in_flight": 20, "balanced": True,
    }  # fmt: skip

    run.join("actor", 33, prefer=0)  # killed and started anew
    run.manager.store()
    run.start()
    assert not run.report("learner", LEARNER, term=1).known
    run.join("learner", LEARNER)
    run.join("actor", 33)
    run.report("actor", 33, sent={boot(LEARNER): Ledger(50, 0, 50)})
    run.report("learner", LEARNER, accounts={boot(ACTOR): account(80, 80), boot(33): account(50, 50)})
    ledger = status(run)["policies"]["main"]["ledger"]
    assert (ledger["produced"], ledger["consumed"], ledger["lost"], ledger["in_flight"]) == (150, 130, 20, 0)
    assert ledger["balanced"]

    run.after(300, ("learner", LEARNER), ("actor", 33))
    assert run.manager.leases.is_buried(boot(ACTOR))
    assert status(run)["policies"]["main"]["ledger"] == ledger, "closed books are sums"


def test_books_that_do_not_add_up_are_said_to(run: Run) -> None:
    everybody(run)
    run.report("learner", LEARNER, accounts={boot(ACTOR): Account(Ledger(50, 0, 50), received=40, consumed=40)})
    found = status(run)
    assert not found["policies"]["main"]["ledger"]["balanced"]
    assert any("learner/0 knows of 50 rows sent" in problem["text"] for problem in found["problems"])


def test_totals_and_wall_time_go_on_under_the_next_manager(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, counters={"env_steps": 700.0, "cpu_seconds": 3.0})
    run.time.now += 100
    run.manager.store()
    run.time.now += 5000  # between down and up
    run.start()
    run.time.now += 1
    run.join("actor", 33)
    run.report("actor", 33, counters={"env_steps": 11.0, "cpu_seconds": 0.5})
    found = status(run)
    assert found["totals"]["env_steps"] == 711
    assert found["cpu_s"]["actor"] == 3.5
    assert found["wall_s"] == 101
    assert found["term"] == 2


def test_a_manager_asked_to_leave_waits_for_a_generation_of_a_learner_that_lives(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    run.manager.leave()
    run.manager.turn()
    assert not over(run)
    assert run.learn(LEARNER, rows=5100, version=51).checkpoint == 1
    assert commit(run, 1).ok
    run.manager.turn()
    assert over(run)
    assert not run.report("actor", ACTOR).stop, "the others go on"
    assert run.manager.progress.met is None


def test_a_manager_asked_to_leave_when_nobody_learns_goes_at_once(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, rows=5000, version=50)
    run.time.now += 5
    run.manager.leave()
    run.manager.turn()
    assert over(run)


def test_lines_of_processes_without_a_volume_are_remembered(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, log=['{"msg": "one"}', '{"msg": "two"}'])
    assert run.manager.lines.since(1) == (['{"msg": "two"}'], 2)


def test_the_status_has_every_key_of_the_contract_from_the_first_second(run: Run) -> None:
    first = status(run)
    assert list(first) == [
        "apiVersion", "run", "uid", "term", "phase", "time", "wall_s", "cpu_s", "verdict", "throughput", "totals",
        "lag", "train_return", "evaluation", "history", "stop", "policies", "roles", "checkpoint", "resumed",
        "problems",
    ]  # fmt: skip
    assert (first["apiVersion"], first["run"], first["uid"], first["phase"]) == ("rlctl/v1", "r", UID, "starting")
    assert first["verdict"]["kind"] == "starting"
    assert set(first["totals"]) == {
        "env_steps", "frames", "agent_steps", "consumed_rows", "unique_rows", "updates", "episodes",
    }  # fmt: skip


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
            LEARNER, rows=200 * second, version=second, histograms={"lag_versions": histogram},
            counters={"wait_data_seconds": 0.7 * second, "unique_rows": 200.0 * second},
            gauges={"loss.policy": 0.5, "lr": 1e-3, "grad_norm": float("nan")},
        )  # fmt: skip
        run.report("modelpool", POOL, model=ref(second))
    found = status(run)
    assert found["phase"] == "running"
    assert found["verdict"]["kind"] == "actor-bound"
    assert found["verdict"]["learner_waits_data"] == pytest.approx(0.7)
    assert found["verdict"]["actor_waits_credit"] == pytest.approx(0.1)
    assert found["throughput"]["env_steps_per_s"] == pytest.approx(200)
    assert found["throughput"]["frames_per_s"] == pytest.approx(800)
    assert found["throughput"]["consumed_rows_per_s"] == pytest.approx(200)
    assert found["throughput"]["updates_per_s"] == pytest.approx(2)
    assert found["totals"]["env_steps"] == 2000
    assert found["lag"] == {"mean": 1.1, "p95": 2.0, "max": 2.0}
    assert found["train_return"] == {"mean": 42.0, "episodes": 100}
    assert found["policies"]["main"]["ref"]["version"] == 10
    (actor,) = found["roles"]["actor"]
    assert (actor["index"], actor["boot"], actor["env_steps_per_s"]) == (0, boot(ACTOR), 200)
    curves = scalars(found, run.manager.seen[boot(LEARNER)].gauges)
    assert curves["loss/policy"] == 0.5
    assert curves["learner/lr"] == 1e-3
    assert curves["return/train"] == 42
    assert "learner/grad_norm" not in curves, "not a number is not a point"
    assert msgspec.json.decode(encode(found))["run"] == "r"


def test_numbers_that_json_lacks_become_null(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, gauges={"train_return": float("inf")})
    assert status(run)["train_return"]["mean"] is None
    assert b"Infinity" not in encode(status(run))


def test_a_learner_that_stands_still_is_a_problem(run: Run) -> None:
    everybody(run)
    builder = StatusBuilder(run.manager, cores=8)
    run.learn(LEARNER, rows=100, version=1)
    builder.build()
    run.after(40, ("learner", LEARNER), ("actor", ACTOR), ("modelpool", POOL))
    problems = builder.build()["problems"]
    assert any("no update for 40 s although 1 actors run" in problem["text"] for problem in problems)
