"""`rlctl down`: stop a run and keep its data, or remove both."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.apply.applied import follow, nothing_done
from rlctl.cli.apply.attach import Interrupts
from rlctl.cli.context import ON_CLUSTERS, Signalled, World
from rlctl.cli.options import (
    RunArgument,
    RunOption,
    TakeOver,
    Target,
    Yes,
    verb,
)
from rlctl.cli.run.clusters import backend_of, recorded, where
from rlctl.cli.run.problems import exists
from rlctl.cli.run.target import NoRun, find, look_up, looked_at, one_name, wanted_run
from rlctl.cli.text import span
from rlctl.errors import BackendUnreachable, Refused, Unreadable, UsageError
from rlctl.spec.runs import run_index

if TYPE_CHECKING:
    from rlctl.backends.base import Backend


@verb("namespace", "context")
def down(
    world: World,
    run: RunArgument = None,
    volumes: Annotated[bool, typer.Option("--volumes", help="Remove the data of the run as well; asks.")] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="TIME",
            help="Until a process is killed, 10s at most and by default; on a cluster how long to wait, else 60s.",
        ),
    ] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Free the name of a run whose cluster, or folder here, is gone; works offline, removes nothing there.",
        ),
    ] = False,
    run_option: RunOption = None,
    yes: Yes = False,
    force_conflicts: TakeOver = False,
    target: Target = None,
) -> int:
    """Stop a run and keep its data.

    `rlctl up` goes on from there. --volumes removes the data too. A run that is not there is no error (exit 0).
    Ctrl-C or a hangup once does not keep it from ending everything; twice leaves at once (exit 130 or 129).
    """
    given_s = None if grace is None else span(grace, "--grace")
    name = wanted_run(world, one_name(run, run_option))
    if forget:
        if volumes:
            raise UsageError("--forget asks no cluster, so it removes no volumes", hint="leave one of the two out")
        return _forget(world, name)
    meant = _find(world, name, target)
    if meant is None:
        if name is not None:  # one that was killed with its last write to do has left its lock
            backend = backend_of(world, name, target)
            patience_s = backend.grace_s if given_s is None else given_s
            gone = volumes and backend.name in ON_CLUSTERS  # nothing is left there but its name in the index
            follow(world, backend.delete(name, volumes=gone, grace_s=patience_s))
        which = "" if name is None else f" {name}"
        world.say(f"nothing to do: there is no run{which}{looked_at(world, target)}")
        world.document({"run": name, "applied": [], "kept": None, "removed": None})
        return 0
    meant.backend.force_conflicts = force_conflicts
    if meant.way_out and not volumes:
        world.complain("  the file is kept as it is; what runs is stopped without it")
    if volumes and not yes:
        _ask(world, meant)
    try:
        with Interrupts(signal.SIGINT, signal.SIGHUP):
            patience_s = meant.backend.grace_s if given_s is None else given_s
            done = follow(world, meant.backend.delete(meant.run, volumes=volumes, grace_s=patience_s))
    except Signalled as gone:
        raise Signalled(gone.exit_code, f"left {meant.run} half stopped; the same command goes on") from None
    _say_end(world, meant, idle=nothing_done(done), volumes=volumes)
    world.document(
        {
            "run": meant.run,
            "applied": done,
            "kept": None if volumes else meant.storage,
            "removed": meant.storage if volumes else None,
        }
    )
    return 0


def _forget(world: World, name: str | None) -> int:
    """Take a run out of this machine's index of runs: one on a cluster, where it stays, or one whose folder is gone.

    Raises:
        UsageError: no run is named, or it is one of this machine whose folder is there, or cannot be looked for.
    """
    from rlctl.backends.files import reported
    from rlctl.backends.kubernetes.run_state import index
    from rlctl.spec.schema import RUN_NAME

    if name is None:
        raise UsageError("--forget needs the name of a run", hint="rlctl down NAME --forget")
    if not re.fullmatch(RUN_NAME, name):
        raise UsageError(f"{name!r} is no name of a run")
    entry = recorded(name)
    local = entry is not None and entry.target not in ON_CLUSTERS
    if entry is not None and local and world.backend(entry.target).place(name, None).uid == entry.uid:
        raise UsageError(
            f"run {name} is on this machine, where its data would be lost from sight",
            hint=f"stop it: rlctl down {name}; remove it: rlctl down {name} --volumes",
            objects=(name,),
        )
    if entry is None:
        world.say(f"no run {name} is recorded here; nothing to do")
    elif local:
        with reported(f"cannot forget run {name}"):
            run_index.path(name).unlink(missing_ok=True)
        world.say(f"{name} is forgotten here; its folder below {entry.storage} was gone")
    else:
        index.forget(name, entry.uid)
        if recorded(name) is not None:
            raise BackendUnreachable(f"the record of run {name} cannot be removed from {run_index.folder()}")
        there = " ".join(
            f"{option} {value}" for option, value in (("--context", entry.context), ("-n", entry.namespace))
        )
        world.say(f"{name} is forgotten here; what runs on {entry.server or 'its cluster'} was not asked and stays")
        world.say(f"  reach it      rlctl status {name} -t {entry.target} {there}")
    world.document({"run": name, "applied": [], "kept": None, "removed": None})
    return 0


@dataclass(frozen=True, slots=True)
class _RunToRemove:
    """The run to take down: all that `down` needs to know of it."""

    backend: Backend
    run: str
    target: str
    storage: str
    way_out: str = ""  # remedy where its record cannot be read
    refills: bool = False  # the rows of its replay are in no generation


def _find(world: World, name: str | None, target: str | None) -> _RunToRemove | None:
    """The run of that name, else the one that every verb would take; None: there is none.

    Raises:
        UsageError: several may be meant.
    """
    try:
        backend, state = find(world, name, target) if name is None else look_up(world, name, target)
    except NoRun:
        return None
    except Unreadable as error:
        world.complain(f"warning: {error.message}")
        backend = backend_of(world, error.run, target)
        return _RunToRemove(backend, error.run, backend.name, error.storage, error.hint)
    if state is not None:
        refills = bool(state.replicas.get("replay")) and (state.spec.get("replay") or {}).get("checkpoint") != "full"
        return _RunToRemove(backend, state.run, state.target, state.storage, refills=refills)
    if name is not None and backend.name not in ON_CLUSTERS:
        root = backend.place(name, None).layout.root
        if root.exists():  # its record is lost, or was never written
            return _RunToRemove(backend, name, backend.name, str(root))
    return None


def _ask(world: World, meant: _RunToRemove) -> None:
    """Print what would be removed, and require that the user types the run's name.

    Raises:
        Conflict: the run is another user's, and nothing is to be forced.
        Refused: there is no terminal to ask at, or another answer came.
    """
    owner = meant.backend.check_owner(meant.run)
    of = f" of {owner}" if owner else ""
    world.complain(
        f"down --volumes removes run {meant.run}{of} on {where(meant.backend, meant.target)} for good:\n"
        f"  {_how_many(meant)} processes are stopped\n"
        f"  checkpoints, logs and results in {meant.storage} are deleted; nothing of the run is kept"
    )
    if not world.can_ask():
        raise Refused(
            f"the data of run {meant.run} stays: there is no terminal to confirm on",
            hint=f"rlctl down {meant.run} --volumes --yes",
            objects=(meant.run,),
        )
    if world.ask(f"type the name of the run to go on ({meant.run}): ") != meant.run:
        raise Refused(f"that is not its name; run {meant.run} and its data stay", objects=(meant.run,))


def _how_many(meant: _RunToRemove) -> str:
    try:
        processes = meant.backend.processes(meant.run)
    except BackendUnreachable:  # they are unknown; `delete` finds them all the same
        return "all"
    return str(sum(process.count for process in processes if exists(process))) if processes else "all"


def _say_end(world: World, meant: _RunToRemove, *, idle: bool, volumes: bool) -> None:
    if volumes:
        world.say(f"{meant.run} is removed, with its data in {meant.storage}")
        return
    if idle:
        world.say(f"{meant.run} was not running")
    else:
        world.say(f"{meant.run} is stopped")
    world.say(f"  stays         {meant.storage}")
    world.say(f"  go on         {meant.way_out or 'rlctl up SPEC, from the newest generation'}")
    if meant.refills:
        world.say("                its replay is filled anew first: replay.checkpoint: full would have kept it")
    world.say(f"  remove it     rlctl down {meant.run} --volumes")
