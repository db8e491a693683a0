"""Contract between the command line and a target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from rlctl.errors import BackendUnreachable, RlctlError
from rlctl.plan import Document as Document
from rlctl.plan import Plan
from rlctl.spec.base import Role
from rlctl.spec.layout import RunPlace

Say = Callable[[str], object]
"""Callback that takes one line of text for the user of the command."""
Sizes = Callable[[Collection[str]], Mapping[str, int]]
"""Maps images to the bytes that a node pulls; images of unknown size are left out."""

Phase = Literal["running", "stopped", "finished", "failed"]
"""Phase of a run. stopped: by `down`; finished: a stop condition was met; failed: given up. The last three have no live
process, except the manager of a run that `stays`."""


@contextmanager
def packages_of(target: str) -> Iterator[None]:
    """Report a package of a target that is not installed.

    Raises:
        BackendUnreachable: instead of ModuleNotFoundError.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("rlctl"):
            raise
        raise BackendUnreachable(
            f"target {target}: the package {error.name} is not installed",
            hint=f'install it with: pip install "rlctl[{target}]"',
        ) from error


def no_sizes(images: Collection[str]) -> Mapping[str, int]:
    """Image sizes without a request to any registry: none."""
    return {}


@dataclass(frozen=True, slots=True)
class Failure:
    """First cause of a run's failure, not the silence after it."""

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
    replicas: Mapping[str, int]  # role -> replicas wanted now
    spec_replicas: Mapping[str, int]  # role -> replicas in the applied spec
    failure: Failure | None = None
    code: str | None = None
    """Absolute folder of the user's modules on this machine; None: none, or in an image."""
    stays: bool = False
    """Whether the run is over, and its manager goes on answering until `down`: on a cluster."""

    @property
    def managed(self) -> bool:
        """Whether a manager should answer for the run."""
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
    """Its last crash, if it runs again but has not been of use since, or crashes often. Kept when the run is over."""
    lately: str = ""  # a recent restart that is overcome, in words that name the process; no present fault
    name: str = ""  # its name on the target, where that is not role/index: a pod's
    count: int = 1  # replicas that this entry covers: a target may only count healthy ones
    permanent: bool = False  # waiting does not help: a missing image, a forbidden volume
    evidence: str = ""  # the target's message, word for word
    next: str = ""  # command that helps
    first_cause_lines: tuple[str, ...] = ()  # last log lines of its previous life
    lacks: Literal["", "node", "readiness"] = ""
    """node: no node takes it, and others may wait for it; readiness: it runs, and may only wait for others."""


@dataclass(frozen=True, slots=True)
class Revision:
    """One changed `up`, which `rollback` can apply again."""

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
    lines: tuple[str, ...] = ()  # unified diff, secrets masked, without fields that the target defaults


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
    tail: int | None = None  # the last `tail` records after every other filter; None: all
    grep: str | None = None  # regular expression over the whole line
    level: str | None = None  # minimum
    previous: bool = False  # only the previous boot
    follow: bool = False


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of one process; a traceback belongs to the record it came with."""

    time: datetime
    level: str
    process: str  # "actor/7"
    message: str
    extra: Mapping[str, Any] = field(default_factory=dict)


Folder = Literal["models", "checkpoints", "results", "init", "episodes"]


class StoredFiles(Protocol):
    """Files of a run, wherever its volume is. Errors are those of rlctl.errors."""

    def sizes(self, folder: Folder) -> Mapping[str, int]:
        """Bytes of each file, by name; of results only the evaluations. Empty if the folder does not exist yet."""

    def read(self, folder: Folder, name: str, offset: int, length: int) -> bytes:
        """Bytes of a file from `offset`: at most `length`, and none only at its end."""


class Backend(Protocol):
    """All verbs of the command line. Errors are those of rlctl.errors; nothing else escapes."""

    name: str
    poll_every_s: float
    """Seconds between two polls of a run that is waited for."""
    grace_s: float
    """Default seconds that `delete` gives processes to end."""
    note: Say
    """Callback for a sentence worth a line that is no error; the caller of the verbs sets it."""
    waiting: Say
    """Callback for a line every ten seconds that a verb waits; the caller of the verbs sets it."""
    leave: Callable[[], bool]
    """True once a wait that holds no lock is to be left; the caller of the verbs sets it."""
    force_conflicts: bool
    """Take over fields owned by others, and runs started by another user; without effect where only one user has runs.
    The caller of the verbs sets it."""
    image_sizes: Sizes
    """Queries registries for image sizes, for `preflight`; unused where no images are pulled. The caller sets it."""

    @property
    def context(self) -> str:
        """Context of the kubeconfig; "" on one machine, as are the next two."""

    @property
    def namespace(self) -> str: ...

    @property
    def server(self) -> str:
        """URL of the API server."""

    def place(self, run: str, storage: str | None) -> RunPlace:
        """The recorded place of a run, else one below `storage` (absolute; None: the default). Writes nothing."""

    def runs(self, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
        """Every run that the target knows, live or not, newest first.

        Args:
            broken: called with the error of each run whose record cannot be read, which is left out; None: raise it.
        """

    def find(self, run: str) -> RunState | None:
        """The run of that name, or None.

        Raises:
            Unreadable: its record cannot be read; `delete` and `logs` work nevertheless.
        """

    def check_owner(self, run: str) -> str:
        """Check that this user may take a run down; returns its owner, user@host, or "" if none is recorded or needed.

        Raises:
            Conflict: another user owns it, and `force_conflicts` is not set.
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
            note: note of the revision, if this makes one.
            initial: returns the folder of a new run's initial policy, as `rlctl pull` writes it, to be copied into its
                storage; not called if the run exists and has one. None: the run begins with new weights.

        Raises:
            Conflict: another command holds the run.
            PartlyApplied: some of it was applied; the same call resumes.
        """

    def differences(self, plan: Plan, documents: Iterable[Document]) -> Iterator[Difference]:
        """Changes that `apply` would make, removals included; writes nothing."""

    def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
        """Preflight checks: faults that can be known before anything is sent, in figures. A problem stops `up`."""

    def revisions(self, run: str) -> list[Revision]:
        """Revisions that can be rolled back to, newest first; the first is the present one."""

    def rollback(self, run: str, number: int) -> Iterator[Applied]:
        """Apply the documents of a revision again, as a new revision; nothing is rendered.

        Raises:
            Conflict: no such revision, or a field of the run that cannot change differs.
        """

    def doctor(self) -> list[Check]:
        """Checks whether this target can be used: access, rights, versions, room."""

    def forward(self, run: str, what: Literal["tensorboard", "status"]) -> AbstractContextManager[str]:
        """URL on this machine's loopback of the page, for as long as the block lasts.

        Raises:
            Conflict: the run has no such page, or is not live.
        """

    def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
        """Change replica counts from the stored documents, without rendering."""

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        """Stop a role gracefully and start it again."""

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        """Stop everything of a run; its data stays unless `volumes`. An absent run is no error.

        Works without a readable record of the run, and leaves an unreadable one unchanged.
        """

    def documents(self, run: str, revision: int | None = None) -> list[Document]:
        """Documents as last applied, or those of a revision that is kept.

        Raises:
            Conflict: there is no such run, or no such revision.
        """

    def processes(self, run: str, known: RunState | None = None) -> list[Process]:
        """Every replica, live or given up, in role and index order.

        Args:
            known: the run as `find` has just returned it; None: it is looked up.

        Raises:
            BackendUnreachable: the target does not answer; `hint` is a command, `objects` names what does not answer.
        """

    def control(
        self, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request to the run's manager; returns the decoded reply.

        Raises:
            BackendUnreachable: there is no manager, or it does not answer.
            RlctlError: it refuses; the message has its reason.
        """

    def stored_status(self, run: str) -> Mapping[str, Any] | None:
        """The last status that the manager stored; None if there is none."""

    def stored_files(self, run: str) -> AbstractContextManager[StoredFiles]:
        """Models, generations and evaluations of a run, live or over, for as long as the block lasts.

        A target may have to start a reader of the volume, which ends with the block.

        Raises:
            Conflict: there is no such run, or it is unknown how to reach its volume.
            BackendUnreachable: the reader cannot be started.
            TimedOut: the reader does not start in time.
        """

    def logs(self, run: str, query: LogQuery) -> Iterator[LogRecord]:
        """Records of all processes that match, merged by time. Works without a readable record of the run."""
