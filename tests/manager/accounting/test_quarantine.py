"""A sender with values that the learner does not take, in the status and the events of its run."""

from __future__ import annotations

from typing import Any

from rlctl_agents.manager.membership.leases import BURIED_AFTER_S, LEAVING_S
from rlctl_agents.types.control import Account, Origin
from rlctl_agents.types.experience import Ledger
from tests.manager.world import ACTOR, LEARNER, POOL, Run, boot, kinds, status

FAULT = "obs holds nan in 4 of 80 places"
HERE = Origin("node-7", "registry.example/actor@sha256:abc")
NEXT = 10
"""Number of the boot that comes after the quarantined one."""


def bad(rows: int = 100) -> Account:
    return Account(Ledger(rows, 0, rows), received=rows, consumed=rows - 60, invalid=60, fault=FAULT)


def quarantined(run: Run, *numbers: int) -> None:
    """These actors have sent what cannot be; the learner says so."""
    run.report("learner", LEARNER, accounts={boot(number): bad() for number in numbers})


def started(run: Run, **values: Any) -> None:
    run.join("modelpool", POOL)
    run.join("learner", LEARNER)
    run.join("actor", ACTOR, 3, origin=HERE, **values)


def texts(run: Run) -> list[str]:
    return [problem["text"] for problem in status(run)["problems"]]


def said(run: Run) -> list[str]:
    return [event["text"] for event in run.manager.events.since(0)[0] if event["kind"] == "quarantined"]


def test_a_quarantined_actor_is_a_problem_with_index_image_node_and_what_was_wrong(run: Run) -> None:
    started(run)
    quarantined(run, ACTOR)
    (problem,) = status(run)["problems"]
    assert problem["text"] == (
        "actor/3 (node node-7, image registry.example/actor@sha256:abc) sends values that cannot be, and is not "
        f"learned from until it is started anew: {FAULT}"
    )
    assert problem["next"] == "rlctl logs actor/3 --level WARNING --run r"


def test_it_is_told_as_an_event_once_although_every_report_says_it_and_the_manager_starts_anew(run: Run) -> None:
    started(run)
    for _ in range(3):
        quarantined(run, ACTOR)
    run.manager.store()
    assert len(said(run)) == 1
    assert said(run)[0].startswith("actor/3 (node node-7")
    run.start()
    started(run)
    quarantined(run, ACTOR)
    assert said(run) == []
    assert len(texts(run)) == 1, "and is a problem still"


def test_rows_of_a_quarantined_actor_are_invalid_and_the_books_balance(run: Run) -> None:
    started(run)
    run.report("actor", ACTOR, sent={boot(LEARNER): Ledger(130, 0, 120)}, pending=10)
    quarantined(run, ACTOR)
    ledger = status(run)["policies"]["main"]["ledger"]
    assert (ledger["produced"], ledger["consumed"], ledger["invalid"], ledger["in_flight"]) == (130, 40, 60, 30)
    assert ledger["balanced"]


def test_an_actor_that_is_started_anew_again_and_again_stays_a_problem_that_says_so(run: Run) -> None:
    started(run)
    quarantined(run, ACTOR)
    for life in range(3):
        number = NEXT + life
        run.join("actor", number, 3, origin=HERE)
        assert len(texts(run)) == 1, "also before the new one has sent anything"
        quarantined(run, *range(NEXT, number + 1), ACTOR)
    assert len(said(run)) == 4
    (text,) = texts(run)
    assert text.endswith(f"{FAULT} (the same of 3 before it)")


def test_after_an_actor_that_was_mended_the_problem_ends(run: Run) -> None:
    started(run)
    quarantined(run, ACTOR)
    run.join("actor", NEXT, 3, origin=HERE)
    (text,) = texts(run)
    assert "has ended after it had sent values that cannot be" in text
    run.after(BURIED_AFTER_S + 2 * LEAVING_S, ("actor", NEXT), ("learner", LEARNER), ("modelpool", POOL))
    assert [text for text in texts(run) if "values" in text] == []
    assert kinds(run).count("quarantined") == 1, "the event stays"


def test_of_many_quarantined_actors_five_are_named_and_the_others_counted(run: Run) -> None:
    started(run)
    for number in range(20, 28):
        run.join("actor", number, number)
    quarantined(run, *range(20, 28))
    found = texts(run)
    assert len(found) == 6
    assert found[-1] == "3 more processes send values that cannot be"


def test_that_a_quarantined_actor_asks_again_is_no_problem_of_its_own(run: Run) -> None:
    started(run)
    for second in range(6):
        run.time.now += 1.0
        run.report(
            "learner", LEARNER, accounts={boot(ACTOR): bad()}, counters={"rejected.values": 1.0 + second}
        )  # fmt: skip
    assert [text for text in texts(run) if "rejects" in text] == []


def test_control_characters_of_a_stranger_reach_no_terminal(run: Run) -> None:
    started(run)
    run.join("actor", NEXT, 4, origin=Origin("\x1b[2J", "x\r\ny"))
    quarantined(run, NEXT)
    (text,) = texts(run)
    assert text.startswith("actor/4 (node ?[2J, image x??y)")
