"""`rlctl scale`: another number of replicas, without a restart of those that stay."""

from __future__ import annotations

from typing import Annotated

import typer

from rlctl.cli.context import World
from rlctl.cli.options import RunOption, TakeOver, Target, complete_scale, verb
from rlctl.cli.run.applied import follow
from rlctl.cli.run.force import force
from rlctl.cli.run.prepare import stored_spec
from rlctl.cli.run.target import find, require_role, require_running
from rlctl.errors import Conflict, UsageError


@verb("namespace", "context")
def scale(
    world: World,
    roles: Annotated[
        list[str],
        typer.Argument(metavar="ROLE=N", help="Replicas wanted, as in actor=6.", autocompletion=complete_scale),
    ],
    run: RunOption = None,
    target: Target = None,
    force_conflicts: TakeOver = False,
) -> int:
    """Change how many replicas of a role run.

    Restarts nothing, and holds until the spec's own number changes. More than roles.actor.max_replicas of the
    spec is refused (exit 5).
    """
    wanted = [_parsed(text) for text in roles]
    from rlctl.plan import max_actors, why_not_scale

    backend, state = find(world, run, target)
    require_running(state, "can be scaled")
    spec = stored_spec(state)
    for role, _ in wanted:
        require_role(state, role)
    if why := why_not_scale(spec, dict(wanted), state.replicas):
        raise Conflict(
            f"run {state.run} cannot be scaled so:\n" + "\n".join(f"  {reason}" for reason in why),
            hint=_way_out(wanted, stored_limit=max_actors(spec)),
            objects=tuple(role for role, _ in wanted),
        )
    force(backend, force_conflicts)
    done = follow(world, backend.scale(state.run, dict(wanted)))
    for role, replicas in wanted:
        if state.replicas[role] == replicas:
            world.data(f"{role}: {replicas}, unchanged")
        else:
            said = state.spec_replicas.get(role)
            world.data(f"{role}: {state.replicas[role]} -> {replicas}")
            world.say(f"  holds until the spec says something else than {said}")
    world.document(
        {
            "run": state.run,
            "from": {role: state.replicas[role] for role, _ in wanted},
            "to": dict(wanted),
            "applied": done,
        }
    )
    return 0


def _way_out(wanted: list[tuple[str, int]], *, stored_limit: int) -> str:
    more = [replicas for role, replicas in wanted if role == "actor" and replicas > stored_limit]
    return f"rlctl up SPEC --set roles.actor.max_replicas={max(more)}, then scale again" if more else ""


def _parsed(text: str) -> tuple[str, int]:
    role, equals, number = text.partition("=")
    if not equals or not role or not number.isascii() or not number.isdigit():
        raise UsageError(f"{text!r} is not ROLE=N", hint="as in: rlctl scale actor=6")
    return role, int(number)
