"""Tickets that the manager gives to actors and learners, so that experience is taken of leased boots only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlctl_agents.manager.coordinator import Coordinator
from rlctl_agents.manager.membership.admission import LEASED_S
from tests.manager.world import ACTOR, LEARNER, Run, boot, everybody

UNIX = 1.7e9


class Keyed(Run):
    """Its manager has keys."""

    def start(self, **more: Any) -> Coordinator:
        return super().start(ticket=lambda boot, made_s: f"{boot} {made_s}", **more)


def test_an_actor_has_a_ticket_with_its_lease_and_a_newer_one_with_each_report(tmp_path: Path) -> None:
    run = Keyed(tmp_path)
    assert run.join("actor", ACTOR).ticket == f"{boot(ACTOR)} {int(UNIX + run.time.now)}"
    run.time.now += 7
    assert run.report("actor", ACTOR).ticket == f"{boot(ACTOR)} {int(UNIX + run.time.now)}"


def test_others_have_none_and_a_boot_without_a_lease_gets_none(tmp_path: Path) -> None:
    run = Keyed(tmp_path)
    assert run.join("learner", LEARNER).ticket == run.report("learner", LEARNER).ticket == ""
    assert run.report("actor", ACTOR).ticket == ""
    run.join("actor", ACTOR)
    run.after(60, ("learner", LEARNER))
    assert run.report("actor", ACTOR).ticket == "", "its lease is over"


def test_a_learner_hears_which_tickets_are_too_old(tmp_path: Path) -> None:
    run = Keyed(tmp_path)
    everybody(run)
    run.after(LEASED_S, ("learner", LEARNER), ("actor", ACTOR))
    expected = int(UNIX + run.time.now - LEASED_S)
    assert run.report("learner", LEARNER).leased_since_s == run.join("learner", LEARNER).leased_since_s == expected
    assert run.report("actor", ACTOR).leased_since_s == 0


def test_after_a_restart_of_the_manager_no_ticket_is_too_old_until_all_have_reported(tmp_path: Path) -> None:
    run = Keyed(tmp_path)
    everybody(run)
    run.after(LEASED_S, ("learner", LEARNER), ("actor", ACTOR))
    run.manager.store()
    run.time.now += 3600
    run.start()
    assert run.join("learner", LEARNER).leased_since_s == 0
    run.after(LEASED_S - 2, ("learner", LEARNER), ("actor", ACTOR))
    assert run.report("learner", LEARNER).leased_since_s == 0
