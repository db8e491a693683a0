"""`up --wait`: the reason why a run did not become ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlctl.cli.apply.attach import Outcome
from rlctl.cli.display.report import failure
from rlctl.cli.run.problems import label, of_process, sentence
from rlctl.cli.run.snapshot import Snapshot
from rlctl.cli.text import plain
from rlctl.errors import RlctlError, TimedOut, WorkloadFailed

if TYPE_CHECKING:
    from rlctl.backends.base import Process


class NotReady(TimedOut):
    """Timeout of `--wait`; `details` lists the problems."""

    def __init__(self, run: str, timeout: str, snapshot: Snapshot) -> None:
        slowest = snapshot.slowest
        super().__init__(
            f"run {run} is not ready after {timeout}" + (f"; slowest: {plain(slowest)}" if slowest else ""),
            hint=f"rlctl status {run}",
            objects=(slowest.partition(" ")[0],) if slowest else (run,),
        )
        self.details = [line for problem in snapshot.problems()[:3] for line in _details(problem)]


class Hopeless(WorkloadFailed):
    """A process that will never run; `details` has the target's evidence and the last log lines."""

    def __init__(self, run: str, process: Process) -> None:
        problem = of_process(process, f" --run {run}")
        super().__init__(plain(sentence(process)), hint=plain(problem["next"]), objects=(label(process),))
        self.details = _details(problem)[1:]


class RunFailed(WorkloadFailed):
    """A failed run; `details` has the last lines of the first cause, and the processes stopped because of it."""

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
    """Lines of a problem below an error: its sentence, the target's evidence, the last log lines."""
    lines = [str(problem["text"])]
    if problem.get("evidence"):
        lines.append(f"said: {problem['evidence']}")
    last = problem.get("lines")
    lines += [f"| {line}" for line in last] if isinstance(last, list) else []
    return [plain(part) for line in lines for part in line.split("\n")]


def why_not(run: str, outcome: Outcome, timeout: str) -> RlctlError | None:
    """Error of an `up` with this outcome; None: the run is ready, or has finished."""
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
