"""Snapshot of a run at one moment, from its manager, its processes, and what was stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rlctl.cli.context import ON_CLUSTERS
from rlctl.cli.run import problems as faults
from rlctl.cli.run.clusters import where
from rlctl.errors import BackendUnreachable, RlctlError, Unreadable
from rlctl.spec.layout import API_VERSION

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, Process, RunState
    from rlctl.backends.run_states import Readiness
    from rlctl.cli.context import World

_WORDS_OF_0_1 = {
    "consumed_rows": "consumed_steps", "consumed_rows_per_s": "consumed_steps_per_s",
    "unique_rows": "learned_steps", "unique_rows_per_s": "learned_steps_per_s", "rows": "steps",
}  # fmt: skip
_COUNTS = ("env_steps", "frames", "agent_steps", "consumed_steps", "learned_steps", "updates", "episodes")
_RATES = ("env_steps", "frames", "agent_steps", "consumed_steps", "learned_steps", "updates")
_SHARES = (
    "learner_waits_data", "learner_waits_draw", "learner_waits_model", "actor_waits_credit", "actor_waits_model",
    "actor_simulates", "shard_busy",
)  # fmt: skip
ANSWERS_WITHIN_S = 20.0
PATIENCE_S = 2.5
"""Seconds for which a target that does not answer is asked again: a run that ends takes its supervisor with it."""
AWAY_S: Final = 300.0
"""Seconds without an answer of the target after which a command stops waiting for a run; the run goes on."""
_SOUND = ("starting", "running")
_TABLES = (
    "verdict", "throughput", "totals", "lag", "replay", "train_return", "train_info", "evaluation", "evaluations",
    "models", "stop", "policies", "members", "roles", "cpu_s",
)  # fmt: skip
_LISTS = {"history": list, "recordings": Mapping, "problems": Mapping}
"""Lists, and what they hold."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a run at one moment."""

    state: RunState
    processes: tuple[Process, ...]
    status: Mapping[str, Any]  # the manager's, every key of it present
    answered: bool  # by a live manager; else from what was stored
    at: datetime
    where: str = ""  # target, context and namespace in words
    unseen: BackendUnreachable | None = None  # why the states of the processes are unknown
    torn: str = ""  # why there is no status of a run that is over

    @property
    def phase(self) -> str:
        """starting, running, stopped, finished or failed."""
        if self.state.phase != "running":
            return self.state.phase
        return "starting" if self.status["phase"] == "starting" else "running"

    @property
    def over(self) -> bool:
        """Whether the run is no longer live; on a cluster its manager may still answer."""
        return self.state.phase != "running"

    @property
    def ready(self) -> bool:
        """Whether the run is live, and every wanted replica of every role runs and has joined."""
        return not self.over and not self._readiness.lacking()

    @property
    def healthy(self) -> bool:
        """Whether the run has finished, or is ready and has no problem."""
        return self.phase == "finished" or (self.ready and not self.problems(past=False))

    @property
    def seats(self) -> int:
        """Seats of the environment, from the newest evaluation; 1 before there is one."""
        return int((self.status["evaluation"] or {}).get("seats", 1))

    def running(self, role: str) -> int:
        return sum(process.count for process in self.members(role) if process.state == "running")

    def ready_of(self, role: str) -> int:
        """Replicas of a role that run and have joined."""
        return self._readiness.count(role)

    def members(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    def reported(self, role: str, index: int) -> Mapping[str, Any]:
        """The manager's report on one process."""
        return self._readiness.reported(role, index)

    def problems(self, *, past: bool = True) -> list[dict[str, Any]]:
        """Problems in words, each with the next command: `text`, `next`, perhaps `evidence` and `lines`.

        Args:
            past: include processes that were already replaced, as an evicted pod.
        """
        found: list[dict[str, Any]] = []
        if self.torn:
            text = f"figures of this run are missing, not 0: {self.torn}"
            found.append({"text": text, "next": f"rlctl logs manager{self._named}"})
        if self.phase == "finished":
            return found
        found += self.target_problems()
        failure = self.state.failure
        if failure is not None and self.phase == "failed":
            whose = f" {failure.process}" if "/" in failure.process else ""  # the supervisor has no log of records
            found.append({"text": failure.text, "next": f"rlctl logs{whose}{self._named} --tail 50"})
        if self.over:
            return found
        found += [*self._process_problems(past=past), *self._missing_replicas()]
        if self.silent:
            found.append({"text": "the manager does not answer", "next": f"rlctl logs manager{self._named}"})
        known = {problem["text"] for problem in found}
        found += [dict(problem) for problem in self.status["problems"] if problem.get("text") not in known]
        return found

    def _process_problems(self, *, past: bool) -> Iterator[dict[str, Any]]:
        # a process that ends because the goal is reached is no problem
        sound = (*_SOUND, "stopping", "exited") if self.status["stop"].get("met") else (*_SOUND, "stopping")
        for process in () if self.unseen else sorted(self.processes, key=faults.urgency):
            if (process.state not in sound or process.permanent) and (past or not faults.past(process)):
                told = faults.of_process(process, self._named)
                yield told if process.next else {**told, "next": self._way_out(process)}
            elif process.trouble:
                yield {"text": told_of(process), "next": self._way_out(process)}

    def _missing_replicas(self) -> Iterator[dict[str, Any]]:
        for role, wanted in self.state.replicas.items():
            there = sum(process.count for process in self.members(role))
            if there < wanted:
                text = f"{role}: {there} of {wanted} replicas exist"
                yield {"text": text, "next": f"rlctl status{self._named} -o wide"}

    def target_problems(self) -> list[dict[str, str]]:
        """Problem of a target that does not report the states of its processes; [] otherwise."""
        if self.unseen is None:
            return []
        return [{"text": self.unseen.message, "next": self.unseen.hint or f"rlctl status{self._named}"}]

    def crashes(self) -> str:
        """Crashes that the success of a finished run must not hide; empty when there were none."""
        crashed = [process for process in self.processes if process.trouble] if self.phase == "finished" else []
        if not crashed:
            return ""
        worst = max(crashed, key=lambda process: process.restarts)
        more = f"; {len(crashed) - 1} more like it" if len(crashed) > 1 else ""
        return f"{told_of(worst)}{more}"

    @property
    def ending(self) -> bool:
        """Whether the run is ending: a stop condition is met, so that slow processes no longer matter."""
        return self.status["verdict"]["kind"] == "ending" or bool(self.status["stop"]["met"])

    @property
    def silent(self) -> bool:
        """Whether the manager should have answered and did not: its figures are old."""
        return not self.over and not self.answered and (self.unseen is not None or self._should_answer)

    @property
    def slowest(self) -> str:
        """The process that the others wait for, in a few words; empty when there is none."""
        if self.unseen is not None:
            return f"{next(iter(self.unseen.objects), self.state.target)} (no answer)"
        worst = faults.worst(self.processes)
        if worst is not None:
            return faults.shown(worst)
        for role, wanted in self.state.replicas.items():
            if self.running(role) < wanted:
                return f"{role} ({self.running(role)} of {wanted} run)"
        if not self.answered:
            return "manager/0 (no answer yet)"
        # a process that has not reported at all comes first: the others may wait for it
        readiness = self._readiness
        absent = [process for process in self.processes if not readiness.joined(process)]
        absent.sort(key=lambda process: bool(readiness.reported(process.role, process.index)))
        return f"{absent[0].role}/{absent[0].index} (has not joined yet)" if absent else ""

    @property
    def _readiness(self) -> Readiness:
        from rlctl.backends.run_states import Readiness

        return Readiness(self.state, self.processes, self.status, self.answered)

    @property
    def _should_answer(self) -> bool:
        """Whether the manager has run for ANSWERS_WITHIN_S."""
        started = [process.started for process in self.members("manager") if process.state == "running"]
        return any(begun and (self.at - begun).total_seconds() > ANSWERS_WITHIN_S for begun in started)

    def _way_out(self, process: Process) -> str:
        """Next command for a process of a live run that does not run."""
        replicas = self.state.replicas
        if process.state != "stopped" or "actor" not in replicas:
            return f"rlctl logs {process.role}/{process.index}{self._named}"
        # scaling to the number wanted starts whatever an interrupted command left; not every role can be named there
        role = process.role if replicas.get(process.role, 0) > 1 else "actor"
        return f"rlctl scale {role}={replicas[role]}{self._named}"

    @property
    def _named(self) -> str:
        return f" --run {self.state.run}"


def told_of(process: Process) -> str:
    """`actor/0 was restarted 3 times, last: actor 0 exited 1 after 00:00:21: EnvError: ...`."""
    times = "once" if process.restarts == 1 else f"{process.restarts} times"
    return f"{process.role}/{process.index} was restarted {times}, last: {process.trouble}"


def take(world: World, backend: Backend, run: str, known: RunState | None = None) -> Snapshot | None:
    """Snapshot of a run; None when there is no such run (any more).

    A target that does not report the states of its processes is asked again for PATIENCE_S; then the snapshot is
    made without them, and `unseen` says why.

    Args:
        world: this invocation.
        backend: of the run.
        run: its name.
        known: result of a `find` just now, which saves one request.

    Raises:
        Unreadable: its record cannot be read.
        BackendUnreachable: the target did not answer for PATIENCE_S.
    """
    deadline_s = world.clock() + PATIENCE_S
    while True:
        try:
            snapshot = _take(backend, known or backend.find(run), world.now())
        except Unreadable:
            raise
        except BackendUnreachable:
            if world.clock() >= deadline_s:
                raise
        else:
            if snapshot is None or snapshot.unseen is None or world.clock() >= deadline_s:
                return snapshot
        known = None
        world.sleep(0.25)


class Observer:
    """Polls a run that a command waits for; the target may be unreachable for AWAY_S meanwhile.

    Attributes:
        away: error of the last poll; None when it succeeded.
    """

    def __init__(self, world: World, backend: Backend, run: str) -> None:
        self._world, self._backend, self._run = world, backend, run
        self._last: Snapshot | None = None
        self._answered_s = world.clock()
        self.away: BackendUnreachable | None = None

    def look(self) -> Snapshot | None:
        """Take a snapshot; while the target is unreachable return the last one, its processes in state unknown.

        Raises:
            Unreadable: as `take`.
            BackendUnreachable: the first poll failed, or all polls for AWAY_S.
        """
        try:
            self._last, self.away = take(self._world, self._backend, self._run), None
        except Unreadable:
            raise
        except BackendUnreachable as error:
            if self._last is None or self._world.clock() - self._answered_s >= AWAY_S:
                raise
            self.away = error
            unknown = tuple(replace(one, state="unknown") for one in self._last.processes)
            return replace(self._last, processes=unknown, answered=False, unseen=error)
        self._answered_s = self._world.clock()
        return self._last


def _take(backend: Backend, state: RunState | None, now: datetime) -> Snapshot | None:
    if state is None:
        return None
    run = state.run
    status: Mapping[str, Any] | None = None
    answered = False
    if state.managed:
        try:
            status = backend.control(run, "GET", "/status")
            answered = True
        except RlctlError:
            pass  # not up yet, ending, being replaced, or not ready to answer: the processes tell
    processes, unseen = _processes(backend, state)
    torn = ""
    if status is None:
        try:
            status = backend.stored_status(run)
        except BackendUnreachable as error:  # where a manager runs, it writes it anew
            torn = "" if state.phase == "running" else str(error)
        if status is not None and not _of_its_form(status):
            status, torn = None, "" if state.phase == "running" else f"the status of run {run} is not one of rlctl's"
        if status is not None and state.phase == "running" and not _of_this_life(status, processes):
            status = {**status, "phase": "starting", "problems": [], "roles": {}}
    told = _with_the_missing(complete(status, state), state, () if unseen else processes)
    return Snapshot(state, processes, told, answered, now, where(backend, state.target), unseen, torn)


def _with_the_missing(status: dict[str, Any], state: RunState, processes: tuple[Process, ...]) -> dict[str, Any]:
    """The status; while fewer actors run than are wanted, its verdict says so and points to their logs instead of
    advising more actors: the manager counts only those that live."""
    actors = [process for process in processes if process.role == "actor"]
    run, wanted = sum(one.count for one in actors if one.state == "running"), state.replicas.get("actor", 0)
    verdict = status["verdict"]
    if not actors or run >= wanted or not str(verdict["suggest"] or "").startswith("rlctl scale actor="):
        return status
    text = f"{verdict['text']}; {run} of {wanted} actors run"
    return {
        **status,
        "verdict": {**verdict, "text": text, "suggest": f"rlctl logs actor --run {state.run} --level ERROR"},
    }


def _processes(backend: Backend, state: RunState) -> tuple[tuple[Process, ...], BackendUnreachable | None]:
    """All processes; when the target cannot list them, the wanted ones in state unknown, and the error."""
    from rlctl.backends.base import Process
    from rlctl.spec.base import ROLES

    try:
        return tuple(backend.processes(state.run, state)), None
    except BackendUnreachable as error:
        if state.target in ON_CLUSTERS:  # there may be thousands, and their numbers mean nothing
            counted = [(role, count) for role in ROLES if (count := state.replicas.get(role, 0))]
            return tuple(Process(role, 0, "unknown", count=count) for role, count in counted), error
        wanted = [(role, index) for role in ROLES for index in range(state.replicas.get(role, 0))]
        return tuple(Process(role, index, "unknown") for role, index in wanted), error


def _of_its_form(stored: Mapping[str, Any]) -> bool:
    """Whether the parts of a stored status are tables and lists where readers expect these."""
    tables = (stored.get(name) for name in _TABLES)
    lists = ((stored.get(name), kind) for name, kind in _LISTS.items())
    return all(one is None or isinstance(one, Mapping) for one in tables) and all(
        one is None or (isinstance(one, list) and all(isinstance(each, kind) for each in one)) for one, kind in lists
    )


def _of_this_life(stored: Mapping[str, Any], processes: tuple[Process, ...]) -> bool:
    """Whether the manager that runs wrote the stored status, or none runs; else it is out of date."""
    managers = [process for process in processes if process.role == "manager" and process.state in _SOUND]
    said = stored.get("time")
    wrote = float(said) if isinstance(said, (int, float)) else 0.0
    return all(manager.started is not None and wrote >= manager.started.timestamp() for manager in managers)


def complete(status: Mapping[str, Any] | None, state: RunState) -> dict[str, Any]:
    """The manager's status with every key present, so that readers need no defaults of their own."""
    given = _in_words_of_now(status or {})
    empty: dict[str, Any] = {
        "apiVersion": API_VERSION, "run": state.run, "uid": state.uid, "term": 0, "phase": "starting", "time": None,
        "wall_s": 0.0, "cpu_s": {},
        "verdict": {"kind": "starting", "text": "starting: no report yet"},
        "throughput": {}, "totals": {}, "lag": {}, "replay": None, "train_return": None, "train_info": {},
        "evaluation": None, "evaluations": {}, "models": {"best": None, "goal": None}, "cadence": None,
        "history": [], "recordings": [], "stop": {}, "policies": {}, "members": {}, "roles": {}, "init": None,
        "checkpoint": None, "resumed": None, "problems": [],
    }  # fmt: skip
    filled = {**empty, **{key: value for key, value in given.items() if value is not None}}
    filled["throughput"] = {f"{name}_per_s": 0.0 for name in _RATES} | filled["throughput"]
    filled["totals"] = dict.fromkeys(_COUNTS, 0) | filled["totals"]
    filled["lag"] = {"mean": None, "p95": None, "max": None} | filled["lag"]
    filled["stop"] = {"conditions": {}, "met": None, "not_evaluated": None} | filled["stop"]
    filled["verdict"] = dict.fromkeys(_SHARES) | {"suggest": None} | filled["verdict"]
    return filled


def _in_words_of_now(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status of release 0.1 with the keys of this release; any other unchanged."""

    def renamed(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {_WORDS_OF_0_1.get(name, name): renamed(one) for name, one in value.items()}

    if "consumed_rows" not in (status.get("totals") or {}):
        return dict(status)
    told: dict[str, Any] = renamed(status)
    conditions = told.get("stop", {}).get("conditions", {})
    if "steps" in conditions:
        conditions["agent_steps"] = conditions.pop("steps")  # stop.agent_steps of the spec
    return told


def as_document(snapshot: Snapshot) -> dict[str, Any]:
    """Document of `-o json` for a run: the manager's status, and that of the target."""
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
                "restarts": process.restarts, "reason": process.reason, "lately": process.lately,
                "name": process.name, "count": process.count,
                "permanent": process.permanent, "evidence": process.evidence, "next": process.next,
                "first_cause_lines": list(process.first_cause_lines),
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
