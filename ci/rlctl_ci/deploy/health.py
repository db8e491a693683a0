"""Health of a run: its processes, its manager's report, and the agent steps that its learner consumes a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlctl.backends.base import Backend, Process
from rlctl.backends.run_states import Readiness
from rlctl.errors import BackendUnreachable, RlctlError, TimedOut, WorkloadFailed

POLL_S = 0.5
LATE_S = 10.0
"""Seconds by which the end of a watch is put off, at most, until a poll finds the run ready."""
SOON_S = 0.1
"""Seconds between the first polls of a run that becomes ready: most take seconds, and polling a large one is slow."""
MAX_RESTARTS = 2
"""Restarts since the deployment at which a process counts as failed: fewer than with `rlctl up`, because all other
processes run already, and there is a working revision to roll back to."""
FIRST_UPDATE_S = 20.0
"""Seconds within which a learner that has just started consumes its first agent steps: a watch begins there."""


class RunUnhealthy(WorkloadFailed):
    """The run has failed, is no longer ready, or is slower than before; `details` holds the last log lines."""

    def __init__(self, message: str, lines: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = [f"| {line}" for line in lines[-15:]]


@dataclass(frozen=True, slots=True)
class RunHealth:
    """State of a run at one poll."""

    ready: bool
    missing: str  # processes that are not ready yet
    steps: float  # agent steps consumed in all, since the beginning
    restarts: int
    finished: bool
    trouble: str = ""  # how a process died last
    lines: tuple[str, ...] = ()  # of its log
    processes: tuple[Process, ...] = ()


def look(backend: Backend, run: str) -> RunHealth:
    """Poll a run.

    Raises:
        RunUnhealthy: it has failed, was stopped or is gone, or a process cannot recover.
        BackendUnreachable: the target does not answer.
    """
    state = backend.find(run)
    if state is None:
        raise RunUnhealthy(f"run {run} is gone")
    if state.phase == "failed":
        cause = state.failure
        raise RunUnhealthy(cause.text if cause else f"run {run} has failed", cause.last_lines if cause else ())
    if state.phase == "stopped":
        raise RunUnhealthy(f"run {run} was stopped meanwhile")
    if state.phase == "finished":
        return RunHealth(True, "", 0.0, 0, True)
    processes = backend.processes(run)
    lost = next((one for one in processes if one.permanent), None)
    if lost is not None:
        raise RunUnhealthy(_of(lost), lost.first_cause_lines)
    status = report(backend, run)
    died = max((one for one in processes if one.trouble), key=lambda one: one.restarts, default=None)
    steps = float(((status or {}).get("totals") or {}).get("consumed_steps") or 0)
    lacking = Readiness(state, processes, status or {}, answered=status is not None).lacking()
    return RunHealth(
        ready=not lacking,
        missing=lacking,
        steps=steps,
        restarts=sum(one.restarts for one in processes),
        finished=False,
        trouble="" if died is None else died.trouble,
        lines=() if died is None else died.first_cause_lines,
        processes=tuple(processes),
    )


def missing(backend: Backend, run: str) -> str:
    """Processes that are not ready, or why none ever will be; empty when all are.

    Raises:
        BackendUnreachable: the target does not answer.
    """
    try:
        return look(backend, run).missing
    except RunUnhealthy as error:
        return error.message


def _of(process: Process) -> str:
    return f"{process.role}/{process.index}: {process.reason or process.state}"


def report(backend: Backend, run: str) -> Mapping[str, Any] | None:
    """Status of the run's manager; None when it does not answer."""
    try:
        told = backend.control(run, "GET", "/status")
    except RlctlError:
        return None
    return told if isinstance(told, Mapping) else None


def throughput(status: Mapping[str, Any] | None) -> float:
    """Agent steps that the learner consumes a second."""
    return float(((status or {}).get("throughput") or {}).get("consumed_steps_per_s") or 0.0)


def await_ready(
    backend: Backend, run: str, within_s: float, *, clock: Callable[[], float], sleep: Callable[[float], None]
) -> RunHealth:
    """Wait until every replica is ready.

    Raises:
        RunUnhealthy: it cannot become ready, or a process dies again and again.
        TimedOut: it is not ready in time.
    """
    begun, missing = clock(), "nothing is known of it"
    before: dict[tuple[str, int, str], int] | None = None
    while True:
        try:
            seen = look(backend, run)
            if seen.ready:
                return seen
            down = [one for one in seen.processes if one.state == "backoff"]
            missing = "; ".join([seen.missing, *map(_of, down)])
            before = {_key(one): one.restarts for one in seen.processes} if before is None else before
            for one in down:
                if one.restarts - before.get(_key(one), 0) >= MAX_RESTARTS:
                    raise RunUnhealthy(_of(one), one.first_cause_lines)
        except BackendUnreachable as error:
            missing = error.message
        waited_s = clock() - begun
        if waited_s >= within_s:
            raise TimedOut(f"run {run} is not ready after {within_s:g} s: {missing}")
        sleep(min(POLL_S, max(SOON_S, waited_s / 20)))


def _key(process: Process) -> tuple[str, int, str]:
    return process.role, process.index, process.name


def watch(
    backend: Backend, run: str, *, watch_s: float, before_per_s: float, least: float, clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> str:  # fmt: skip
    """Watch a run that is ready; returns a summary.

    Args:
        watch_s: seconds, from the first agent steps that are consumed; 0 polls once.
        before_per_s: agent steps that its learner consumed a second before.
        least: share of those that it has to reach, from 0 to 1.

    Raises:
        RunUnhealthy: a process died, or the learner consumes nothing or too little.
        BackendUnreachable: the target does not answer at the end.
    """
    first, ready = look(backend, run), clock()
    last, per_s, restarts = first, 0.0, first.restarts
    begun, updates_by, learns, answered = ready, ready + FIRST_UPDATE_S, before_per_s <= 0, True

    def goes_on() -> bool:
        """Whether to go on. A poll that failed or was not answered does not decide: the end is put off for a while."""
        late_s = 0.0 if answered and last.ready else LATE_S
        return clock() - begun < watch_s + late_s or (not learns and clock() < updates_by)

    while watch_s and goes_on():
        sleep(min(POLL_S, watch_s))
        try:
            last, answered = look(backend, run), True
        except BackendUnreachable:
            answered = False  # a moment's silence is no fault; at the end there must be an answer
            continue
        if last.finished:
            return "the run has finished"
        if last.restarts > restarts:
            why = last.trouble or "a process died"
            raise RunUnhealthy(f"{why} ({clock() - ready:.0f} s after {run} was ready)", last.lines)
        per_s = (last.steps - first.steps) / max(1e-9, clock() - begun) if last.ready else per_s
        if not learns and last.ready and last.steps > first.steps and clock() < updates_by:
            first, begun, learns = last, clock(), True
    if last.finished or watch_s == 0:
        return "ready"
    if not answered:
        raise BackendUnreachable(f"the target does not say how run {run} is at the end of its watch")
    if not last.ready:
        raise RunUnhealthy(f"run {run} is ready no more: {last.missing}")
    if before_per_s > 0 and per_s < least * before_per_s:
        raise RunUnhealthy(f"{per_s:.0f} steps/s, and it was {before_per_s:.0f} before: less than {least:.0%} of it")
    return f"ready, {per_s:.0f} steps/s (before: {before_per_s:.0f})"
