"""A run at one moment, from wherever it can be learned: its manager, its processes, what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rlctl.errors import BackendUnreachable, RlctlError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, Process, RunState
    from rlctl.cli.world import World

_COUNTS = ("env_steps", "frames", "agent_steps", "consumed_rows", "unique_rows", "updates", "episodes")
_RATES = ("env_steps", "frames", "agent_steps", "consumed_rows", "unique_rows", "updates")
ANSWERS_WITHIN_S = 20.0
PATIENCE_S = 3.0
_SOUND = ("starting", "running")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a run."""

    state: RunState
    processes: tuple[Process, ...]
    status: Mapping[str, Any]  # the manager's, every key of it present
    answered: bool  # by a live manager; else from what was stored
    at: datetime

    @property
    def phase(self) -> str:
        """starting, running, stopped, finished or failed."""
        if self.state.phase != "running":
            return self.state.phase
        return "starting" if self.status["phase"] == "starting" else "running"

    @property
    def over(self) -> bool:
        """No process of the run lives."""
        return self.state.phase != "running"

    @property
    def ready(self) -> bool:
        """It runs, and every wanted replica of every role does."""
        return (
            self.phase == "running"
            and self.answered
            and all(self.running(role) >= wanted for role, wanted in self.state.replicas.items())
        )

    @property
    def healthy(self) -> bool:
        """It has finished, or it is ready and nothing is wrong."""
        return self.phase == "finished" or (self.ready and not self.problems())

    def running(self, role: str) -> int:
        return sum(process.role == role and process.state == "running" for process in self.processes)

    def members(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def reported(self, role: str, index: int) -> Mapping[str, Any]:
        """What the manager knows of one process."""
        for entry in self.status["roles"].get(role) or ():
            if entry.get("index") == index:
                return entry  # type: ignore[no-any-return]
        return {}

    def problems(self) -> list[dict[str, str]]:
        """What is wrong, in words, each with the next command: `text` and `next`."""
        if self.phase == "finished":
            return []
        found: list[dict[str, str]] = []
        failure = self.state.failure
        if failure is not None and self.phase == "failed":
            whose = f" {failure.process}" if "/" in failure.process else ""  # the supervisor has no log of records
            found.append({"text": failure.text, "next": f"rlctl logs{whose}{self._named} --tail 50"})
        if not self.over:
            # who ends because the goal is reached is no problem
            sound = (*_SOUND, "stopping", "exited") if self.status["stop"].get("met") else (*_SOUND, "stopping")
            for process in self.processes:
                if process.state not in sound:
                    why = f": {process.reason}" if process.reason else ""
                    name = f"{process.role}/{process.index}"
                    found.append(
                        {"text": f"{name} is in {process.state}{why}", "next": f"rlctl logs {name}{self._named}"}
                        if process.state == "backoff"
                        else {"text": f"{name} has {process.state}{why}", "next": f"rlctl logs {name}{self._named}"}
                    )
            for role, wanted in self.state.replicas.items():
                if len(self.members(role)) < wanted:
                    found.append(
                        {
                            "text": f"{role}: {len(self.members(role))} of {wanted} replicas exist",
                            "next": f"rlctl status{self._named} -o wide",
                        }
                    )
            if self.silent:
                found.append({"text": "the manager does not answer", "next": f"rlctl logs manager{self._named}"})
            known = {problem["text"] for problem in found}
            found += [dict(problem) for problem in self.status["problems"] if problem.get("text") not in known]
        return found

    @property
    def silent(self) -> bool:
        """The manager should have answered and did not: its figures are old."""
        return not self.over and not self.answered and self._should_answer

    @property
    def slowest(self) -> str:
        """What everybody waits for, in a few words; empty when nothing is."""
        for process in self.processes:
            if process.state != "running":
                why = f": {process.reason}" if process.reason else ""
                return f"{process.role}/{process.index} ({process.state}{why})"
        for role, wanted in self.state.replicas.items():
            if self.running(role) < wanted:
                return f"{role} ({self.running(role)} of {wanted} run)"
        return "" if self.answered else "manager/0 (no answer yet)"

    @property
    def _should_answer(self) -> bool:
        """The manager has had time enough."""
        started = [process.started for process in self.members("manager") if process.state == "running"]
        return any(begun and (self.at - begun).total_seconds() > ANSWERS_WITHIN_S for begun in started)

    @property
    def _named(self) -> str:
        return f" --run {self.state.run}"


def take(world: World, backend: Backend, run: str) -> Snapshot | None:
    """The run as it is now; None when there is no such run (any more).

    Raises:
        BackendUnreachable: the target did not answer for PATIENCE_S; while a run ends it may be away for a moment.
    """
    deadline_s = world.clock() + PATIENCE_S
    while True:
        try:
            return _take(backend, run, world.now())
        except BackendUnreachable:
            if world.clock() >= deadline_s:
                raise
            world.sleep(0.25)


def _take(backend: Backend, run: str, now: datetime) -> Snapshot | None:
    state = backend.find(run)
    if state is None:
        return None
    status: Mapping[str, Any] | None = None
    answered = False
    if state.phase == "running":
        try:
            status = backend.control(run, "GET", "/status")
            answered = True
        except RlctlError:
            pass  # not up yet, ending, being replaced, or not ready to answer: the processes tell
    processes = tuple(backend.processes(run))
    if status is None:
        with suppress(BackendUnreachable):  # torn: the manager writes it anew, and it only repeats what others know
            status = backend.stored_status(run)
        if status is not None and state.phase == "running" and not _of_this_life(status, processes):
            status = {**status, "phase": "starting", "problems": [], "roles": {}}
    return Snapshot(state, processes, complete(status, state), answered, now)


def _of_this_life(stored: Mapping[str, Any], processes: tuple[Process, ...]) -> bool:
    """Whether the manager that stored this is the one that runs, or has just ended; else it says nothing of now."""
    managers = [process for process in processes if process.role == "manager" and process.state in _SOUND]
    wrote = float(stored.get("time") or 0)
    return all(manager.started is not None and wrote >= manager.started.timestamp() for manager in managers)


def complete(status: Mapping[str, Any] | None, state: RunState) -> dict[str, Any]:
    """The manager's status with every key present, so that readers need no defaults of their own."""
    given = dict(status or {})
    empty: dict[str, Any] = {
        "run": state.run, "uid": state.uid, "term": 0, "phase": "starting", "time": None, "wall_s": 0.0, "cpu_s": {},
        "verdict": {"kind": "starting", "text": "starting: no report yet"},
        "throughput": {}, "totals": {}, "lag": {}, "train_return": None, "evaluation": None, "history": [],
        "stop": {}, "policies": {}, "roles": {}, "checkpoint": None, "resumed": None, "problems": [],
    }  # fmt: skip
    filled = {**empty, **{key: value for key, value in given.items() if value is not None}}
    filled["throughput"] = {f"{name}_per_s": 0.0 for name in _RATES} | filled["throughput"]
    filled["totals"] = dict.fromkeys(_COUNTS, 0) | filled["totals"]
    filled["lag"] = {"mean": None, "p95": None, "max": None} | filled["lag"]
    filled["stop"] = {"conditions": {}, "met": None} | filled["stop"]
    filled["verdict"] = {
        "learner_waits_data": None, "actor_waits_credit": None, "actor_waits_model": None, "suggest": None,
    } | filled["verdict"]  # fmt: skip
    return filled


def as_document(snapshot: Snapshot) -> dict[str, Any]:
    """What `-o json` says of a run: the manager's status, and what the target knows."""
    from rlctl.cli.text import rfc3339

    state, failure = snapshot.state, snapshot.state.failure
    return {
        **snapshot.status,
        "phase": snapshot.phase,
        "ready": snapshot.ready,
        "healthy": snapshot.healthy,
        "problems": snapshot.problems(),
        "target": state.target,
        "storage": state.storage,
        "revision": state.revision,
        "rlctl": state.rlctl_version,
        "created": rfc3339(state.created),
        "replicas": dict(state.replicas),
        "processes": [
            {
                "role": process.role, "index": process.index, "state": process.state, "pid": process.pid,
                "started": rfc3339(process.started) if process.started else None,
                "restarts": process.restarts, "reason": process.reason,
            }
            for process in snapshot.processes
        ],
        "failure": None
        if failure is None
        else {
            "process": failure.process, "text": failure.text, "last_lines": list(failure.last_lines),
            "at": rfc3339(failure.at), "stopped_because": list(failure.stopped_because),
        },
    }  # fmt: skip
