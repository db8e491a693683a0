"""`rlctl debug`: the roles of a run in one process and one thread, which this one becomes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlctl.cli.context import World, require
from rlctl.cli.options import Sets, verb
from rlctl.cli.run.prepare import load
from rlctl.errors import UsageError

_MOST = 1_000_000


@verb()
def debug(
    world: World,
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="Spec files, merged from left to right.")],
    sets: Sets = None,
    updates: Annotated[int, typer.Option("--updates", metavar="N", help="Batches to learn from.")] = 10,
    episodes: Annotated[
        int, typer.Option("--episodes", metavar="N", help="Whole episodes of the evaluation at the end; 0: none.")
    ] = 1,
    pdb: Annotated[bool, typer.Option("--pdb", help="Where the code fails, stay there in pdb.")] = False,
) -> int:
    """Run all roles in one process, for breakpoints.

    One thread, on the CPU, without sockets: a `breakpoint()` in an environment, network or loss works, and so does that
    of an IDE. Batches are those of `sync: true`, so equal seeds give equal numbers. No run is started and nothing is
    stored. A failure of your code is told with its traceback, exit 7. Ctrl-C ends it.
    """
    for name, value in (("--updates", updates), ("--episodes", episodes)):
        if not 0 <= value <= _MOST:
            raise UsageError(f"{name} must be from 0 to {_MOST:,}, got {value}")
    if any(str(spec) == "-" for spec in specs):
        raise UsageError("standard input is the debugger's: name a spec file")
    require("local", "rlctl_agents", "gymnasium", "torch")
    load(world, specs, sets, "local")  # for its problems; findings are about a run
    options = {"--json": world.as_json, "--quiet": world.quiet, "--pdb": pdb}
    command = [sys.executable, "-m", "rlctl_agents", "debug", *map(str, specs)]
    run = world.environ.get("RLCTL_RUN")
    command += [f"--set={one}" for one in (*([f"run={run}"] if run else ()), *(sets or ()))]
    command += [f"--updates={updates}", f"--episodes={episodes}", *(name for name, given in options.items() if given)]
    world.become(command)
    return 0
