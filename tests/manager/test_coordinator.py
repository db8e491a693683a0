"""The manager without sockets: hello, reports, evaluations, generations, the end."""

from __future__ import annotations

import json

import pytest

from rlctl_agents.manager.timing import EXPIRES_S
from rlctl_agents.types.control import EvalResult, Hello, Reply
from tests.manager.world import (
    ACTOR,
    JUDGE,
    LEARNER,
    POOL,
    Run,
    boot,
    commit,
    evaluate,
    everybody,
    experience,
    kinds,
    order_evaluation,
    ref,
    status,
)


def test_a_lease_says_everything_that_a_process_needs(run: Run) -> None:
    pool, actor, learner = run.join("modelpool", POOL), run.join("actor", ACTOR), run.join("learner", LEARNER)
    assert pool.bind.keys() == {"rpc", "notice"}
    assert actor.match is not None
    assert actor.match.learn == (0,)
    assert set(actor.peers) == {"learner/0", "modelpool/0"}
    assert actor.term == 1
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


def test_refusals_that_alternate_are_told_once_a_minute_each(run: Run) -> None:
    for _ in range(70):
        for uid in ("cd" * 16, "ef" * 16):
            with pytest.raises(ValueError, match="not of"):
                run.manager.hello(Hello("actor", boot(9), 0, uid))
        run.time.now += 1
    assert kinds(run).count("refused") == 4


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


def test_a_new_learner_lets_actors_of_its_spec_in_beside_those_of_the_former_one(run: Run) -> None:
    everybody(run)
    with pytest.raises(ValueError, match="actor/1 does not fit actor/0: segments of 10 steps instead of 20"):
        run.join("actor", 33, prefer=1, experience=experience(steps=10))
    assert run.join("learner", 34).experience == experience(steps=20)
    assert run.join("learner", 34, experience=experience(steps=10)).experience == experience(steps=10)
    run.join("actor", 33, prefer=1, experience=experience(steps=10))
    assert run.report("actor", 33).known
    orders = run.report("actor", ACTOR)
    assert (orders.known, orders.stop) == (False, False), "its pod ends once that of the new actor is ready"
    with pytest.raises(ValueError, match="actor/0 does not fit learner/0: segments of 20 steps instead of 10"):
        run.join("actor", ACTOR)


def test_the_first_actor_that_a_new_manager_hears_does_not_decide_the_experience(run: Run) -> None:
    everybody(run)
    run.manager.store()
    run.start()
    with pytest.raises(ValueError, match="does not fit actor/0: spaces"):
        run.join("actor", 33, prefer=1, experience=experience(width=9))
    run.join("evaluator", JUDGE)
    run.join("actor", ACTOR)


def test_peers_are_issued_again_when_they_change(run: Run) -> None:
    everybody(run)
    assert set(run.report("actor", ACTOR).peers) == {"learner/0", "modelpool/0"}
    run.join("modelpool", 11, prefer=1)
    run.manager.turn()
    assert set(run.report("actor", ACTOR).peers) == {"learner/0", "modelpool/1"}
    assert set(run.report("learner", LEARNER).peers) == {"modelpool/0"}
    assert set(run.report("modelpool", 11).peers) == {"modelpool/0"}
    assert set(run.report("evaluator", JUDGE).peers) == {"modelpool/0"}


def test_what_is_measured_is_what_the_first_modelpool_holds_whatever_the_others_have(run: Run) -> None:
    everybody(run)
    run.join("modelpool", 11, prefer=1)
    run.report("modelpool", 11, model=ref(30))
    assert run.manager.members.published is None
    run.report("modelpool", POOL, model=ref(40))
    match = run.report("evaluator", JUDGE).match
    assert match is not None
    assert match.seats == {0: ref(40)}


def test_a_silent_process_loses_its_lease(run: Run) -> None:
    everybody(run)
    run.after(EXPIRES_S + 1, ("learner", LEARNER), ("modelpool", POOL))
    assert [one.role for one in run.manager.members.leases.live()] == ["learner", "modelpool"]
    assert kinds(run).count("gone") == 2


def test_an_evaluation_is_of_a_model_that_the_pool_holds_and_counts_its_steps(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    match = order_evaluation(run, 40)
    assert match is not None
    assert match.seats == {0: ref(40)}
    assert evaluate(run, 40, 10.0, 30.0) == Reply(True)
    newest = status(run)["evaluation"]
    assert (newest["mean"], newest["steps"], newest["episodes"]) == (20, 4000, 2)
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


def test_generations_are_ordered_in_time_and_the_learner_is_told_until_it_is_done(run: Run) -> None:
    everybody(run)
    assert run.learn(LEARNER, steps=640, version=1).checkpoint == 0
    run.manager.turn()
    run.after(61, ("learner", LEARNER), ("actor", ACTOR))
    assert run.learn(LEARNER, steps=6400, version=10).checkpoint == 1
    assert commit(run, 1, steps=6400).ok
    assert run.learn(LEARNER, steps=7000, version=11).checkpoint == 0
    assert status(run)["checkpoint"]["steps"] == 6400


def test_of_learners_that_all_save_at_the_end_the_newest_weights_count_once(run: Run) -> None:
    everybody(run)
    assert commit(run, 1).ok
    late = commit(run, 2, version=9)
    assert (late.ok, late.why) == (True, "generation 1 has these weights or newer ones")
    assert [one.number for one in run.manager.checkpoints.manifests.of("main")] == [1]
    assert commit(run, 2, version=11).ok, "it has learned more"
    number = run.manager.order_checkpoint()
    assert commit(run, number, version=11).ok
    assert [one.number for one in run.manager.checkpoints.manifests.of("main")] == [3, 2], "what is ordered is done"


def test_a_last_generation_under_a_used_number_gets_the_next_and_older_weights_never_come_after_newer(run: Run) -> None:
    everybody(run)
    assert commit(run, 5, version=30).ok
    assert commit(run, 1, version=40).ok, "who leads is dead, and this one has not heard of its generations"
    newest = run.manager.checkpoints.manifests.newest("main")
    assert newest is not None
    assert (newest.number, newest.ref.version) == (6, 40)
    number = run.manager.order_checkpoint()
    assert commit(run, number, version=39).why == "generation 6 has these weights or newer ones"
    assert run.manager.checkpoints.wanted("main") == number, "older ones are not what was ordered"
    assert commit(run, number, version=45).ok
    fenced = commit(run, 20, version=99, lineage=0)
    assert not fenced.ok
    assert "is of a lineage before that of generation 7" in fenced.why


def test_old_generations_are_removed(run: Run) -> None:
    everybody(run)
    for number in (1, 2, 3, 4):
        assert commit(run, number, steps=number).ok
    assert sorted(path.name for path in run.layout.checkpoints.glob("generation-*")) == [
        "generation-000003.json",
        "generation-000004.json",
    ]


def test_the_part_of_a_refused_generation_is_removed_with_the_next_commit(run: Run) -> None:
    everybody(run)
    assert commit(run, 1).ok
    assert not commit(run, 2, term=7).ok
    assert commit(run, 3).ok
    left = sorted(path.name for path in run.layout.checkpoints.glob("*.safetensors"))
    assert [name[5:11] for name in left] == ["000001", "000003"]
    assert status(run)["problems"] == []


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


def test_lines_of_processes_without_a_volume_are_remembered(run: Run) -> None:
    everybody(run)
    run.report("actor", ACTOR, log=['{"msg": "one"}', '{"msg": "two"}'])
    lines = run.manager.members.lines
    assert lines.since(1) == (['{"msg": "two"}'], 2)
    run.report("actor", ACTOR, log=['{"msg": "two"}', '{"msg": "three"}'], log_from=1)  # sent before the reply came
    assert lines.since(2) == (['{"msg": "three"}'], 3)
    run.report("actor", ACTOR, log=['{"msg": "nine"}'], log_from=8)  # five that were dropped on the way
    assert lines.since(3) == (['{"msg": "nine"}'], 4)
