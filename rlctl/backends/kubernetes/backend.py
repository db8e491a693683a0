"""Target kubernetes: every verb of the contract, on one namespace of one cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rlctl.backends.base import (
    Applied,
    Check,
    Difference,
    Document,
    LogQuery,
    LogRecord,
    Process,
    Revision,
    RunState,
    Say,
    Sizes,
    no_sizes,
    packages_of,
)
from rlctl.backends.kubernetes.access import control, listing, logs, reader
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key
from rlctl.backends.kubernetes.api.refusals import in_words, lacks_right
from rlctl.backends.kubernetes.apply import (
    differences,
    down,
    rollback,
    scaling,
    up,
)
from rlctl.backends.kubernetes.apply.writing import whole_or_partly
from rlctl.backends.kubernetes.preflight import doctor, findings
from rlctl.backends.kubernetes.run_state import index, lost, owner
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.desired_state import of_plan, stored_revision
from rlctl.backends.kubernetes.run_state.lock import LockHolder
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.revisions import images_of
from rlctl.backends.run_states import live_counts
from rlctl.backends.stored_files import FilesOfManager
from rlctl.errors import Conflict, RlctlError, Unreadable
from rlctl.plan import Plan
from rlctl.spec.layout import Layout
from rlctl.spec.names import VOLUME
from rlctl.spec.runs import run_index
from rlctl.spec.runs.run_index import IndexEntry
from rlctl.waiting import steady


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """Place of a run on the volume that its pods mount."""

    uid: str
    layout: Layout
    sockets: Path = Path("/nonexistent")  # processes of a cluster have no sockets in common


class KubernetesBackend:
    """Runs of one namespace. Opens its cluster at first use.

    Args:
        context: context of the kubeconfig; None: its current one.
        namespace: namespace; None: the context's.
        api: API to use in place of a cluster's.
        me: identity of this command.
        clock, sleep, now: monotonic seconds, pause in seconds, current time.

    Attributes:
        force_conflicts: take over fields of other managers, and a run that another user has started.
        take_over: runs that may be changed though another user has started them; fields of other managers stay theirs.
        note: called with a sentence that is worth a line and no error.
        waiting: called with a line for every ten seconds that a verb waits.
        image_sizes: queries registries for image sizes; the preflight uses it.
    """

    name = "kubernetes"
    poll_every_s = 2.0  # many people ask one API server
    grace_s = 60.0  # as long as a learner's pod may take for its last generation

    def __init__(
        self, context: str | None = None, namespace: str | None = None, *, api: Api | None = None,
        me: LockHolder | None = None, clock: Callable[[], float] = steady, sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self._named = (context, namespace)
        self._opened = api
        self._me = me or LockHolder.now()
        self._clock, self._sleep, self._now = clock, sleep, now
        self.force_conflicts = False
        self.take_over: frozenset[str] = frozenset()
        self.note: Say = lambda text: None
        self.waiting: Say = lambda text: None
        self.leave: Callable[[], bool] = lambda: False
        self.image_sizes: Sizes = no_sizes

    @property
    def context(self) -> str:
        return self._api.context

    @property
    def namespace(self) -> str:
        return self._api.namespace

    @property
    def server(self) -> str:
        return self._api.server

    @property
    def _api(self) -> Api:
        """Connect to the cluster.

        Raises:
            BackendUnreachable: no cluster can be reached, or the packages for it are not installed.
        """
        if self._opened is None:
            with packages_of("kubernetes"):
                from rlctl.backends.kubernetes.api.client import connect
            self._opened = connect(*self._named)
        return self._opened

    def _reach(self, run: str) -> Api:
        """Connect to the cluster that a run is recorded on.

        Raises:
            Conflict: the run was started elsewhere, and the command line does not name this place.
        """
        api = self._api
        self._recorded(api, run)
        return api

    def _recorded(self, api: Api, run: str) -> IndexEntry | None:
        """Index entry of the run of that name, if it is in this namespace."""
        return index.check(run, api.context, api.namespace, api.server, explicit=any(self._named))

    def _session(self, run: str) -> Session:
        api = self._api
        here = self._recorded(api, run)
        entry = run_index.read(run)
        return Session(
            api=api,
            run=run,
            me=self._me,
            clock=self._clock,
            sleep=self._sleep,
            now=self._now,
            note=lambda text: self.note(text),
            waiting=lambda text: self.waiting(text),
            leave=lambda: self.leave(),
            trouble=lambda state: listing.processes(api, state),
            ask=lambda path, body: control.ask(api, run, "GET" if body is None else "POST", path, body),
            force=self.force_conflicts,
            home_uid=None if entry is None else entry.uid,
            take_over=self.force_conflicts or run in self.take_over,
            recorded="" if here is None else here.uid,
        )

    def place(self, run: str, storage: str | None = None) -> VolumePlace:
        """The recorded place of a run, else one with a fresh uid; writes nothing.

        Args:
            storage: for the local target only.
        """
        record = records.find(self._reach(run), run)
        uid = secrets.token_hex(16) if record is None else record.state.uid
        return VolumePlace(uid, Layout.of(Path(VOLUME), run, uid))

    def runs(self, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
        """Every run of the namespace, newest first."""
        try:
            return listing.runs(self._api, broken)
        except ApiError as error:
            if lacks_right(error):
                key = Key("ConfigMaps", "of runs")
                raise in_words(error, "list", key, self._api, written=False) from error
            raise

    def find(self, run: str) -> RunState | None:
        """The run of that name, or None."""
        return listing.find(self._reach(run), run)

    def apply(
        self,
        plan: Plan,
        documents: Iterable[Document],
        spec: Mapping[str, Any],
        *,
        note: str = "",
        initial: Callable[[], Path] | None = None,
    ) -> Iterator[Applied]:
        """Make the namespace hold exactly these documents; the same call resumes after a kill at any moment.

        Args:
            note: note of the revision, if this makes one.
            initial: returns the folder of a new run's initial policy, as `rlctl pull` writes it, to be copied into its
                storage; not called if the run exists and has one. None: the run begins with new weights.

        Raises:
            Conflict: another command holds the run, or it, an object or a field of it has another owner.
            PartlyApplied: some of it was applied, then the server refused or did not answer; the same call resumes.
            WorkloadFailed: the first actors cannot run.
            TimedOut: actors do not become ready.
            ApiError: the server refuses, or does not answer; nothing was written.
        """
        index.check_free(plan.run)
        api = self._reach(plan.run)
        there = {"context": api.context, "namespace": api.namespace, "server": api.server}
        entry = IndexEntry(plan.run, plan.uid, "kubernetes", **there, images=images_of(spec))
        others: list[IndexEntry] = []  # where the name led before

        def led_here() -> None:
            before = run_index.read(plan.run)
            if before is not None and before.uid != entry.uid:
                others.append(before)
            index.record(entry)

        session = replace(self._session(plan.run), locking=led_here)
        try:
            wanted = replace(of_plan(plan, documents, spec), note=note)
            yield from whole_or_partly(session, up.apply(session, wanted, initial=initial))
        except BaseException:  # a second Ctrl-C, too
            self._forget_unless_there(api, entry, others)
            raise

    def _forget_unless_there(self, api: Api, entry: IndexEntry, others: list[IndexEntry]) -> None:
        """Remove the index entry of a run that was not created, and restore the entry of the run that had the name
        before."""
        with suppress(RlctlError):
            record = records.find(api, entry.run)
            if (record is None or record.state.uid != entry.uid) and run_index.read(entry.run) == entry:
                index.forget(entry.run, entry.uid)
                if others:
                    index.record(others[-1])

    def differences(self, plan: Plan, documents: Iterable[Document]) -> Iterator[Difference]:
        """Changes that `apply` would make, by dry runs on the server; writes nothing.

        Raises:
            Conflict: the run, or one of its objects, has another owner.
        """
        session = self._session(plan.run)
        record = records.find(session.api, plan.run)
        spec = {} if record is None else record.state.spec
        yield from differences.differences(session, of_plan(plan, documents, spec))

    def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
        """Preflight checks: faults that can be known before anything is sent, in figures, with the replicas to be."""
        record = records.find(self._api, plan.run)
        wanted: dict[str, int] = {role.role: role.replicas for role in plan.roles}
        counts = live_counts(None if record is None else record.state, wanted)
        roles = tuple(replace(role, replicas=counts[role.role]) for role in plan.roles)
        return findings.checks(self._api, replace(plan, roles=roles), list(documents), self.image_sizes)

    def revisions(self, run: str) -> list[Revision]:
        """Revisions that can be rolled back to, newest first; the first is the present one.

        Raises:
            Conflict: there is no such run.
        """
        return rollback.revisions(self._reach(run), run)

    def rollback(self, run: str, number: int) -> Iterator[Applied]:
        """Apply the documents of a revision again, as a new revision; nothing is rendered.

        Raises:
            Conflict: no such run or revision, or a field of the run that cannot change differs.
        """
        session = self._session(run)
        yield from whole_or_partly(session, rollback.rollback(session, run, number))
        with suppress(RlctlError):  # `render` asks no cluster what runs now
            record, entry = records.find(session.api, run), run_index.read(run)
            if record is not None and entry is not None and entry.uid == record.state.uid:
                index.record(replace(entry, images=images_of(record.state.spec)))

    def doctor(self) -> list[Check]:
        """Checks whether this namespace can be used: access, rights, versions, room."""
        return doctor.checks(self._api)

    @contextmanager
    def forward(self, run: str, what: Literal["tensorboard", "status"]) -> Iterator[str]:
        """URL on this machine's loopback of the page, for as long as the block lasts.

        Raises:
            Conflict: the run is taken down.
        """
        if self.stored_status(run) is not None:
            raise Conflict(
                f"run {run} is taken down: nothing shows {what}",
                hint=f"its figures: rlctl status {run}; its curves: rlctl compare {run} --plot curves.svg",
            )
        with control.forward(self._api, self._known(run), what) as url:
            yield url

    def check_owner(self, run: str) -> str:
        """Check that this user may take a run down; returns its owner, user@host, or "" if none is recorded.

        Raises:
            Conflict: another user owns it, and `force_conflicts` is not set.
        """
        session = self._session(run)
        record = lost.find(session.api, run)
        if record is None:
            return ""
        owner.check_owner(session, record, "down")
        return record.by

    def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
        """Change replica counts; no pod is touched that stays. More actors are added in steps.

        Raises:
            Conflict: no such run or role, the run is down or another user's, another command holds it, or another field
                manager sets the number.
            WorkloadFailed: the first actors cannot run.
            TimedOut: actors do not become ready.
        """
        session = self._session(run)
        yield from whole_or_partly(session, scaling.scale(session, run, replicas))

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        """Replace all pods of a role by a rolling update of its controller.

        Raises:
            Conflict: no such run or role, the run is down or another user's, or another command holds it.
            TimedOut: the pods of one Deployment do not become ready; the others were not restarted.
        """
        session = self._session(run)
        yield from whole_or_partly(session, scaling.restart(session, run, role))

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        """Remove everything of a run, senders before receivers; the data that it has learned stays unless `volumes`.

        Args:
            grace_s: seconds to wait for the pods of one wave; those that take longer end by themselves.

        Raises:
            Conflict: another user has started it, or another command holds it.
            PartlyApplied: some of it is gone; the same call resumes.
        """
        session = self._session(run)
        record = lost.find(session.api, run)
        yield from whole_or_partly(session, down.down(session, run, volumes=volumes, grace_s=grace_s))
        if volumes and record is not None:
            index.forget(run, record.state.uid)
        elif volumes:  # a `down` that was killed just before this
            entry, api = run_index.read(run), session.api
            if entry is not None and (entry.server, entry.namespace) == (api.server, api.namespace):
                index.forget(run, entry.uid)

    def documents(self, run: str, revision: int | None = None) -> list[Document]:
        """Documents as last applied as a whole, or those of a kept revision; none when no `up` has finished."""
        api = self._reach(run)
        if revision is not None:
            return list(rollback.kept(api, scaling.known(api, run), revision).documents)
        state = scaling.known(api, run).state
        found = stored_revision(api, run, state.uid, state.revision)
        return [] if found is None else list(found.documents)

    def processes(self, run: str, known: RunState | None = None) -> list[Process]:
        """Every replica; healthy ones are only counted."""
        return listing.processes(self._api, known or self._known(run))

    def control(
        self, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request to the run's manager; returns the decoded reply.

        Raises:
            BackendUnreachable: there is no manager, or it does not answer.
            RlctlError: it refuses; the message has its reason.
        """
        return control.ask(self._reach(run), run, method, path, body)

    def stored_status(self, run: str) -> Mapping[str, Any] | None:
        """The manager's last status when the run was taken down; None while it is up."""
        record = records.find(self._reach(run), run)
        return None if record is None else record.final

    @contextmanager
    def stored_files(self, run: str) -> Iterator[FilesOfManager]:
        """Models, generations and evaluations: through the run's manager; for a run that is taken down through a pod
        beside its volume, which is removed at the end of the block.

        Raises:
            Conflict: there is no such run, or it is unknown how to reach its volume: nothing was applied as a whole.
            BackendUnreachable: the pod may not be created, or cannot run; the message has the reason.
            TimedOut: it does not answer in time.
        """
        state = self._known(run)
        # the manager of a run that has finished stays; a stored status is that of a run that was taken down
        if state.phase != "stopped" and self.stored_status(run) is None:
            yield FilesOfManager(lambda path: self.control(run, "GET", path))
            return
        found = stored_revision(self._api, run, state.uid, state.revision)
        if found is None:
            raise Conflict(
                f"run {run} is taken down, and nothing is recorded of how its volume is reached",
                hint="`rlctl up SPEC` starts it again, and its manager reads the volume",
                objects=(run,),
            )
        with reader.opened(self._session(run), state, found) as files:
            yield files

    def logs(self, run: str, query: LogQuery) -> Iterator[LogRecord]:
        """Records of all processes that match, merged by time."""
        try:
            state = self._known(run)
        except Unreadable as error:
            found = lost.state(self._api, run, error)
            if found is None:
                raise
            state = found
        yield from logs.read(self._api, state, query, warn=lambda text: self.note(text), wait=self._sleep)

    def _known(self, run: str) -> RunState:
        """Find a run that has to be there.

        Raises:
            Conflict: there is no such run.
        """
        state = self.find(run)
        if state is None:
            raise scaling.no_run(self._api, run)
        return state
