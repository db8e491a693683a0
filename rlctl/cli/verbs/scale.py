"""`rlctl scale`: another number of replicas, without a restart of those that stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.apply.applied import follow
from rlctl.cli.context import ON_CLUSTERS, Signalled, World
from rlctl.cli.options import RunOption, TakeOver, Target, complete_scale, verb
from rlctl.cli.run.prepare import stored_spec
from rlctl.cli.run.target import find, require_role, require_running
from rlctl.errors import Conflict, RlctlError, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState
    from rlctl.spec.schema import Spec


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
    spec is refused (exit 5); so are so few shards of a replay that one would not fit into roles.replay.memory, and on
    one machine more of them than fit into its memory.
    """
    wanted: dict[str, int] = {}
    for role, count in map(_parsed, roles):
        if wanted.setdefault(role, count) != count:
            raise UsageError(f"{role} is given twice: {wanted[role]} and {count}", hint="name each role once")
    from rlctl.changes import FEWER_SHARDS, why_not_scale
    from rlctl.spec.fields import max_actors

    backend, state = find(world, run, target)
    require_running(state, "can be scaled")
    spec = stored_spec(state)
    for role in wanted:
        require_role(state, role)
    if why := why_not_scale(spec, wanted, state.replicas) or _unfit_shards(world, backend, state, spec, wanted):
        raise Conflict(
            f"run {state.run} cannot be scaled so:\n" + "\n".join(f"  {reason}" for reason in why),
            hint=_way_out(wanted, stored_limit=max_actors(spec)),
            objects=tuple(wanted),
        )
    backend.force_conflicts = force_conflicts
    for note in _memory_notes(state, spec, wanted):
        world.say(f"note: {note}")
    try:
        done = follow(world, backend.scale(state.run, wanted))
    except KeyboardInterrupt:
        raise Signalled(130, f"left {state.run} half scaled; the same command goes on") from None
    for role, replicas in wanted.items():
        if state.replicas[role] == replicas:
            world.data(f"{role}: {replicas}, unchanged")
        else:
            said = state.spec_replicas.get(role)
            world.data(f"{role}: {state.replicas[role]} -> {replicas}")
            world.say(f"  holds until the spec says something else than {said}")
            if role == "replay" and replicas < state.replicas[role]:
                world.say(f"  {FEWER_SHARDS}")
    world.document(
        {
            "run": state.run,
            "from": {role: state.replicas[role] for role in wanted},
            "to": wanted,
            "applied": done,
        }
    )
    return 0


def _memory_notes(state: RunState, spec: Spec, wanted: dict[str, int]) -> list[str]:
    """Findings of `lint` about roles whose pods have too little memory after scaling, as with fewer modelpools."""
    from rlctl.changes import sized
    from rlctl.spec.problems.findings import too_little_memory
    from rlctl.spec.words import dotted

    found = too_little_memory(sized(spec, {**state.replicas, **wanted})) if state.target in ON_CLUSTERS else ()
    return [f"{dotted(fault.path)}: {fault.message}" for fault in found if fault.path[1] in wanted]


def _unfit_shards(world: World, backend: Backend, state: RunState, spec: Spec, wanted: dict[str, int]) -> list[str]:
    """Reasons why one of fewer shards would have too little memory in a restarted pod, or this machine too little for
    more of them; [] where there is enough, or where no manager reports the bytes of a row."""
    shards, have, on_cluster = wanted.get("replay"), state.replicas.get("replay"), state.target in ON_CLUSTERS
    if shards is None or have is None or (shards >= have if on_cluster else shards <= have):
        return []
    from rlctl.changes import sized
    from rlctl.spec import Machine
    from rlctl.spec.fields import normal
    from rlctl.spec.problems.replay import too_little, too_many
    from rlctl.spec.words import dotted

    try:
        told = backend.control(state.run, "GET", "/status")["replay"]
    except RlctlError:
        return []
    plain = sized(normal(spec), wanted)
    if not told or not told["capacity"] or plain.replay is None:
        return []
    of_one = plain.replay.capacity / shards * told["array_bytes"] / told["capacity"]
    if not on_cluster:
        machine = world.machine or Machine.here()
        return [why] if (why := too_many(plain, int(of_one), told["array_bytes"], shards - have, machine)) else []
    fault = too_little(plain, int(of_one))
    return [f"{dotted(fault.path)}: {fault.message}"] if fault else []


def _way_out(wanted: dict[str, int], *, stored_limit: int) -> str:
    actors = wanted.get("actor", 0)
    return f"rlctl up SPEC --set roles.actor.max_replicas={actors}, then scale again" if actors > stored_limit else ""


def _parsed(text: str) -> tuple[str, int]:
    role, equals, number = text.partition("=")
    if not equals or not role or not number.isascii() or not number.isdigit():
        raise UsageError(f"{text!r} is not ROLE=N", hint="as in: rlctl scale actor=6")
    return role, int(number)
