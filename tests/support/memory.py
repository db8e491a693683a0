"""A target that exists in memory only: every verb of the command line works on it, nothing starts.

For tests of whatever stands above a backend. Events that a real target brings about by itself are methods here:
`report`, `answer`, `silence`, `freeze`, `tear`, `set_process`, `finish`, `fail`, `say`. Writes are counted, refusals
can be planned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rlctl.backends.base import Applied, Document, Failure, LogQuery, LogRecord, Process, RunState, Say, Sizes, no_sizes
from rlctl.backends.local.access.stored_files import FilesOfFolder
from rlctl.errors import BackendUnreachable, Conflict, PartlyApplied, RlctlError, Unreadable
from rlctl.plan import Plan
from rlctl.spec.base import ROLES, Role
from rlctl.spec.layout import Layout
from tests.support.memory_revisions import Remembering

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Where a run would lie."""

    uid: str
    layout: Layout
    sockets: Path


@dataclass
class _Run:
    state: RunState
    documents: list[Document]
    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    status: dict[str, Any] | None = None  # of a live manager
    stored: dict[str, Any] | None = None
    records: list[tuple[bool, LogRecord]] = field(default_factory=list)  # with: of the boot before
    posts: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    answers: dict[str, list[Any]] = field(default_factory=dict)  # path -> what the manager answers, the last for ever
    frozen: BackendUnreachable | None = None  # why the target does not say how the processes are
    torn: Unreadable | None = None  # why what is recorded cannot be read


class MemoryBackend(Remembering):
    """Satisfies `rlctl.backends.base.Backend`.

    Args:
        now: the time that is recorded.
        wait: called by a followed log that has caught up; False ends it.
        storage: the folder that places claim; nothing is written there.
    """

    name = "memory"
    poll_every_s, grace_s = 0.5, 10.0

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        wait: Callable[[], bool] = lambda: False,
        storage: Path = Path("/memory"),
    ) -> None:
        super().__init__()
        self._now = now
        self._wait = wait
        self._storage = storage
        self._runs: dict[str, _Run] = {}
        self._minted = 0
        self._roots: dict[str, Path] = {}  # uid -> folder that its place claims
        self.waiting: Say = lambda text: None
        self.leave: Callable[[], bool] = lambda: False
        self.note: Say = lambda text: None
        self.force_conflicts = False
        self.image_sizes: Sizes = no_sizes
        self.context = self.namespace = ""
        self.writes = 0
        self.refuse: RlctlError | None = None  # raised by the next verb that would write
        self.manager_refuses: str | None = None  # what every manager answers instead
        self.files = Layout(Path("/memory/files"))  # of every run; not there
        self.reading = 0  # blocks of `stored_files` that last
        self.files_of: dict[str, Layout] = {}  # run -> its own
        self.begun_with: dict[str, dict[str, bytes]] = {}  # run -> files of the policy that it began with
        self.unreachable = False  # every call raises BackendUnreachable
        self.partly_after: int | None = None  # so many objects are applied, then PartlyApplied

    # what the command line calls

    def place(self, run: str, storage: str | None) -> MemoryPlace:
        """The run as recorded, else a fresh uid; writes nothing."""
        known = self._runs.get(run)
        if known is not None:
            uid, root = known.state.uid, Path(known.state.storage)
        else:
            uid = f"{self._minted + 1:032x}"
            root = Layout.of(Path(storage) if storage else self._storage, run, uid).root
            self._roots[uid] = root
        return MemoryPlace(uid, Layout(root), Path("/memory/sockets") / uid[:8])

    def runs(self, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
        self._reach()
        found = []
        for run in self._runs.values():
            if run.torn is None:
                found.append(run.state)
            elif broken is None:
                raise run.torn
            else:
                broken(run.torn)
        return sorted(found, key=lambda state: state.created, reverse=True)

    def find(self, run: str) -> RunState | None:
        self._reach()
        found = self._runs.get(run)
        if found is not None and found.torn is not None:
            raise found.torn
        return None if found is None else found.state

    @property
    def server(self) -> str:
        return ""

    def check_owner(self, run: str) -> str:
        return ""

    def apply(
        self,
        plan: Plan,
        documents: Iterable[Document],
        spec: Mapping[str, Any],
        *,
        note: str = "",
        initial: Callable[[], Path] | None = None,
    ) -> Iterator[Applied]:
        self._reach()
        documents = list(documents)
        if initial is not None and plan.run not in self.begun_with:
            self.begun_with[plan.run] = {path.name: path.read_bytes() for path in initial().iterdir()}
        run = self._runs.get(plan.run)
        wanted: dict[str, int] = {entry.role: entry.replicas for entry in plan.roles}
        hashes: dict[str, str] = {entry.role: entry.hash for entry in plan.roles}
        if run is None:
            self._write()
            self._minted += 1
            state = RunState(
                run=plan.run, uid=plan.uid, target=plan.target, phase="running", rlctl_version=plan.rlctl_version,
                revision=1, created=self._now(), storage=str(self._roots.get(plan.uid, self._storage / plan.run)),
                spec=dict(spec), hashes=hashes, replicas=wanted, spec_replicas=wanted,
            )  # fmt: skip
            run = self._runs[plan.run] = _Run(state, documents)
            self._note(state, plan, documents, self._now(), note)
            yield from self._converge(run, {})
            return
        before = run.state
        replicas = {
            role: before.replicas[role]
            if role in before.replicas and before.spec_replicas.get(role) == count
            else count
            for role, count in wanted.items()
        }
        state = replace(
            before, phase="running", rlctl_version=plan.rlctl_version, spec=dict(spec), hashes=hashes,
            replicas=replicas, spec_replicas=wanted, failure=None,
        )  # fmt: skip
        if state != before or documents != run.documents or self._missing(run, replicas):
            self._write()
            run.state = replace(state, revision=before.revision + (dict(spec) != before.spec))
            run.documents = documents
            self._note(run.state, plan, documents, self._now(), note)
        yield from self._converge(run, before.hashes)

    def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
        found = self._live(run, *replicas)
        wanted = {**found.state.replicas, **replicas}
        if wanted != found.state.replicas:
            self._write()
            found.state = replace(found.state, replicas=wanted)
        yield from self._converge(found, found.state.hashes)

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        found = self._live(run, role)
        self._write()
        for key, process in found.processes.items():
            if process.role == role:
                found.processes[key] = replace(process, state="running", started=self._now(), reason="")
                yield Applied(f"{role}/{process.index}", "restarted")

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        self._reach()
        found = self._runs.get(run)
        if found is None:
            return
        live = [process for process in found.processes.values() if process.state != "stopped"]
        if live or volumes:
            self._write()
        if found.state.phase == "running":
            found.state = replace(found.state, phase="stopped")
            found.stored = found.status or found.stored
            found.status = None
        for process in reversed(live):
            found.processes.pop((process.role, process.index))
            yield Applied(f"{process.role}/{process.index}", "removed")
        if volumes:
            del self._runs[run]
            self._revisions.pop(run, None)
            yield Applied(found.state.storage, "removed")

    def documents(self, run: str, revision: int | None = None) -> list[Document]:
        self._reach()
        found = self._known(run)
        return list(found.documents if revision is None else self._revisions[run].of(run, revision).documents)

    def processes(self, run: str, known: RunState | None = None) -> list[Process]:
        self._reach()
        found = self._known(run)
        if found.frozen is not None:
            raise found.frozen
        return sorted(found.processes.values(), key=lambda process: (ROLES.index(process.role), process.index))

    def control(
        self, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        self._reach()
        found = self._known(run)
        if self.manager_refuses is not None:
            raise RlctlError(self.manager_refuses, objects=("manager/0",))
        if found.state.phase != "running" or found.status is None:
            raise BackendUnreachable(f"the manager of run {run} does not answer", objects=("manager/0",))
        if method == "POST":
            found.posts.append((path, dict(body or {})))
        if path in found.answers:
            planned = found.answers[path]
            return planned.pop(0) if len(planned) > 1 else planned[0]
        if method == "POST":
            return {"ok": True}
        if path == "/status":
            return dict(found.status)
        raise BackendUnreachable(f"the manager of run {run} does not know {path}")

    def stored_status(self, run: str) -> Mapping[str, Any] | None:
        self._reach()
        found = self._runs.get(run)
        return None if found is None else found.stored

    @contextmanager
    def stored_files(self, run: str) -> Iterator[FilesOfFolder]:
        self._known(run)
        files = FilesOfFolder(self.files_of.get(run, self.files))
        self.reading += 1
        try:
            yield files
        finally:
            self.reading -= 1

    def logs(self, run: str, query: LogQuery) -> Iterator[LogRecord]:
        self._reach()
        records = self._known(run).records
        seen = len(records)
        matching = sorted((record for old, record in records if _matches(old, record, query)), key=lambda it: it.time)
        yield from matching if query.tail is None else matching[len(matching) - min(query.tail, len(matching)) :]
        more = query.follow
        while more:
            more = self._wait()
            fresh, seen = records[seen:], len(records)
            yield from (record for old, record in fresh if _matches(old, record, query))

    # what happens to a run by itself

    def report(self, run: str, status: Mapping[str, Any]) -> None:
        """The manager's status from now on: these keys over those of before."""
        found = self._known(run)
        found.status = {**(found.status or {"phase": "running"}), **status}
        found.stored = found.status

    def silence(self, run: str) -> None:
        """The manager does not answer any more; what it stored stays."""
        self._known(run).status = None

    def freeze(self, run: str, error: BackendUnreachable) -> None:
        """From now on the target does not say how the processes are; the manager goes on."""
        self._known(run).frozen = error

    def tear(self, run: str) -> None:
        """From now on what is recorded of the run cannot be read; everything else goes on."""
        found = self._known(run)
        text, hint = f"the record of run {run} is torn", "mend it, or move it away"
        found.torn = Unreadable(text, run=run, storage=found.state.storage, hint=hint, objects=(run,))

    def set_process(self, run: str, role: Role, index: int, **fields: Any) -> None:
        """Change what the target sees of one process."""
        processes = self._known(run).processes
        processes[role, index] = replace(processes[role, index], **fields)

    def replace_processes(self, run: str, role: Role, processes: Iterable[Process], *, wanted: int) -> None:
        """A target that puts replicas together: these entries are all of a role."""
        found = self._known(run)
        others = {key: process for key, process in found.processes.items() if key[0] != role}
        found.processes = others | {(role, process.index): process for process in processes}
        found.state = replace(found.state, replicas={**found.state.replicas, role: wanted})

    def finish(self, run: str, met: str) -> None:
        """The stop condition holds: all processes end."""
        self.report(run, {"phase": "finished", "stop": {"conditions": {}, "met": met}})
        self._end(run, "finished", None)

    def fail(self, run: str, failure: Failure) -> None:
        """The run gives up."""
        self.report(run, {"phase": "failed"})
        self._end(run, "failed", failure)

    def say(self, run: str, record: LogRecord, *, previous: bool = False) -> None:
        """A process writes a log record."""
        self._known(run).records.append((previous, record))

    def posts(self, run: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Posts to the manager."""
        return self._known(run).posts

    def answer(self, run: str, path: str, *answers: Any) -> None:
        """Let the manager answer so to this path, one after the other; the last one for ever."""
        self._known(run).answers[path] = list(answers)

    def _end(self, run: str, phase: Literal["finished", "failed"], failure: Failure | None) -> None:
        found = self._known(run)
        found.state = replace(found.state, phase=phase, failure=failure)
        found.status = None
        found.processes = {key: replace(process, state="stopped", pid=None) for key, process in found.processes.items()}

    def _converge(self, run: _Run, hashes: Mapping[str, str]) -> Iterator[Applied]:
        done = 0
        for role in ROLES:
            count = run.state.replicas.get(role, 0)
            changed = role in hashes and hashes[role] != run.state.hashes.get(role)
            gone = [key for key in run.processes if key[0] == role and key[1] >= count]
            for key in gone:
                del run.processes[key]
                yield Applied(f"{role}/{key[1]}", "removed")
            for index in range(count):
                if self.partly_after is not None and done >= self.partly_after:
                    raise PartlyApplied(
                        f"{role}/{index} was not applied",
                        hint="run the same command again",
                        objects=(f"{role}/{index}",),
                    )
                done += 1
                there = run.processes.get((role, index))
                live = there is not None and there.state not in ("stopped", "exited", "failed")
                if live and not changed:
                    yield Applied(f"{role}/{index}", "unchanged")
                    continue
                pid = 1000 + 100 * ROLES.index(role) + index
                run.processes[role, index] = Process(role, index, "running", pid=pid, started=self._now())
                yield Applied(f"{role}/{index}", "restarted" if live else "created")

    def _missing(self, run: _Run, replicas: Mapping[str, int]) -> bool:
        live = {key for key, process in run.processes.items() if process.state not in ("stopped", "exited", "failed")}
        return live != {(role, index) for role, count in replicas.items() for index in range(count)}

    def _live(self, run: str, *roles: str) -> _Run:
        self._reach()
        found = self._known(run)
        if found.state.phase != "running":
            raise Conflict(f"run {run} is {found.state.phase}", hint="rlctl up SPEC", objects=(run,))
        if absent := [role for role in roles if role not in found.state.replicas]:
            raise Conflict(f"run {run} has no role {absent[0]}", objects=(absent[0],))
        return found

    def _known(self, run: str) -> _Run:
        if run not in self._runs:
            raise Conflict(f"there is no run {run}", objects=(run,))
        return self._runs[run]

    def _write(self) -> None:
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            raise error
        self.writes += 1

    def _reach(self) -> None:
        if self.unreachable:
            raise BackendUnreachable("the target does not answer", hint="rlctl version", objects=(self.name,))


def _matches(old: bool, record: LogRecord, query: LogQuery) -> bool:
    role, _, index = record.process.partition("/")
    return (
        old == query.previous
        and query.role in (None, role)
        and (query.index is None or str(query.index) == index)
        and (query.since is None or record.time >= query.since)
        and (query.until is None or record.time <= query.until)
        and (query.level is None or LEVELS.index(record.level) >= LEVELS.index(query.level))
        and (query.grep is None or re.search(query.grep, record.message) is not None)
    )
