"""State that outlives a learner or a manager: lineages, generations, books, totals; and its place in the status."""

from __future__ import annotations

from typing import Any

from rlctl_agents.manager.timing import EXPIRES_S
from rlctl_agents.types.control import Account
from rlctl_agents.types.experience import Ledger
from tests.manager.world import ACTOR, LEARNER, Run, boot, commit, everybody, kinds, status


def test_each_learner_boot_opens_a_lineage_and_hears_of_the_generations(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=1000)
    commit(run, 2, steps=2000)
    run.manager.store()
    lease = run.join("learner", 22, prefer=0)
    assert lease.next_lineage == 2
    assert [one.number for one in lease.generations] == [2, 1]
    run.start()
    assert run.join("learner", 22).next_lineage == 2, "the same boot, the same lineage"
    assert run.join("learner", 23).next_lineage == 3


def test_status_says_from_where_a_learner_went_on_and_steps_go_back_to_there(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=9000, version=90)
    commit(run, 1, steps=7000)
    run.join("learner", 22, prefer=0)
    gauges = {"steps": 7100.0, "resumed_generation": 1.0}
    run.learn(22, steps=100, version=71, lineage=2, gauges=gauges)
    run.learn(22, steps=100, version=71, lineage=2, gauges=gauges)
    found = status(run)
    assert found["resumed"] == {
        "number": 1, "steps": 7000, "text": "learner 0 went on from generation 1: version 10, 7000 steps",
    }  # fmt: skip
    assert found["policies"]["main"]["steps"] == 7100
    assert found["totals"]["consumed_steps"] == 7100, "what was learned and forgotten is not in the weights"
    assert found["totals"]["updates"] == 71
    assert kinds(run).count("resumed") == 1
    assert run.manager.evaluations.undrawn == [(7000, None)]


def test_who_followed_a_learner_that_resumed_is_not_told_of_as_resumed_when_it_leads_later(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=1000)
    run.join("learner", 22, prefer=0)
    run.join("learner", 23, prefer=1)
    gauges = {"steps": 1000.0, "resumed_generation": 1.0, "group": 1.0, "world": 2.0}
    run.learn(23, steps=0, version=10, lineage=2, gauges=gauges | {"rank": 1.0})
    assert kinds(run).count("resumed") == 0
    run.learn(22, steps=0, version=10, lineage=2, gauges=gauges | {"rank": 0.0})
    assert kinds(run).count("resumed") == 1
    gauges |= {"steps": 1500.0, "group": 2.0, "rank": 0.0}
    run.learn(23, steps=500, version=15, lineage=2, gauges=gauges)
    assert kinds(run).count("resumed") == 1


def test_a_learner_that_found_the_newest_generation_damaged_says_which_it_took(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=1000)
    commit(run, 2, steps=2000)
    run.join("learner", 22, prefer=0)
    run.learn(22, steps=0, version=10, lineage=2, gauges={"steps": 1000.0, "resumed_generation": 1.0})
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
    commit(run, 1, steps=1000)
    run.join("learner", 22, prefer=0)
    run.learn(22, steps=0, version=10, lineage=2, gauges={"steps": 1000.0, "resumed_generation": 1.0})
    run.join("learner", 23, prefer=0)
    assert status(run)["resumed"] is None
    run.learn(23, steps=0, version=10, lineage=3, gauges={"steps": 1000.0, "resumed_generation": 1.0})
    assert status(run)["resumed"]["number"] == 1


def test_status_says_nothing_of_resuming_until_the_learner_has_reported_to_the_present_manager(run: Run) -> None:
    everybody(run)
    commit(run, 1, steps=1000)
    run.join("learner", 22, prefer=0)
    gauges = {"steps": 1000.0, "resumed_generation": 1.0}
    run.learn(22, steps=0, version=10, lineage=2, gauges=gauges)
    run.manager.store()
    run.start()
    assert status(run)["resumed"] is None, "it may be gone, with everybody else"
    run.join("learner", 22)
    assert status(run)["resumed"] is None
    run.learn(22, steps=0, version=10, lineage=2, gauges=gauges)
    assert status(run)["resumed"]["number"] == 1, "only the manager was started anew"
    run.manager.store()
    run.start()
    run.join("learner", 23, prefer=0)
    run.report("actor", ACTOR)
    assert status(run)["resumed"] is None
    run.learn(23, steps=0, version=10, lineage=3, gauges=gauges)
    assert status(run)["resumed"]["number"] == 1


def test_without_its_progress_a_run_goes_on_from_the_newest_generation(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=9000, version=90)
    commit(run, 1, steps=7000)
    run.manager.store()
    for path in run.layout.results.glob("progress.json*"):
        path.unlink()
    run.start()
    assert run.manager.learners.steps("main") == 7000
    assert run.join("learner", 22).next_lineage > 100, "nobody knows which lineages were given away"


def test_torn_progress_and_term_do_not_end_the_run(run: Run) -> None:
    everybody(run)
    run.learn(LEARNER, steps=900, version=9)
    run.manager.store()
    run.manager.store()
    (run.layout.results / "progress.json").write_bytes(b"\0" * 9)
    (run.layout.run / "term").write_bytes(b"\0")
    run.start()
    assert run.manager.learners.steps("main") == 900
    assert run.manager.life.term > 100
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
        "in_flight": 20, "discarded": 0, "balanced": True,
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
    assert run.manager.members.leases.is_buried(boot(ACTOR))
    assert status(run)["policies"]["main"]["ledger"] == ledger, "closed books are sums"


class Told:
    """One actor's rows, as learners account for them, and what the status tells then."""

    def __init__(self, run: Run) -> None:
        self.run, self.consumed = run, dict[int, int]()
        everybody(run)

    def learn(self, number: int, consumed: int, base: int, steps: int, **gauges: float) -> dict[str, Any]:
        """A learner has consumed so many rows; its weights are of so many steps, and began with `base` rows."""
        self.consumed[number] = consumed
        ledger = Ledger(sum(self.consumed.values()), 0, consumed)
        self.run.learn(
            number, steps=consumed, version=steps // 100, lineage=number,
            gauges={"steps": steps, **({} if base < 0 else {"base_rows": base}), **gauges},
            accounts={boot(ACTOR): Account(ledger, received=consumed, consumed=consumed)},
        )  # fmt: skip
        found = status(self.run)
        books = found["policies"]["main"]["ledger"]
        assert books["balanced"], found["problems"]
        return {**books, "steps": found["totals"]["consumed_steps"], "updates": found["totals"]["updates"]}


SEEDED = -1
"""As base: it has its weights from another learner."""


def test_what_a_learner_took_with_it_is_discarded_and_what_is_consumed_is_in_the_weights(run: Run) -> None:
    told = Told(run)
    assert told.learn(LEARNER, 6186, 0, 6000)["discarded"] == 0
    commit(run, 1, steps=3500)  # 3613 rows with those after an episode's end
    run.join("learner", 22, prefer=0)
    dead = told.learn(22, 0, 3613, 3500)
    assert (dead["consumed"], dead["discarded"], dead["produced"]) == (3613, 2573, 6186)
    assert (dead["steps"], dead["updates"]) == (3500, 35)
    on = told.learn(22, 1000, 3613, 4470)
    assert (on["consumed"], on["discarded"], on["produced"], on["steps"]) == (4613, 2573, 7186, 4470)


def test_a_learner_that_died_before_its_first_generation_leaves_nothing(run: Run) -> None:
    told = Told(run)
    told.learn(LEARNER, 900, 0, 880)
    run.join("learner", 22, prefer=0)
    found = told.learn(22, 50, 0, 49)
    assert (found["consumed"], found["discarded"], found["steps"]) == (50, 900, 49)
    run.join("learner", 23, prefer=0)
    found = told.learn(23, 10, 0, 10)
    assert (found["consumed"], found["discarded"], found["steps"]) == (10, 950, 10), "over all deaths"


def test_a_learner_that_stopped_in_good_order_discards_nothing(run: Run) -> None:
    told = Told(run)
    told.learn(LEARNER, 900, 0, 880)
    commit(run, 1, steps=880)
    run.join("learner", 22, prefer=0)
    found = told.learn(22, 0, 900, 880)
    assert (found["consumed"], found["discarded"]) == (900, 0)
    run.join("learner", 23, prefer=0)
    assert told.learn(23, 0, 950, 930)["discarded"] == 0, "the one before could not tell of its last 50 rows"


def test_what_was_discarded_outlives_managers_and_closed_books(run: Run) -> None:
    told = Told(run)
    told.learn(LEARNER, 900, 0, 880)
    run.join("learner", 22, prefer=0)
    told.learn(22, 50, 0, 49)
    run.manager.store()
    run.start()
    run.join("actor", ACTOR)
    run.join("learner", 22)
    assert told.learn(22, 60, 0, 58)["discarded"] == 900
    run.after(300, ("learner", 22))
    assert run.manager.members.leases.is_buried(boot(LEARNER))
    run.manager.store()
    run.start()
    run.join("learner", 22)
    found = told.learn(22, 60, 0, 58)
    assert (found["consumed"], found["discarded"]) == (60, 900)


def test_learners_that_step_together_go_on_without_one_of_them_and_discard_nothing(run: Run) -> None:
    told = Told(run)
    run.join("learner", 23, prefer=1)
    group = {"group": 1.0, "world": 2.0}
    told.learn(23, 400, SEEDED, 800, rank=1.0, **group)
    told.learn(LEARNER, 400, 0, 800, rank=0.0, **group)
    run.join("learner", 22, prefer=0)  # the one of rank 0 was killed; who is new gets the weights of the other
    group["group"] = 2.0
    told.learn(23, 500, SEEDED, 900, rank=1.0, **group)
    found = told.learn(22, 50, SEEDED, 950, rank=0.0, **group)
    assert (found["consumed"], found["discarded"]) == (950, 0)
    run.join("learner", 24, prefer=0)  # all die
    run.join("learner", 25, prefer=1)
    group["group"] = 3.0
    told.learn(25, 30, SEEDED, 430, rank=1.0, **group)
    found = told.learn(24, 20, 400, 450, rank=0.0, **group)
    assert (found["consumed"], found["discarded"]) == (450, 550)


def test_a_late_word_of_a_learner_that_was_replaced_begins_nothing(run: Run) -> None:
    told = Told(run)
    told.learn(LEARNER, 900, 0, 880)
    run.after(EXPIRES_S + 1, ("actor", ACTOR))
    run.join("learner", 22, prefer=0)
    told.learn(22, 50, 0, 49)
    assert told.learn(LEARNER, 910, 0, 890)["discarded"] == 910
    assert told.learn(22, 60, 0, 58)["discarded"] == 910


def test_a_learner_that_waits_for_its_place_begins_nothing(run: Run) -> None:
    told = Told(run)
    told.learn(LEARNER, 900, 0, 880)
    run.join("learner", 22, prefer=1)
    assert told.learn(22, 0, 0, 0, rank=-1.0, world=0.0)["discarded"] == 0


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
