"""`rlctl status`: the verdict first, then roles, then problems with the next command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlctl.cli.context import World
from rlctl.cli.display.report import headline, report
from rlctl.cli.options import RunArgument, RunOption, Target, Utc, verb
from rlctl.cli.run.snapshot import Observer, as_document, take
from rlctl.cli.run.target import as_now, find, known, looked_at, one_name
from rlctl.cli.text import age, stamp, table
from rlctl.errors import UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend

WATCH_EVERY_S = 2.0


@verb("namespace", "context", wide=True)
def status(
    world: World,
    run: RunArgument = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run is over or Ctrl-C.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 when the run is not healthy.")] = False,
    all_runs: Annotated[bool, typer.Option("--all", "-A", help="One line for every run.")] = False,
    run_option: RunOption = None,
    target: Target = None,
    utc: Utc = False,
) -> int:
    """Show which role waits for which, and problems. Alias: ps.

    Begins with the verdict: actor-bound, simulator-bound, learner-bound, modelpool-bound, replay-bound, balanced
    or stalled, and the shares it rests on.
    Answers from what was stored when the run is over. -o wide has one line per process.
    """
    if all_runs:
        if watch or check or run or run_option:
            raise UsageError("--all stands alone", hint="rlctl status --all")
        return _all(world, target)
    backend, state = find(world, one_name(run, run_option), target)
    if watch:
        return _watch(world, backend, state.run, check=check, utc=utc)
    snapshot = take(world, backend, state.run, state)
    if snapshot is None:
        raise UsageError(f"run {state.run} has just been removed")
    world.lines(report(world, snapshot, utc=utc))
    world.document(as_document(snapshot))
    return int(check and not snapshot.healthy)


def _watch(world: World, backend: Backend, run: str, *, check: bool, utc: bool) -> int:
    from rlctl.cli.display.view import Screen

    world.streams = True
    snapshot = None
    with Screen(world, world.stdout) as screen:
        observer = Observer(world, backend, run)
        while (seen := observer.look()) is not None:
            snapshot = seen
            if world.as_json:
                world.json_line(as_document(snapshot))
            elif screen.live:
                screen.show(report(world, snapshot, utc=utc))
            else:
                world.data(f"{stamp(world.now(), utc=utc)} {snapshot.phase}, {headline(snapshot)}")
            if snapshot.over:
                break
            world.sleep(WATCH_EVERY_S)
    if screen.live and snapshot is not None:
        world.lines(report(world, snapshot, utc=utc))
    return int(check and (snapshot is None or not snapshot.healthy))


def _all(world: World, target: str | None) -> int:
    rows = [("RUN", "PHASE", "TARGET", "AGE", "REVISION", "REPLICAS", "UID")]
    entries = [(backend, as_now(backend, state)) for backend, state in known(world, target)]
    for _, state in entries:
        lived = age((world.now() - state.created).total_seconds())
        replicas = " ".join(f"{role}={replicas}" for role, replicas in state.replicas.items())
        rows.append((state.run, state.phase, state.target, lived, str(state.revision), replicas, state.uid[:8]))
    if entries:
        world.lines(table(rows))
    else:
        world.say(f"there is no run{looked_at(world, target)}; to start one: rlctl up SPEC")
    world.document(
        {
            "runs": [
                {
                    "run": state.run, "uid": state.uid, "phase": state.phase, "target": state.target,
                    "storage": state.storage, "replicas": dict(state.replicas),
                }
                for _, state in entries
            ]
        }
    )  # fmt: skip
    return 0
