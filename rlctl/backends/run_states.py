"""State of a run on every target: its stored form, its replicas after an `up`, its readiness, checks of requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter
from typing import Any, Final, get_args

from rlctl.backends.base import Phase, Process, RunState
from rlctl.errors import BackendUnreachable, Conflict, RlctlError

FORMAT: Final = 1
_PHASES: Final[Mapping[str, Phase]] = {phase: phase for phase in get_args(Phase)}
ENDS: Final[Mapping[str, Phase]] = {"finished": "finished", "failed": "failed"}
"""Phases of a manager whose run has ended by itself."""


def to_stored(state: RunState) -> dict[str, Any]:
    """A state as JSON; without the failure, which has its own record, and without `stays`, which the manager tells."""
    stored = {each.name: getattr(state, each.name) for each in fields(state) if each.name not in ("failure", "stays")}
    return {"format": FORMAT, **stored, "created": state.created.isoformat()}


def from_stored(stored: Mapping[str, Any]) -> RunState:
    """Read the stored form of a state.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is no state, or has a format that this rlctl does not know.
    """
    if stored["format"] != FORMAT:
        raise ValueError(f"its format is {stored['format']}, this rlctl knows {FORMAT}")
    return RunState(
        run=str(stored["run"]),
        uid=str(stored["uid"]),
        target=str(stored["target"]),
        phase=_PHASES[stored["phase"]],
        rlctl_version=str(stored["rlctl_version"]),
        revision=int(stored["revision"]),
        created=datetime.fromisoformat(stored["created"]),
        storage=str(stored["storage"]),
        spec=dict(stored["spec"]),
        hashes={str(role): str(value) for role, value in stored["hashes"].items()},
        replicas=_counts(stored["replicas"]),
        spec_replicas=_counts(stored["spec_replicas"]),
        code=None if stored.get("code") is None else str(stored["code"]),
    )


def _counts(stored: Mapping[str, Any]) -> dict[str, int]:
    return {str(role): int(count) for role, count in stored.items()}


def newest_first(
    looks: Iterable[Callable[[], RunState | None]], broken: Callable[[RlctlError], object] | None
) -> list[RunState]:
    """Every run that one of the look-ups finds, newest first.

    Args:
        broken: called with the error of each run whose record cannot be read, which is left out; None: raise it.
    """
    found = []
    for look in looks:
        try:
            state = look()
        except BackendUnreachable as error:
            if broken is None:
                raise
            broken(error)
            continue
        found += [] if state is None else [state]
    return sorted(found, key=lambda state: state.created, reverse=True)


def live_counts(stored: RunState | None, of_spec: Mapping[str, int]) -> dict[str, int]:
    """Replicas of each role after an `up`: the live number stays unless the spec's own number has changed."""
    if stored is None:
        return dict(of_spec)
    return {
        role: stored.replicas.get(role, count) if stored.spec_replicas.get(role) == count else count
        for role, count in of_spec.items()
    }


def has_joined(told: Mapping[str, Any], wrote: float | None, started: datetime | None) -> bool:
    """Whether a process has reported to the manager since its own start; a learner has restored its generation by then.
    An older lease belongs to the process that had this index before, whose absence is not noticed yet.

    Args:
        told: entry of the process in the manager's status.
        wrote: unix time of that status.
    """
    if not told.get("joined") or wrote is None or started is None:
        return False
    return bool(wrote - told.get("age_s", 0.0) >= started.timestamp())


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a run: a replica is ready once it runs and has joined, and a run once every wanted replica is.

    Args:
        state: state of a run that is not over.
        processes: processes as the target lists them.
        status: status of the manager.
        answered: whether the status is the current one of a live manager; else it is a stored one, or empty.
    """

    state: RunState
    processes: Sequence[Process]
    status: Mapping[str, Any]
    answered: bool

    def lacking(self) -> str:
        """The first part that is not ready yet, in words; empty when the run is ready."""
        for role, wanted in self.state.replicas.items():
            if (run := sum(one.count for one in self._running(role))) < wanted:
                return f"{role}: {run} of {wanted} run"
        phase = self.status.get("phase", "starting")
        if not self.answered or phase == "starting":
            return "the manager has not reported"
        if phase == "failed":
            return "the run has failed"
        for role, wanted in self.state.replicas.items():
            if self.count(role) < wanted:
                absent = next(one for one in self._running(role) if not self.joined(one))
                return f"{role}/{absent.index} has not joined"
        return ""

    def count(self, role: str) -> int:
        """Replicas of a role that are ready."""
        return sum(one.count for one in self._running(role) if self.joined(one))

    def joined(self, process: Process) -> bool:
        """Whether a process has reported to the manager since its own start, which has to be known."""
        if process.role == "manager":
            return self.answered
        if self.state.target == "kubernetes":  # a pod is ready, and so runs, only once it has joined
            return True
        return has_joined(self.reported(process.role, process.index), self.status.get("time"), process.started)

    def reported(self, role: str, index: int) -> Mapping[str, Any]:
        """The manager's report on one process; empty when there is none."""
        # binary search: the manager lists them by index, and there may be thousands
        entries: Sequence[Mapping[str, Any]] = (self.status.get("roles") or {}).get(role) or ()
        at = bisect_left(entries, index, key=itemgetter("index"))
        return entries[at] if at < len(entries) and entries[at]["index"] == index else {}

    def _running(self, role: str) -> Iterable[Process]:
        return (one for one in self.processes if one.role == role and one.state == "running")


def check_role(known: RunState, role: str) -> None:
    """Check that a run has a role.

    Raises:
        Conflict: the run has no such role.
    """
    if role not in known.replicas:
        there = ", ".join(known.replicas)
        raise Conflict(f"run {known.run} has no role {role}", hint=f"It has {there}.", objects=(role,))


def check_count(known: RunState, role: str, count: int) -> None:
    """Check a replica count by the rules of every spec; `rlctl.changes.why_not_scale` applies those of this run's spec.

    Raises:
        Conflict: no such role, or it cannot have so many replicas.
    """
    check_role(known, role)
    if count < 0 or (role == "manager" and count != 1):
        bounds = "exactly 1 replica" if role == "manager" else "0 replicas or more"
        raise Conflict(f"{role} of run {known.run} has {bounds}, got {count}", objects=(role,))
