"""Actors that play otherwise than all others, from their reports to the status."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import ValidationError, msgpack

from rlctl_agents.manager.accounting.outliers import SLICE_S
from rlctl_agents.types.control import Hello, Origin, Report
from rlctl_agents.types.figures import MAX_SHARES, Moments
from tests.manager.world import UID, Run, boot, everybody, status
from tests.support.fleet import Simulated, normal, plateau

ACTORS = 6


def played(run: Run, fleet: list[Simulated], slices: int) -> list[dict[str, str]]:
    """The actors play and report each second; the problems that name one of them then."""
    rng = np.random.default_rng(2)
    everybody(run)
    for one in fleet:
        run.join("actor", 20 + one.number, one.number, origin=one.origin)
    for now in range(slices):
        for one in fleet:
            one.play(rng, normal, plateau, float(now))
            actor = one.actor()
            gauges = {"epsilon": actor.epsilon}
            run.report("actor", 20 + one.number, figures=list(actor.figures), gauges=gauges)
        run.after(SLICE_S + 0.5, *(("actor", 20 + one.number) for one in fleet))
    return [problem for problem in status(run)["problems"] if "otherwise" in problem["text"]]


def fleet_of(count: int = ACTORS) -> list[Simulated]:
    return [Simulated(number, Origin(f"node-{number % 3}", "sha256:1")) for number in range(count)]


def test_a_broken_actor_is_a_problem_with_the_command_that_shows_its_log(run: Run) -> None:
    fleet = fleet_of()
    fleet[4].change = lambda figures: figures * (0.3, 1.0, 1.0, 1.0)
    (problem,) = played(run, fleet, 6)
    assert problem["text"].startswith(
        "actor/4 (node node-1, image sha256:1) plays otherwise than the 5 others: returns "
    )
    assert problem["next"] == "rlctl logs actor/4 --run r"


def test_a_broken_node_is_one_problem(run: Run) -> None:
    fleet = fleet_of()
    for one in fleet[2::3]:
        one.change = lambda figures: figures * (0.3, 1.0, 1.0, 1.0)
    (problem,) = played(run, fleet, 6)
    assert problem["text"].startswith("all 2 actors of node node-2, such as actor/2 (node node-2, image sha256:1),")


def test_of_actors_that_play_alike_nothing_is_said(run: Run) -> None:
    assert played(run, fleet_of(), 6) == []


def test_an_actor_that_explores_more_by_design_is_not_told(run: Run) -> None:
    fleet = fleet_of()
    fleet[4] = Simulated(4, fleet[4].origin, epsilon=0.4, handicap=0.75)
    assert played(run, fleet, 6) == []


def test_an_actor_that_has_gone_is_not_told_any_more(run: Run) -> None:
    fleet = fleet_of()
    fleet[4].change = lambda figures: figures * (0.3, 1.0, 1.0, 1.0)
    assert played(run, fleet, 6)
    others = [("actor", 20 + number) for number in range(ACTORS) if number != 4]
    run.after(2 * SLICE_S, *others)
    assert [one for one in status(run)["problems"] if "otherwise" in one["text"]] == []


@pytest.mark.parametrize(
    "message",
    [
        Report("actor", boot(1), 1, figures=[Moments()] * (MAX_SHARES + 3)),
        Hello("actor", boot(1), 0, UID, origin=Origin("n" * 254)),
        Hello("actor", boot(1), 0, UID, origin=Origin("n", "i" * 1001)),
    ],
)
def test_what_an_actor_says_of_itself_is_bounded(message: Report | Hello) -> None:
    with pytest.raises(ValidationError):
        msgpack.decode(msgpack.encode(message), type=type(message))
