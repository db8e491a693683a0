"""`rlctl repro`: a recorded episode of a run, played again on this machine by a program that this one becomes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.context import World, require
from rlctl.cli.models.episodes import WHEN, Episode, chosen, is_name, recorded
from rlctl.cli.models.fetched import Code, code_of
from rlctl.cli.models.listing import read_whole
from rlctl.cli.options import RunArgument, RunOption, Target, Utc, verb
from rlctl.cli.run.target import find, one_name
from rlctl.cli.text import count, moment_of, number, table
from rlctl.errors import RlctlError, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import RunState

_SHOWN = 100
"""Characters of an error in the list, at most."""


@verb("namespace", "context")
def repro(
    world: World,
    run: RunArgument = None,
    episode: Annotated[
        str | None, typer.Argument(metavar="ROLE/INDEX@EPISODE", help="As in actor/3@17; without, those there are.")
    ] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Where the environment fails, stay there in pdb.")] = False,
    code: Code = None,
    run_option: RunOption = None,
    target: Target = None,
    utc: Utc = False,
) -> int:
    """Play a recorded episode again, on this machine.

    A run records the episode in which an environment failed, and the worst and best of each evaluation: seeds, actions,
    a digest of each answer. Instead of a run, a file FILE.episode of another machine may be named. Where the
    environment fails again, its traceback is shown, exit 7. Exit 0: it ended as recorded, or did not fail this time.
    Exit 1: it diverged, and at which step; or the record cannot be used. Exit 3: the environment cannot be made here.
    """
    if run is not None and run.endswith(".episode") and episode is None:
        if not Path(run).is_file():
            raise UsageError(f"there is no file {run}", hint="rlctl repro RUN shows the episodes of a run")
        _play(world, run, run, Path.cwd() if code is None else code, pdb=pdb)
        return 0
    if run is not None and is_name(run) and episode is None:
        run, episode = None, run
    if episode is not None and not is_name(episode):
        raise UsageError(f"{episode!r} names no episode", hint="as in actor/3@17; see `rlctl repro RUN`")
    backend, state = find(world, one_name(run, run_option), target)
    with backend.stored_files(state.run) as files:
        episodes = recorded(files)
        if episode is None:
            return _list(world, state.run, episodes, utc=utc)
        found = chosen(episodes, state.run, episode)
        if found.damaged:
            raise RlctlError(f"episode {found.name} of run {state.run}: {found.damaged}")
        modules = code_of({"run": state.run, "spec": state.spec, "code": state.code}, code)
        data = read_whole(files, "episodes", found.file)
        _require_same_env(found.name, data, state)
    with tempfile.TemporaryFile() as file:  # the program that replaces this process reads it
        file.write(data)
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        _play(world, f"/dev/fd/{file.fileno()}", f"{found.name} of run {state.run}", modules, pdb=pdb)
    return 0


def _require_same_env(name: str, data: bytes, state: RunState) -> None:
    """Refuse an episode of another environment than the run's: classes that its header names are called here, and a
    process of the run has written it.

    Raises:
        RlctlError: it is of another one.
    """
    from rlctl.spec.schema import Env

    try:
        theirs = Env.model_validate(json.loads(data.partition(b"\n")[0])["env"])
        ours = Env.model_validate(state.spec["env"])
        same = theirs.model_copy(update={"splits": ours.splits}) == ours  # which may change in a run
    except (ValueError, KeyError, TypeError, RecursionError):
        same = False
    if not same:
        raise RlctlError(
            f"episode {name} of run {state.run} is not played: it names another environment than the run's",
            hint=f"rlctl repro {state.run} lists the others; a process of the run, or its key, is in other hands",
        )


def _play(world: World, file: str, name: str, code: Path | None, *, pdb: bool) -> None:
    """Replace this process by the program that plays a recorded episode."""
    require("local", "rlctl_agents", "gymnasium")
    options = {"--json": world.as_json, "--quiet": world.quiet, "--pdb": pdb, f"--code={code}": code}
    given = [option for option, wanted in options.items() if wanted]
    world.become([sys.executable, "-m", "rlctl_agents", "repro", file, f"--name={name}", *given])


def _list(world: World, run: str, episodes: list[Episode], *, utc: bool) -> int:
    rows: list[tuple[str, ...]] = [("EPISODE", "KIND", "STEPS", "RETURN", "MODEL", "RECORDED", "SIZE", "ERROR")]
    for one in episodes:
        size, shown = f"{count(one.bytes)}B", _plain(one)
        if one.damaged:
            rows.append((one.name, one.kind, *["-"] * 4, size, one.damaged))
            continue
        when = moment_of(shown["created"], utc=utc)
        error = shown["error"] if len(shown["error"]) <= _SHOWN else f"{shown['error'][:_SHOWN]}..."
        version = "-" if shown["version"] is None else str(shown["version"])
        rows.append((one.name, one.kind, count(one.steps), number(shown["return"]), version, when, size, error or "-"))
    if episodes:
        world.lines(table(rows))
    else:
        world.say(f"run {run} has recorded no episode yet: {WHEN}")
    world.document({"run": run, "episodes": [_plain(one) for one in episodes]})
    return 0


def _plain(one: Episode) -> dict[str, Any]:
    """Record of an episode for `-o json`."""
    header = one.header
    return {
        "name": one.name, "kind": one.kind, "file": f"results/episodes/{one.file}", "bytes": one.bytes,
        "damaged": one.damaged, "steps": None if one.damaged else one.steps, "return": header.get("returned"),
        "created": header.get("created"), "version": (header.get("model") or {}).get("version"),
        "error": header.get("error", ""), "playable": bool(header.get("starts")),
    }  # fmt: skip
