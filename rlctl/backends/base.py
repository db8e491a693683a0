"""The whole contract between the command line and a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from rlctl.errors import RlctlError
from rlctl.plan import Document as Document
from rlctl.plan import Plan
from rlctl.spec.base import Role
from rlctl.spec.layout import RunPlace

Say = Callable[[str], object]
"""Callback that is given one line of text for the user of the command."""
Sizes = Callable[[Collection[str]], Mapping[str, int]]
"""Bytes that a node pulls, by image; those that are not known are left out."""

Phase = Literal["running", "stopped", "finished", "failed"]
"""stopped: by `down`; finished: a stop condition was met; failed: gave up. The last three have no live process, but for
the manager of a run that `stays`."""


def no_sizes(images: Collection[str]) -> Mapping[str, int]:
    """Sizes without a question to any registry: none."""
    return {}


@dataclass(frozen=True, slots=True)
class Failure:
    """First cause for which a run gave up, not the silence after it."""

    process: str  # "actor/7"
    text: str  # "actor 7 exited 1 after 00:03:12: EnvError: step returned NaN reward"
    last_lines: tuple[str, ...]  # of that process's log
    at: datetime
    stopped_because: tuple[str, ...] = ()  # processes that were stopped because of it


@dataclass(frozen=True, slots=True)
class RunState:
    """Recorded state of a run. It pins the version and spec it was started with; nothing re-renders it."""

    run: str
    uid: str
    target: str
    phase: Phase
    rlctl_version: str
    revision: int  # counts changed `up`s, from 1
    created: datetime
    storage: str  # folder of the run, or its volume
    spec: Mapping[str, Any]  # resolved, as applied
    hashes: Mapping[str, str]  # role -> RolePlan.hash
    replicas: Mapping[str, int]  # role -> wanted now
    spec_replicas: Mapping[str, int]  # role -> as the applied spec said
    failure: Failure | None = None
    code: str | None = None
    """Absolute folder of the user's modules on this machine; None: none, or in an image."""
    stays: bool = False
    """It is over, and its manager goes on answering for it until `down`: on a cluster."""

    @property
    def managed(self) -> bool:
        """A manager is to answer for it."""
        return self.phase == "running" or self.stays


@dataclass(frozen=True, slots=True)
class Process:
    """One replica as the target sees it."""

    role: Role
    index: int
    state: Literal["starting", "running", "backoff", "stopping", "stopped", "exited", "failed", "unknown"]
    """unknown: the target does not say."""
    pid: int | None = None
    started: datetime | None = None
    restarts: int = 0
    reason: str = ""  # why it is not running, in words
    trouble: str = ""
    """Its last death, where it runs again but has not been of use since, or dies often. Stays when the run is over."""
    lately: str = ""  # a restart of the last minutes that is overcome, in words that name the process; no fault of now
    name: str = ""  # its name on the target, where that is not role/index: a pod's
    count: int = 1  # replicas that this entry stands for: where a target only counts those that are well
    permanent: bool = False  # it cannot mend itself: a missing image, a forbidden volume
    evidence: str = ""  # what the target said, word for word
    next: str = ""  # the command that helps
    first_cause_lines: tuple[str, ...] = ()  # last log lines of the life before
    lacks: Literal["", "node", "readiness"] = ""
    """node: nothing takes it, and others may wait for it; readiness: it runs, and may only wait for others."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One changed `up`, as it can be gone back to."""

    number: int
    at: datetime
    by: str  # user@host
    rlctl_version: str
    spec: Mapping[str, Any]
    images: Mapping[str, str]  # image name -> reference
    note: str = ""  # "rollback to 3", a git commit


@dataclass(frozen=True, slots=True)
class Difference:
    """Change that an `apply` would make to one object."""

    object: str
    what: Literal["add", "change", "remove", "same"]
    lines: tuple[str, ...] = ()  # a unified diff, secrets masked, what the target defaults left out


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check by `doctor` or the preflight."""

    name: str
    verdict: Literal["ok", "problem", "warning", "not checked"]
    text: str  # with the figures
    next: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """Change that `apply` made to one object."""

    object: str  # "actor/3", "learner", "supervisord"
    what: Literal["created", "changed", "restarted", "removed", "unchanged", "reloaded"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Query for log records: which ones, of which processes."""

    role: str | None = None
    index: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    tail: int | None = None  # the last so many after every other filter; None: all
    grep: str | None = None  # regular expression over the whole line
    level: str | None = None  # at least
    previous: bool = False  # the boot before the present one
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of one process; a traceback belongs to the record it came with."""

    time: datetime
    level: str
    process: str  # "actor/7"
    message: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    raw: str = ""


Folder = Literal["models", "checkpoints", "results", "init", "episodes"]


class StoredFiles(Protocol):
    """Files of a run, wherever its volume is. Errors are those of rlctl.errors."""

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of each file; of results the evaluations alone. Nothing where there is no such folder yet."""

    def read(self, folder: Folder, name: str, offset: int, length: int) -> bytes:
        """A piece of a file: not more than `length` bytes, and none only at its end."""


class Backend(Protocol):
    """All verbs of the command line. Errors are those of rlctl.errors; nothing else escapes."""

    name: str
    poll_every_s: float
    """Between two looks at a run that is waited for."""
    grace_s: float
    """Patience with processes that end."""
    note: Say
    """Told in a sentence what is worth a line, and is no error; the caller of the verbs sets it."""
    waiting: Say
    """Told a line for every ten seconds that a verb waits for something; the caller of the verbs sets it."""
    force_conflicts: bool
    """Take over fields that others own, and runs that another user has started; without effect where one user alone has
    runs. The caller of the verbs sets it."""
    image_sizes: Sizes
    """Asks registries what images come to, for `preflight`; no effect where none are pulled. The caller sets it."""

    @property
    def context(self) -> str:
        """Of the kubeconfig; "" on one machine, as are the next two."""

    @property
    def namespace(self) -> str: ...

    @property
    def server(self) -> str:
        """URL of the API server."""

    def place(self, run: str, storage: str | None) -> RunPlace:
        """The run's place as recorded, else one below `storage` (absolute; None: the default). Writes nothing."""

    def runs(self, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
        """Every run that the target knows, live or not, newest first.

        Args:
            broken: told about each run whose record cannot be read, which is left out; None: that is raised.
        """

    def find(self, run: str) -> RunState | None:
        """The run of that name, or None.

        Raises:
            Unreadable: what is recorded of it cannot be read; `delete` and `logs` answer nevertheless.
        """

    def check_owner(self, run: str) -> str:
        """Owner of a run that is to be taken down, user@host; "" where none is recorded, or one user alone has runs.

        Raises:
            Conflict: another user, and nothing is to be forced.
        """

    def apply(
        self,
        plan: Plan,
        documents: Iterable[Document],
        spec: Mapping[str, Any],
        *,
        note: str = "",
        initial: Callable[[], Path] | None = None,
    ) -> Iterator[Applied]:
        """Make the target run exactly these documents; idempotent, yields as it goes, converges after a kill.

        Live replica counts stay unless the spec's changed since the last apply.

        Args:
            note: of the revision, when this makes one.
            initial: gives the folder of the policy that a new run begins with (`rlctl pull` makes such), to be copied
                into its storage; not called where a run that is there has it. None: it begins with weights of its own.

        Raises:
            Conflict: another command holds the run.
            PartlyApplied: some of it was applied; the same call goes on.
        """

    def differences(self, plan: Plan, documents: Iterable[Document]) -> Iterator[Difference]:
        """Changes that `apply` would make, removals included; writes nothing."""

    def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
        """Preflight: faults that can be known before anything is sent, in numbers. A problem stops `up`."""

    def revisions(self, run: str) -> list[Revision]:
        """Revisions that can be gone back to, newest first; the first is the one that runs."""

    def rollback(self, run: str, number: int) -> Iterator[Applied]:
        """Apply the documents of a revision again, as a new revision; nothing is rendered.

        Raises:
            Conflict: no such revision, or a field of the run that cannot change differs.
        """

    def doctor(self) -> list[Check]:
        """Whether this target can be used: access, rights, versions, room."""

    def forward(self, run: str, what: Literal["tensorboard", "status"]) -> AbstractContextManager[str]:
        """URL on this machine's loopback that shows the page for as long as the block lasts.

        Raises:
            Conflict: the run has no such page, or is not live.
        """

    def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
        """Change replica counts from the stored documents, without rendering."""

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        """Stop the role in good order and start it again."""

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        """Stop everything of the run; its data stays unless `volumes`. An absent run is no error.

        Needs no record of the run that can be read, and changes none that cannot.
        """

    def documents(self, run: str, revision: int | None = None) -> list[Document]:
        """Documents as last applied, or those of a revision that is kept.

        Raises:
            Conflict: there is no such run, or no such revision.
        """

    def processes(self, run: str, known: RunState | None = None) -> list[Process]:
        """Every replica, live or given up, in role and index order.

        Args:
            known: the run as `find` has just told it; None: it is asked for.

        Raises:
            BackendUnreachable: the target does not say; `hint` is what to type, `objects` names what is silent.
        """

    def control(
        self, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Ask the run's manager.

        Raises:
            BackendUnreachable: there is no manager, or it does not answer.
        """

    def stored_status(self, run: str) -> Mapping[str, Any] | None:
        """The manager's last status, from what it stored."""

    def stored_files(self, run: str) -> AbstractContextManager[StoredFiles]:
        """Models, generations and evaluations of a run, live or over, for as long as the block lasts.

        A target may have to start something that reads the volume, which ends with the block.

        Raises:
            Conflict: there is no such run, or nothing is known of how to reach its volume.
            BackendUnreachable: what reads the volume cannot be started.
            TimedOut: it does not start.
        """

    def logs(self, run: str, query: LogQuery) -> Iterator[LogRecord]:
        """Records of all processes that match, merged by time. Needs no record of the run that can be read."""
