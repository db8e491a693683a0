"""`rlctl up`: make a target run what the spec says, and stay with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rlctl.cli.apply import spec_check
from rlctl.cli.apply.applied import nothing_done
from rlctl.cli.apply.attach import Interrupts, Outcome, attach
from rlctl.cli.apply.bring_up import bring_up, say_newer_code, undo
from rlctl.cli.apply.dry_run import DryRun, dry_run
from rlctl.cli.apply.preflight import nothing_to_do, preflight
from rlctl.cli.apply.ready import Hopeless, NotReady, RunFailed, why_not
from rlctl.cli.context import ON_CLUSTERS, Signalled, World
from rlctl.cli.display import report
from rlctl.cli.display.progress import Progress
from rlctl.cli.models.initial import initial
from rlctl.cli.options import Sets, Specs, Target, verb
from rlctl.cli.run.clusters import where
from rlctl.cli.run.prepare import Prepared, check_place, load, prepare, refuse, say_notes
from rlctl.cli.run.snapshot import Snapshot, as_document, take
from rlctl.cli.text import span
from rlctl.errors import Left, RlctlError, TimedOut

if TYPE_CHECKING:
    from rlctl.backends.base import Applied, Check
    from rlctl.cli.models.initial import Initial
    from rlctl.spec import Loaded

READY_WITHIN = "10m"
"""Timeout of `--wait` without --timeout."""


@dataclass(frozen=True, slots=True)
class UpProgress:
    """Progress of one `up`, for its document."""

    prepared: Prepared
    applied: list[Applied]
    looked_at: list[Check]  # before anything was sent


@verb("namespace", "context")
def up(
    world: World,
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
    wait: Annotated[bool, typer.Option("--wait", help="Return once every replica runs; --timeout bounds it.")] = False,
    atomic: Annotated[
        bool, typer.Option("--atomic", help="As --wait; when that fails, put back what was there before.")
    ] = False,
    dry: Annotated[
        DryRun | None, typer.Option("--dry-run", help="Show what would be sent and changed, and change nothing.")
    ] = None,
    pull: Annotated[
        bool, typer.Option("--pull", help="Ask registries again what the tags of images are, whatever is recorded.")
    ] = False,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Even if the run, or fields of its objects, have another owner.")
    ] = False,
) -> int:
    """Start a run, or change one that is there.

    On this machine the environment is tried first, by a process of its own and for 5 seconds at most, 20 where torch is
    needed: exit 3 when it does not exist or fails, or a replay needs more memory than there is. The same again changes
    nothing, and says so.
    Stays until a stop condition is met (exit 0) or the run has failed (exit 7). Ctrl-C once leaves and says how to come
    back, the run goes on (exit 0); twice leaves at once (exit 130). What `init` of a new run names is looked up first,
    and copied into its storage: exit 3 when it is not there or does not fit. --wait ends with 7 when a replica never
    will run, with 6 after --timeout (10m); with it or --atomic Ctrl-C is exit 130 and undoes nothing. --dry-run client
    asks no cluster, server lets the cluster judge; neither changes anything. The tag of an image is resolved once: its
    digest is recorded and holds until the spec names another tag, or --pull.
    """
    timeout_s = None if timeout is None else span(timeout, "--timeout")
    if dry is not None:
        return dry_run(world, specs or (), sets, target, dry, force_conflicts=force_conflicts, pull=pull)
    with Interrupts() as interrupts:
        loaded = load(world, specs or (), sets, target)
        check_place(world, loaded, pull=pull)
        with initial(world, loaded) as policy:
            prepared, looked_at = _prepared(world, loaded, policy, pull=pull)
            if looked_at is None:
                return _already_finished(world, prepared)
            if interrupts.asked:
                raise Signalled(130, f"nothing of {prepared.plan.run} was changed")
            prepared.backend.force_conflicts = force_conflicts
            deadline = None if timeout_s is None else world.clock() + timeout_s
            done = _applied(
                world, prepared, policy, looked_at, interrupts, deadline=deadline, wait=wait or atomic, atomic=atomic
            )
            if done is None:
                return 0
            if nothing_done(done.applied) and not world.quiet:
                say_newer_code(world, prepared)
        left_s = None if deadline is None else max(0.0, deadline - world.clock())
        if wait or atomic:
            ready_s = span(READY_WITHIN, "--timeout") if left_s is None else left_s
            outcome = attach(
                world, prepared.backend, prepared.plan.run, interrupts=interrupts, progress=progress,
                timeout_s=ready_s, until_ready=True,
            )  # fmt: skip
            return _end_wait(world, done, outcome, timeout or READY_WITHIN, atomic=atomic)
        return _detach(world, done) if detach else _stay(world, done, interrupts, progress, left_s)


def _prepared(
    world: World, loaded: Loaded, policy: Initial | None, *, pull: bool
) -> tuple[Prepared, list[Check] | None]:
    """The run as it is and as it is wanted, and what was looked at; None: there is nothing to do."""
    with spec_check.started_check(world, loaded, policy) as asked:  # imports a simulator while we look for the run
        prepared = prepare(world, loaded, mint=True, pull=pull)
        say_notes(world, prepared)
        refuse(prepared)
        run = prepared.plan.run
        for folder in prepared.unknown:
            world.say(f"note: {folder} is of an earlier run {run} that the index does not know: {_BEGINS}")
        if nothing_to_do(prepared):
            return prepared, None
        if prepared.spec.target in ON_CLUSTERS:
            world.say(f"{run} on {where(prepared.backend, prepared.spec.target)}")
        return prepared, preflight(world, prepared, asked)


def _applied(
    world: World,
    prepared: Prepared,
    policy: Initial | None,
    looked_at: list[Check],
    interrupts: Interrupts,
    *,
    deadline: float | None,
    wait: bool,
    atomic: bool,
) -> UpProgress | None:
    """Send what has changed; None: Ctrl-C has left a wait in which nothing is written, and that is told.

    Args:
        deadline: time at which such a wait is left, too.
        wait: the command has to see its run ready.

    Raises:
        Left: at the deadline.
        Signalled: by Ctrl-C, where the command has to see its run ready.
    """
    backend, run = prepared.backend, prepared.plan.run

    def late() -> bool:
        return deadline is not None and world.clock() >= deadline

    backend.leave = lambda: interrupts.asked or late()
    try:
        return UpProgress(prepared, bring_up(world, prepared, atomic=atomic, policy=policy), looked_at)
    except Left as left:
        backend.leave = lambda: False
        if late():
            left.hint = undo(world, prepared) if atomic else left.hint
            raise
        so_far = f"  so far        {left.message}; the same command goes on"
        told = f"left {run}\n{so_far}\n{_come_back(run)}"
        if wait:
            raise Signalled(130, told) from None
        world.say(told)
        world.document(_document(UpProgress(prepared, [], looked_at), take(world, backend, run)))
        return None
    finally:
        backend.leave = lambda: False


_BEGINS: Final = "this is a new one, and begins at step 0 (docs/operations.md tells how to move a run)"


def _already_finished(world: World, prepared: Prepared) -> int:
    run = prepared.plan.run
    snapshot = take(world, prepared.backend, run)
    if snapshot is None:
        raise RlctlError(f"run {run} has just been removed", hint="the same command again starts a new one")
    world.say(f"{run} has already finished; nothing is started. Its stored result:")
    _print_final(world, snapshot)
    world.say("  go on         change its stop condition, as in: --set stop.eval_return=...")
    world.document(_document(UpProgress(prepared, [], []), snapshot))
    return 0


def _end_wait(world: World, done: UpProgress, outcome: Outcome, timeout: str, *, atomic: bool) -> int:
    prepared, snapshot = done.prepared, outcome.snapshot
    run = prepared.plan.run
    if outcome.why == "detached":
        undo_it = f"  undo it       rlctl rollback --run {run}\n" if done.prepared.changes else ""
        kept = "; what --atomic would have undone stays" if atomic else ""
        raise Signalled(130, f"left {run} before it was ready; it goes on{kept}\n{undo_it}{_come_back(run)}")
    error = why_not(run, outcome, timeout)
    if error is not None:
        if atomic and isinstance(error, NotReady | Hopeless | RunFailed):  # else another command has taken it over
            error.details.append(undo(world, prepared))
        raise error
    if snapshot is not None and snapshot.over:
        _print_final(world, snapshot)
    else:
        world.say(f"{run} is ready\n{_come_back(run)}")
    world.document(_document(done, snapshot))
    return 0


def _detach(world: World, done: UpProgress) -> int:
    run = done.prepared.plan.run
    snapshot = take(world, done.prepared.backend, run)
    if snapshot is not None and snapshot.phase == "failed":
        raise RunFailed(snapshot)
    world.say(f"{run} is up\n{_come_back(run)}")
    world.document(_document(done, snapshot))
    return 0


def _stay(world: World, done: UpProgress, interrupts: Interrupts, progress: Progress, left_s: float | None) -> int:
    """Stay with a run until it is over, or Ctrl-C or --timeout leave it."""
    run = done.prepared.plan.run
    try:
        outcome = attach(world, done.prepared.backend, run, interrupts=interrupts, progress=progress, timeout_s=left_s)
    except Signalled as gone:
        raise Signalled(gone.exit_code, f"left {run}; it goes on\n{_come_back(run)}") from None
    snapshot = outcome.snapshot
    if outcome.why == "detached" and snapshot is not None:
        world.say(f"left {run}; it goes on\n{_come_back(run)}")
    elif outcome.why == "timeout" and snapshot is not None:
        raise TimedOut(
            f"run {run} is not finished; it goes on", hint=f"rlctl wait {run} --for finished", objects=(run,)
        )
    elif (error := why_not(run, outcome, "")) is not None:
        raise error
    elif snapshot is not None:
        _print_final(world, snapshot)
    world.document(_document(done, snapshot))
    return 0


def _print_final(world: World, snapshot: Snapshot) -> None:
    world.lines(report.final(snapshot))
    world.say("next:")
    for line in report.look_next(snapshot):
        world.say(line)


def _come_back(run: str) -> str:
    return (
        f"  come back     rlctl status {run} -w\n"
        f"  logs          rlctl logs --run {run} -f\n"
        f"  stop          rlctl down {run}"
    )


def _document(done: UpProgress, snapshot: Snapshot | None) -> dict[str, Any]:
    from rlctl.backends.revisions import images_of

    return {
        "run": done.prepared.plan.run,
        "images": images_of(done.prepared.stored) if done.prepared.spec.target in ON_CLUSTERS else {},
        "changes": done.prepared.changes,
        "applied": done.applied,
        "status": None if snapshot is None else as_document(snapshot),
        "preflight": done.looked_at,
    }
