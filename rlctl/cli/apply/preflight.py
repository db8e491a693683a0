"""Refusals of `up` and of its dry run before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlctl.cli.apply import spec_check
from rlctl.cli.context import World
from rlctl.cli.display import checks
from rlctl.cli.run.prepare import Prepared
from rlctl.cli.run.snapshot import take
from rlctl.errors import Conflict

if TYPE_CHECKING:
    from rlctl.backends.base import Check
    from rlctl.probe import Probing


def nothing_to_do(prepared: Prepared) -> bool:
    """Whether the run has finished, and the spec asks for nothing more."""
    state = prepared.state
    return state is not None and state.phase == "finished" and not prepared.changes


def preflight(world: World, prepared: Prepared, asked: Probing | None) -> list[Check]:
    """Preflight checks. The environment is not tried when nothing new would be started.

    Raises:
        SpecError, Conflict: a check found a problem; nothing was sent.
    """
    as_before = prepared.state is not None and not prepared.changes
    if any(change.path == "stop.eval_return" for change in prepared.changes):
        _require_measurable(world, prepared)
    running = prepared.state is not None and prepared.state.phase == "running"
    found = []
    if asked is not None and not (as_before and running):
        probed = asked.answer()
        spec_check.refuse(world, prepared.loaded, probed)
        found += spec_check.as_checks(prepared.loaded, probed)
    found += checks.preflight(world, prepared)
    shown = [check for check in found if not as_before or check.verdict in ("problem", "warning")]
    for line in checks.as_lines(shown, "  "):
        world.say(line)
    checks.refuse(prepared.plan.run, found)
    return found


def _require_measurable(world: World, prepared: Prepared) -> None:
    """Refuse a goal that the manager would refuse after the documents were sent.

    Raises:
        Conflict: an evaluation of the run cannot say whether stop.eval_return is reached.
    """
    run, goal = prepared.plan.run, prepared.spec.stop.eval_return
    snapshot = None if goal is None else take(world, prepared.backend, run)
    if snapshot is not None and snapshot.seats > 1:
        raise Conflict(
            f"stop.eval_return cannot be judged: the environment of {run} has {snapshot.seats} seats, and an "
            "evaluation has one model on all of them",
            hint="stop by stop.agent_steps or stop.wall_time",
            objects=(run,),
        )
