"""`rlctl up`: make a target run what the spec says, and stay with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli import report
from rlctl.cli.applied import as_plain, follow, nothing_done
from rlctl.cli.attach import Interrupts, Outcome, attach
from rlctl.cli.options import OutputOption, Quiet, Sets, Specs, Target
from rlctl.cli.prepare import Prepared, prepare, say_findings
from rlctl.cli.progress import Progress
from rlctl.cli.show import as_plain as change_as_plain
from rlctl.cli.snapshot import Snapshot, as_document, take
from rlctl.cli.text import span
from rlctl.cli.world import Output, Signalled, World
from rlctl.errors import Conflict, RlctlError, TimedOut, UsageError, WorkloadFailed

if TYPE_CHECKING:
    from rlctl.backends.base import Applied


def up(
    ctx: typer.Context,
    specs: Specs,
    sets: Sets = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as everything is started.")] = False,
    progress: Annotated[
        Progress, typer.Option("--progress", help="How to show the run while attached.")
    ] = Progress.auto,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Stay no longer: exit 6, the run goes on.")
    ] = None,
    target: Target = None,
    output: OutputOption = Output.table,
    quiet: Quiet = False,
) -> int:
    """Start a run, or change one that is there.

    The same again changes nothing, and says so. Stays until a stop condition is met (exit 0) or the run has
    failed (exit 7). Ctrl-C once leaves and says how to come back, the run goes on (exit 0); twice leaves at
    once (exit 130).
    """
    world: World = ctx.obj.setup(output, quiet)
    timeout_s = _span(timeout)
    with Interrupts() as interrupts:
        prepared = prepare(world, specs or (), sets, target, mint=True)
        say_findings(world, prepared.loaded)
        refuse(prepared)
        run = prepared.plan.run
        if _nothing_to_do(prepared):
            return _already_finished(world, prepared)
        if interrupts.asked:
            raise Signalled(130, f"nothing of {run} was changed")
        applied = _apply(world, prepared)
        if detach:
            snapshot = take(world, prepared.backend, run)
            if snapshot is not None and snapshot.phase == "failed":
                raise RunFailed(snapshot)
            world.say(f"{run} is up\n{_come_back(run)}")
            world.document(_document(prepared, applied, snapshot))
            return 0
        try:
            outcome = attach(
                world, prepared.backend, run, interrupts=interrupts, progress=progress, timeout_s=timeout_s
            )
        except Signalled as gone:
            raise Signalled(gone.exit_code, f"left {run}; it goes on\n{_come_back(run)}") from None
        return _end(world, prepared, applied, outcome)


def where_to_look(snapshot: Snapshot) -> str:
    """The command that shows the first cause of a failed run."""
    run, cause = snapshot.state.run, snapshot.state.failure
    if cause is None or "/" not in cause.process:  # the supervisor itself has no log of records
        return f"rlctl logs --run {run} --tail 50"
    return f"rlctl logs {cause.process} --run {run}"


class RunFailed(WorkloadFailed):
    """The first cause; `details` has the last lines of that process, and who was stopped because of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        run, cause = snapshot.state.run, snapshot.state.failure
        super().__init__(
            cause.text if cause else f"run {run} has failed",
            hint=where_to_look(snapshot),
            objects=(cause.process, *cause.stopped_because) if cause else (run,),
        )
        self.details = report.failure(snapshot)


def refuse(prepared: Prepared) -> None:
    """Stop before anything is changed when a field cannot change on this run.

    Raises:
        Conflict: with every such field and the way out.
    """
    if prepared.refused:
        run = prepared.plan.run
        fields = "\n".join(f"  {change.why}" for change in _once(prepared.refused))
        raise Conflict(
            f"these fields of run {run} cannot change; its experience and weights would no longer fit:\n{fields}",
            hint=f"another name (--set run={run}-2), or remove this run and its data: rlctl down {run} --volumes",
            objects=tuple(dict.fromkeys(change.path for change in prepared.refused)),
        )


def _once(changes: list[Any]) -> list[Any]:
    return list({change.path: change for change in changes}.values())


def _nothing_to_do(prepared: Prepared) -> bool:
    state = prepared.state
    return state is not None and state.phase == "finished" and not prepared.changes


def _already_finished(world: World, prepared: Prepared) -> int:
    run = prepared.plan.run
    snapshot = take(world, prepared.backend, run)
    if snapshot is None:
        raise RlctlError(f"run {run} has just been removed", hint="the same command again starts a new one")
    world.say(f"{run} has already finished; nothing is started. Its stored result:")
    _print_final(world, snapshot)
    world.say("  go on         change its stop condition, as in: --set stop.eval_return=...")
    world.document(_document(prepared, [], snapshot))
    return 0


def _apply(world: World, prepared: Prepared) -> list[Applied]:
    state = prepared.state
    for change in _once(prepared.changes):
        world.say(f"{change.action}: {change.why}")
    if state is not None:
        for role, replicas in state.replicas.items():
            wanted = next((entry.replicas for entry in prepared.plan.roles if entry.role == role), replicas)
            if replicas != wanted and state.spec_replicas.get(role) == wanted:
                world.say(f"keeping {replicas} of {role} (the spec says {wanted}, and did before)")
    done = follow(world, prepared.backend.apply(prepared.plan, prepared.documents, prepared.stored))
    if nothing_done(done):
        world.say(f"{prepared.plan.run}: unchanged")
    return done


def _end(world: World, prepared: Prepared, applied: list[Applied], outcome: Outcome) -> int:
    run, snapshot = prepared.plan.run, outcome.snapshot
    if outcome.why == "gone" or snapshot is None:
        raise RlctlError(f"run {run} was removed while we watched")
    if outcome.why == "detached":
        world.say(f"left {run}; it goes on\n{_come_back(run)}")
    elif outcome.why == "timeout":
        raise TimedOut(
            f"run {run} is not finished; it goes on", hint=f"rlctl wait {run} --for finished", objects=(run,)
        )
    elif snapshot.phase == "failed":
        raise RunFailed(snapshot)
    elif snapshot.phase == "stopped":
        raise RlctlError(f"run {run} was stopped by another command; its data stays", hint="rlctl up, to go on")
    else:
        _print_final(world, snapshot)
    world.document(_document(prepared, applied, snapshot))
    return 0


def _print_final(world: World, snapshot: Snapshot) -> None:
    for line in report.final(snapshot):
        world.data(line)
    world.say("next:")
    for line in report.look_next(snapshot):
        world.say(line)


def _come_back(run: str) -> str:
    return (
        f"  come back     rlctl status {run} -w\n"
        f"  logs          rlctl logs --run {run} -f\n"
        f"  stop          rlctl down {run}"
    )


def _document(prepared: Prepared, applied: list[Applied], snapshot: Snapshot | None) -> dict[str, Any]:
    return {
        "run": prepared.plan.run,
        "changes": [change_as_plain(change) for change in prepared.changes],
        "applied": as_plain(applied),
        "status": None if snapshot is None else as_document(snapshot),
    }


def _span(text: str | None) -> float | None:
    try:
        return None if text is None else span(text)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from error
