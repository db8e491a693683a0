"""`rlctl profile`: a flame graph of a process of a live run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.backends.files import writing
from rlctl.cli.context import World
from rlctl.cli.options import RunOption, Target, complete_role, verb
from rlctl.cli.run.target import find, require_role, require_running
from rlctl.cli.text import percent, plain
from rlctl.cli.verbs.logs import process_named
from rlctl.errors import RlctlError, TimedOut, UsageError
from rlctl.waiting import Waiting

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState

_LOOK_EVERY_S = 0.5
_LATE_S = 15.0
"""Seconds to wait beyond the manager's own timeout for a profile, at most."""
_SHOWN = 8
_NATIVE = "native threads"
"""Name for the threads that libraries start outside Python, which are in no stack."""


@verb("namespace", "context")
def profile(
    world: World,
    process: Annotated[
        str,
        typer.Argument(
            metavar="ROLE[/INDEX]",
            help="As in learner or actor/7; without an index the lowest that runs.",
            autocompletion=complete_role,
        ),
    ],
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="How long to look, at most 600.")] = 10.0,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Put the files here too; on a cluster the default is this folder."),
    ] = None,
    run: RunOption = None,
    target: Target = None,
) -> int:
    """Draw what a live process spends its time on.

    The process looks at its own threads a hundred times a second, needs no right for it and goes on working. Two files
    come of it, in results/profiles of the run: a flame graph for the browser (.svg) and collapsed stacks, in
    microseconds, which speedscope reads. Time is wall time; threads that did nothing are left out.
    """
    role, index = process_named(process)
    if not 0 < seconds <= 600:
        raise UsageError(f"--seconds must be above 0 and at most 600, got {seconds:g}")
    backend, state = find(world, run, target)
    _require(state, role, index)
    asked = {"role": role, "index": index, "seconds": seconds}
    ordered = backend.control(state.run, "POST", "/profile", asked)
    world.say(f"looking at {ordered['process']} for {seconds:g} s")
    found = _wait(world, backend, state.run, ordered)
    for line in said(found):  # before any file: where both volume and folder are full, this is what there is
        world.data(line)
    if found["why"]:
        world.complain(f"warning: {found['process']}: {found['why']}")
    files = _files(state, found, write)
    for path in files:
        world.data(str(path))
    world.document(
        {
            "run": state.run, "process": found["process"], "seconds": found["seconds"], "samples": found["samples"],
            "cpu_s": found["threads"], "stored": found["files"], "files": [str(path) for path in files],
        }
    )  # fmt: skip
    return 0


def said(found: Mapping[str, Any]) -> list[str]:
    """Summary of a profile: share of CPU of the process, and the functions in which its main thread spent most time."""
    seconds = max(float(found["seconds"]), 1e-9)
    cpu, native = sum(found["threads"].values()), found["threads"].get(_NATIVE, 0.0)
    also = f", {native:.1f} s of it in {_NATIVE}" if native else ""
    lines = [f"{found['process']}, {found['seconds']:.1f} s, {found['samples']} samples, {cpu:.1f} s of CPU{also}"]
    own: dict[str, int] = {}
    for line in found["collapsed"].splitlines():
        stack, _, microseconds = line.rpartition(" ")
        names = stack.split(";")
        if names[0] == "MainThread":
            own[names[-1]] = own.get(names[-1], 0) + int(microseconds)
    for name, microseconds in sorted(own.items(), key=lambda one: (-one[1], one[0]))[:_SHOWN]:
        lines.append(f"{percent(microseconds / 1e6 / seconds):>6}  {plain(name)}")
    return lines


def _require(state: RunState, role: str, index: int | None) -> None:
    require_role(state, role)
    if index is not None and index >= state.replicas[role]:
        count = state.replicas[role]
        last = f"the last is {role}/{count - 1}" if count else "it has none"
        raise UsageError(f"run {state.run} has no {role}/{index}: {last}")
    require_running(state, "has something to look at")


def _wait(world: World, backend: Backend, run: str, ordered: Mapping[str, Any]) -> Mapping[str, Any]:
    """Wait for the profile of a process.

    Raises:
        RlctlError: the process ended meanwhile, or did not reply.
        TimedOut: the manager never reported the outcome.
    """
    patience = Waiting(float(ordered["within_s"]) + _LATE_S, clock=world.clock)
    while not patience.over():
        world.sleep(_LOOK_EVERY_S)
        found: Mapping[str, Any] = backend.control(run, "GET", f"/profiles?id={ordered['id']}")
        if found["state"] == "done":
            return found
        if found["state"] == "failed":
            raise RlctlError(str(found["why"]), hint=f"rlctl status {run}", objects=(str(ordered["process"]),))
    raise TimedOut(f"the manager of run {run} does not say what {ordered['process']} does", hint=f"rlctl status {run}")


def _files(state: RunState, found: Mapping[str, Any], write: Path | None) -> list[Path]:
    """Paths of the files on this machine; written where they are not."""
    beside = [Path(state.storage) / name for name in found["files"]]
    if write is None and beside and state.target == "local":
        return beside
    folder = Path.cwd() if write is None else write
    texts = {f"{found['id']}.svg": found["svg"], f"{found['id']}.collapsed": found["collapsed"]}
    paths = [folder / f"{state.run}-{name}" for name in texts]
    with writing(folder, "name another with --write DIR"):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    return paths
