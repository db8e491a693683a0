"""`rlctl down`: stop a run and keep its data, or remove both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.applied import as_plain, follow, nothing_done
from rlctl.cli.options import OutputOption, Quiet, RunArgument, RunOption, Target, Yes
from rlctl.cli.target import find, known, look_up, one_name, wanted_run
from rlctl.cli.text import span
from rlctl.cli.world import Output, World
from rlctl.errors import Refused, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState


def down(
    ctx: typer.Context,
    run: RunArgument = None,
    volumes: Annotated[bool, typer.Option("--volumes", help="Remove the data of the run as well; asks.")] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long a process may take to end before it is killed.")
    ] = "10s",
    run_option: RunOption = None,
    yes: Yes = False,
    target: Target = None,
    output: OutputOption = Output.table,
    quiet: Quiet = False,
) -> int:
    """Stop a run and keep its data.

    `rlctl up` goes on from there. --volumes removes the data too. A run that is not there is no error (exit 0).
    """
    world: World = ctx.obj.setup(output, quiet)
    try:
        grace_s = span(grace)
    except ValueError as error:
        raise UsageError(f"--grace: {error}") from error
    name = wanted_run(world, one_name(run, run_option))
    if name is None and not known(world, target):
        world.say("there is no run; nothing to do")
        world.document({"run": None, "applied": [], "kept": None, "removed": None})
        return 0
    backend, state = find(world, name, target) if name is None else look_up(world, name, target)
    if state is None:
        world.say(f"there is no run {name}; nothing to do")
        world.document({"run": name, "applied": [], "kept": None, "removed": None})
        return 0
    if volumes and not yes:
        _ask(world, backend, state)
    done = follow(world, backend.delete(state.run, volumes=volumes, grace_s=grace_s))
    _say_end(world, state, idle=nothing_done(done), volumes=volumes)
    world.document(
        {
            "run": state.run,
            "applied": as_plain(done),
            "kept": None if volumes else state.storage,
            "removed": state.storage if volumes else None,
        }
    )
    return 0


def _ask(world: World, backend: Backend, state: RunState) -> None:
    """Say what would go, and have the name typed.

    Raises:
        Refused: there is nobody to ask, or another answer came.
    """
    processes = sum(process.state not in ("stopped", "exited", "failed") for process in backend.processes(state.run))
    world.complain(
        f"down --volumes removes run {state.run} on {state.target} for good:\n"
        f"  {processes} processes are stopped\n"
        f"  models, checkpoints, logs and results in {state.storage} are deleted; nothing of the run is kept"
    )
    if not world.can_ask():
        raise Refused(
            f"the data of run {state.run} stays: there is no terminal to confirm on",
            hint=f"rlctl down {state.run} --volumes --yes",
            objects=(state.run,),
        )
    if world.ask(f"type the name of the run to go on ({state.run}): ") != state.run:
        raise Refused(f"that is not its name; run {state.run} and its data stay", objects=(state.run,))


def _say_end(world: World, state: RunState, *, idle: bool, volumes: bool) -> None:
    if volumes:
        world.say(f"{state.run} is removed, with its data in {state.storage}")
        return
    if idle:
        world.say(f"{state.run} was not running")
    else:
        world.say(f"{state.run} is stopped")
    world.say(f"  stays         {state.storage}")
    world.say("  go on         rlctl up SPEC, from the newest generation")
    world.say(f"  remove it     rlctl down {state.run} --volumes")
