"""`up --wait`: until every replica runs, with the reason when that does not happen; `--atomic` undoes it then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlctl.cli.context import World
from rlctl.cli.display.problems import label, of_process, sentence
from rlctl.cli.display.report import failure
from rlctl.cli.display.text import plain
from rlctl.cli.run.applied import follow, grace_s, nothing_done
from rlctl.cli.run.attach import Outcome
from rlctl.cli.run.snapshot import Snapshot
from rlctl.errors import RlctlError, TimedOut, WorkloadFailed

if TYPE_CHECKING:
    from rlctl.backends.base import Process, RunState
    from rlctl.cli.run.prepare import Prepared


class NotReady(TimedOut):
    """The time is up; `details` has what is wrong."""

    def __init__(self, run: str, timeout: str, snapshot: Snapshot) -> None:
        slowest = snapshot.slowest
        super().__init__(
            f"run {run} is not ready after {timeout}" + (f"; slowest: {plain(slowest)}" if slowest else ""),
            hint=f"rlctl status {run}",
            objects=(slowest.partition(" ")[0],) if slowest else (run,),
        )
        self.details = [line for problem in snapshot.problems()[:3] for line in _details(problem)]


class Hopeless(WorkloadFailed):
    """A process that will not run by waiting; `details` has what the target said, and its last lines."""

    def __init__(self, run: str, process: Process) -> None:
        problem = of_process(process, f" --run {run}")
        super().__init__(plain(sentence(process)), hint=plain(problem["next"]), objects=(label(process),))
        self.details = _details(problem)[1:]


class RunFailed(WorkloadFailed):
    """The first cause; `details` has the last lines of that process, and the processes stopped because of it."""

    def __init__(self, snapshot: Snapshot) -> None:
        run, cause = snapshot.state.run, snapshot.state.failure
        super().__init__(
            cause.text if cause else f"run {run} has failed",
            hint=where_to_look(snapshot),
            objects=(cause.process, *cause.stopped_because) if cause else (run,),
        )
        self.details = failure(snapshot)


def where_to_look(snapshot: Snapshot) -> str:
    """The command that shows the first cause of a failed run."""
    run, cause = snapshot.state.run, snapshot.state.failure
    if cause is None or "/" not in cause.process:  # the supervisor itself has no log of records
        return f"rlctl logs --run {run} --tail 50"
    return f"rlctl logs {cause.process} --run {run}"


def _details(problem: dict[str, object]) -> list[str]:
    """A problem below an error: its sentence, what was said, the last lines."""
    lines = [str(problem["text"])]
    if problem.get("evidence"):
        lines.append(f"said: {problem['evidence']}")
    last = problem.get("lines")
    lines += [f"| {line}" for line in last] if isinstance(last, list) else []
    return [plain(part) for line in lines for part in line.split("\n")]


def why_not(run: str, outcome: Outcome, timeout: str) -> RlctlError | None:
    """Error of an `up --wait` that has ended so; None: the run is ready, or over as it should be."""
    snapshot = outcome.snapshot
    if snapshot is None or outcome.why == "gone":
        return RlctlError(f"run {run} was removed while we watched")
    if outcome.why == "hopeless" and outcome.culprit is not None:
        return Hopeless(run, outcome.culprit)
    if outcome.why == "timeout":
        return NotReady(run, timeout, snapshot)
    if snapshot.phase == "failed":
        return RunFailed(snapshot)
    if snapshot.phase == "stopped":
        return RlctlError(f"run {run} was stopped by another command; its data stays", hint="rlctl up SPEC, to go on")
    return None


def undo(world: World, prepared: Prepared) -> str:
    """As it was before the `up`: the revision before again, or nothing of it. What was learned before stays.

    Returns:
        What was done, in words. That it could not be undone is words, too: the cause of all this is the news.
    """
    backend, before, run = prepared.backend, prepared.state, prepared.plan.run
    try:
        if before is None and not prepared.remains:
            world.mention(f"--atomic: removing {run}, which was not there before")
            follow(world, backend.delete(run, volumes=True, grace_s=grace_s(backend)), heard=False)
            return f"{run} is removed again"
        if before is None or before.phase != "running":
            world.mention(f"--atomic: stopping {run}, which did not run before")
            follow(world, backend.delete(run, volumes=False, grace_s=grace_s(backend)), heard=False)
            return f"{run} is stopped again; its data stays"
        if before.revision == 0:
            return f"nothing of {run} was undone: no `up` of it has ever come to its end, so there is no way back"
        # even while its number is still the same: it moves with an `up`'s last write, after all the others
        world.mention(f"--atomic: rolling {run} back to revision {before.revision}")
        done = follow(world, backend.rollback(run, before.revision), heard=False)
        if scaled := _scaled(before, backend.find(run)):
            done += follow(world, backend.scale(run, scaled), heard=False)
        if nothing_done(done):
            return f"revision {before.revision} of {run} runs as before: there was nothing to roll back"
        return f"{run} is rolled back to revision {before.revision}"
    except RlctlError as error:
        return f"it could not be undone: {error.message}" + (f"; {error.hint}" if error.hint else "")


def _scaled(before: RunState, now: RunState | None) -> dict[str, int]:
    """Numbers that `rlctl scale` had set, where a rollback has brought back that of the spec."""
    if now is None:
        return {}
    return {role: count for role, count in before.replicas.items() if now.replicas.get(role) != count}
