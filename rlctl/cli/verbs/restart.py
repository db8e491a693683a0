"""`rlctl restart`: stop a role in good order and start it again."""

from __future__ import annotations

from typing import Annotated

import typer

from rlctl.cli.apply.applied import follow
from rlctl.cli.context import World
from rlctl.cli.options import RunOption, TakeOver, Target, complete_role, verb
from rlctl.cli.run.target import find, require_role, require_running


@verb("namespace", "context")
def restart(
    world: World,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="As in learner.", autocompletion=complete_role)],
    run: RunOption = None,
    target: Target = None,
    force_conflicts: TakeOver = False,
) -> int:
    """Stop a role in good order and start it again.

    A learner goes on from its newest generation; the other roles do not stop.
    """
    backend, state = find(world, run, target)
    require_role(state, role)
    require_running(state, "has something to restart")
    backend.force_conflicts = force_conflicts
    done = follow(world, backend.restart(state.run, role))
    if role == "learner":
        world.say(f"  it goes on from its newest generation; `rlctl status {state.run}` says from which")
    world.document({"run": state.run, "role": role, "applied": done})
    return 0
