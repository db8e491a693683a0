"""Choice of the run that a verb is about, and of its target."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.run.clusters import backend_of, recorded, runs_everywhere, way_out, where
from rlctl.cli.run.clusters import wanted_target as wanted_target
from rlctl.errors import Conflict, RlctlError, Unreadable, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState


class NoRun(UsageError):
    """No run is named, and there is none."""


def recorded_target(run: str) -> str | None:
    """The target on which the run was started, from the index of runs; None when it is not there."""
    entry = recorded(run)
    return None if entry is None else entry.target


def wanted_run(world: World, run: str | None) -> str | None:
    """Name of the run from the command line, else RLCTL_RUN; None when none is given."""
    return run or world.environ.get("RLCTL_RUN") or None


def one_name(argument: str | None, option: str | None) -> str | None:
    """The run, which may be given as an argument or as --run.

    Raises:
        UsageError: both, and they differ.
    """
    if argument and option and argument != option:
        raise UsageError(f"two runs are named: {argument} and --run {option}", hint="name one")
    return argument or option


def look_up(world: World, run: str, target: str | None) -> tuple[Backend, RunState | None]:
    """Backend of a run, and the record of the run there; None: there is none.

    Raises:
        Unreadable: there is a record, and it cannot be read.
    """
    with way_out(world, run, target):
        backend = backend_of(world, run, target)
        return backend, backend.find(run)


def find(world: World, run: str | None, target: str | None) -> tuple[Backend, RunState]:
    """The run that is meant: the one named, else the only live one, else the only one at all.

    Raises:
        NoRun: none is named, and there is none.
        UsageError: there is none of that name, or more than one; the message lists them.
        Unreadable: its record cannot be read.
    """
    name = wanted_run(world, run)
    if name is not None:
        backend, state = look_up(world, name, target)
        if state is None:
            raise _unknown(world, name, target)
        return backend, state
    left_out: list[RlctlError] = []
    everywhere = known(world, target, left_out)
    live = [entry for entry in everywhere if entry[1].phase == "running"]
    if len(live) == 1:
        backend, state = live[0]
        return backend, as_now(backend, state)
    # live by their records; that a run is over its manager alone knows
    everywhere = [(backend, as_now(backend, state)) for backend, state in everywhere]
    meant = [entry for entry in everywhere if entry[1].phase == "running"] or everywhere
    if len(meant) == 1:
        return meant[0]
    if not everywhere and len(left_out) == 1:
        raise left_out[0]
    if not everywhere and left_out:
        raise UsageError(f"which run? the records of {len(left_out)} cannot be read", hint="name one: --run NAME")
    if not everywhere:
        raise NoRun(f"there is no run{looked_at(world, target)}", hint="rlctl up SPEC")
    raise UsageError(
        f"which run? {_listed(state for _, state in meant)}",
        hint=f"name one, as in: --run {meant[0][1].run}",
        objects=tuple(state.run for _, state in meant),
    )


def find_at_least(world: World, run: str | None, target: str | None) -> tuple[Backend, str, RunState | None]:
    """Like `find`, for verbs that need no record: one that cannot be read is None, with a warning.

    Returns:
        The backend, the name of the run, and its record or None.
    """
    try:
        backend, state = find(world, run, target)
    except Unreadable as error:
        world.complain(f"warning: {error.message}")
        return backend_of(world, error.run, target), error.run, None
    return backend, state.run, state


def known(world: World, target: str | None, left_out: list[RlctlError] | None = None) -> list[tuple[Backend, RunState]]:
    """Runs of the wanted target, or of all targets, newest first.

    Args:
        world: this invocation.
        target: -t.
        left_out: collects the error of each record that cannot be read; it is printed in any case.
    """

    def leave_out(error: RlctlError) -> None:
        world.say(f"left out: {error.message}")
        if left_out is not None:
            left_out.append(error)

    return sorted(runs_everywhere(world, target, leave_out), key=lambda entry: entry[1].created, reverse=True)


def _unknown(world: World, name: str, target: str | None) -> UsageError:
    states = [as_now(backend, state) for backend, state in known(world, target)]
    names = [state.run for state in states]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"runs: {_listed(states)}" if names else "rlctl up SPEC"
    return UsageError(f"there is no run {name}{looked_at(world, target)}", hint=hint, objects=tuple(names))


def looked_at(world: World, target: str | None) -> str:
    """Where a run was not found, as the end of a message: this machine's index may lack a run on a cluster."""
    chosen = wanted_target(world, target)
    if chosen in ON_CLUSTERS:
        return f" on {where(world.backend(chosen), chosen)}"
    elsewhere = "; one that another machine started on a cluster: -t kubernetes -n NAMESPACE" if chosen is None else ""
    return f" on this machine{elsewhere}"


def require_role(state: RunState, role: str) -> None:
    """Require that a run has a role.

    Raises:
        UsageError: the run has no such role.
    """
    if role not in state.replicas:
        raise UsageError(f"run {state.run} has no role {role}", hint=f"roles: {', '.join(state.replicas)}")


def require_running(state: RunState, why: str) -> None:
    """Require that a run is live.

    Raises:
        Conflict: the run is not live.
    """
    if state.phase != "running":
        raise Conflict(
            f"run {state.run} is {state.phase}; only a live run {why}", hint="rlctl up SPEC", objects=(state.run,)
        )


def as_now(backend: Backend, state: RunState) -> RunState:
    """Recorded state of a run, with the phase of its manager, which alone knows that a run has finished."""
    if state.target not in ON_CLUSTERS or state.phase != "running":
        return state
    try:
        return backend.find(state.run) or state
    except RlctlError:  # it only adds to what is known
        return state


def _listed(states: Iterable[RunState]) -> str:
    return ", ".join(f"{state.run} ({state.phase})" for state in states)
