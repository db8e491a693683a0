"""Local target: every verb of the contract; those that change a run hold its lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
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
)
from rlctl.backends.differences import differences
from rlctl.backends.files import read_json, reported
from rlctl.backends.local import doctor
from rlctl.backends.local.access import listing, logs, pages
from rlctl.backends.local.access.stored_files import FilesOfFolder
from rlctl.backends.local.apply import down, up
from rlctl.backends.local.apply.converge import converge, half_done, restart, sections, write_files
from rlctl.backends.local.names import is_role, shown, split_name
from rlctl.backends.local.process.supervisord import Supervisor, linked
from rlctl.backends.local.process.unix_http import request
from rlctl.backends.local.state import lock, places, revisions, run_state
from rlctl.backends.local.state.places import Place
from rlctl.backends.revisions import check_fits, missing, rollback_note
from rlctl.backends.run_states import check_count, check_role, newest_first
from rlctl.errors import Conflict, PartlyApplied, RlctlError
from rlctl.plan import Plan
from rlctl.spec.problems.findings import simulator_missing
from rlctl.spec.runs import run_index
from rlctl.waiting import quiet

CONTROL_TIMEOUT_S = 3.0
FOLLOW_POLL_S = 0.15


class LocalBackend:
    """Runs of this host user on this machine. Stateless: any number of instances may be used side by side."""

    name = "local"
    context = namespace = server = ""
    poll_every_s, grace_s = 0.5, 10.0

    def __init__(self) -> None:
        self.note: Say = quiet
        self.waiting: Say = quiet
        self.leave: Callable[[], bool] = lambda: False  # its waits are short
        self.force_conflicts = False
        self.image_sizes: Sizes = no_sizes

    def place(self, run: str, storage: str | None = None) -> Place:
        """The recorded place of a run, or the one that it would have: for rendering. Writes nothing.

        Args:
            storage: absolute folder from the spec; None: the state folder of this user.

        Raises:
            BackendUnreachable: the run's index entry is torn or foreign.
        """
        with reported(f"cannot look up run {run}"):
            return places.place(run, storage)

    def runs(self, broken: Callable[[RlctlError], object] | None = None) -> list[RunState]:
        """Every run of this user, live or not, newest first."""
        return newest_first((partial(self.find, name) for name in places.names()), broken)

    def find(self, run: str) -> RunState | None:
        """The run of that name, or None.

        Raises:
            Unreadable: its record is torn or foreign.
        """
        with reported(f"cannot look up run {run}"):
            place = places.find(run)
            return None if place is None else run_state.read(place)

    def check_owner(self, run: str) -> str:
        """Always "": all runs here are this user's."""
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
        """Make this machine run exactly these documents; the same call resumes after a kill at any moment.

        Args:
            note: note of the revision, if this makes one.
            initial: returns the folder of a new run's initial policy, as `rlctl pull` writes it, to be copied into its
                storage; not called if the run exists and has one. None: the run begins with new weights.
            spec: resolved; `storage.path` absolute or absent, as given to `place`.

        Raises:
            Conflict: another command holds the run, or created it meanwhile.
            PartlyApplied: the supervisor refused one step.
            BackendUnreachable: the disk, the supervisor or a foreign file prevents it.
        """
        with reported(f"cannot apply run {plan.run}"), _locked(plan.run, "up"):
            yield from up.apply(plan, list(documents), spec, self.waiting, note, initial)

    def scale(self, run: str, replicas: Mapping[str, int]) -> Iterator[Applied]:
        """Add or remove single replicas; no other process is touched. The manager is notified of numbers that it uses.

        Raises:
            Conflict: no such run or role, the run is not live or is ending, or another command holds it.
            BackendUnreachable: the supervisor does not answer; nothing is changed.
            PartlyApplied: it stopped answering meanwhile, or refused one step, or the manager does not answer; the same
                call resumes.
        """
        with reported(f"cannot scale run {run}"), _locked(run, "scale"):
            place, known = _live(run)
            wanted = dict(known.replicas)
            for role, count in replicas.items():
                check_count(known, role, count)
                wanted[role] = count
            documents = run_state.read_documents(place.layout)
            if {role for role, count in wanted.items() if count} - {document.role for document in documents}:
                raise Conflict(f"the documents of run {run} are gone", hint="rlctl up SPEC writes them anew")
            supervisor = Supervisor.of(place, say=self.waiting)
            supervisor.pid()  # one that does not answer is detected before anything is written
            linked(place)
            run_state.write_state(place.layout, replace(known, replicas=wanted))
            write_files(place.layout, documents, wanted)
            unheard: PartlyApplied | None = None
            with half_done(f"the new numbers of run {run} are recorded, and not all of them reached"):
                try:  # before added replicas join it
                    up.tell_numbers(place, documents, wanted, self.waiting)
                except PartlyApplied as error:  # no reason not to scale
                    unheard = error
                except Conflict:
                    run_state.write_state(place.layout, known)
                    write_files(place.layout, documents, known.replicas)
                    raise
                yield from converge(supervisor, sections(documents, wanted))
            if unheard is not None:
                raise unheard

    def restart(self, run: str, role: str) -> Iterator[Applied]:
        """Stop all replicas of a role gracefully, at the same time, and start them again.

        Raises:
            Conflict: no such run or role, the run is not live, or another command holds it.
            BackendUnreachable: the supervisor does not answer; nothing is changed.
            PartlyApplied: it stopped answering meanwhile, or refused to start one; the same call resumes.
        """
        with reported(f"cannot restart {role} of run {run}"), _locked(run, "restart"):
            place, known = _live(run)
            check_role(known, role)
            supervisor = Supervisor.of(place, say=self.waiting)
            names = [name for name in supervisor.children() if is_role(name) and split_name(name)[0] == role]
            killed = restart(supervisor, names)
            for name in names:
                yield Applied(shown(name), "restarted", "killed: it did not end in time" if name in killed else "")

    def delete(self, run: str, *, volumes: bool, grace_s: float) -> Iterator[Applied]:
        """Stop everything of a run, senders before receivers; its data stays unless `volumes`.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL of each role; 10 at most.

        Raises:
            BackendUnreachable: it cannot be stopped; or, with `volumes`, its index entry cannot be read or names a
                folder that is no run's: then nothing is removed.
        """
        place = places.find(run) if volumes else places.find_at_least(run)
        if place is None:
            return
        with reported(f"cannot take down run {run}"), _locked(run, "down"):
            if volumes:
                places.check_data(place)
            yield from down.end(place, grace_s, self.waiting)
            places.clear_sockets(place.sockets)
            if volumes:
                places.remove_data(place)
                places.forget(place)
                yield Applied(str(place.layout.root), "removed")

    def documents(self, run: str, revision: int | None = None) -> list[Document]:
        """Documents as last applied, or those of a revision that is kept."""
        place = _known(run)
        if revision is None:
            return run_state.read_documents(place.layout)
        with reported(f"cannot read the revisions of run {run}"):
            known = run_state.read(place)
            if known is None:
                raise missing(run, revision, [])
            return revisions.read(place, known, revision).documents

    def processes(self, run: str, known: RunState | None = None) -> list[Process]:
        """Every replica, live or given up, in role and index order.

        Raises:
            BackendUnreachable: the supervisor does not answer.
        """
        with reported(f"cannot list the processes of run {run}"):
            place = places.find(run)
            known = None if place is None else run_state.read(place)  # a file is cheap to read: take the newest
            return [] if place is None or known is None else listing.processes(place, known)

    def control(
        self, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request to the run's manager; returns the decoded reply.

        Raises:
            BackendUnreachable: there is no manager, or it does not answer.
            RlctlError: it refuses; the message has its reason.
        """
        who = f"the manager of run {run}"
        return request(_known(run).control_socket, method, path, body, timeout_s=CONTROL_TIMEOUT_S, who=who)

    def stored_status(self, run: str) -> Mapping[str, Any] | None:
        """The last status that the manager stored; None if there is none.

        Raises:
            BackendUnreachable: the file is torn or foreign.
        """
        place = places.find(run)
        return None if place is None else read_json(place.layout.status_file, f"the status of run {run}")

    def stored_files(self, run: str) -> AbstractContextManager[FilesOfFolder]:
        """Models, generations and evaluations of a run, live or not.

        Raises:
            Conflict: there is no such run.
        """
        return nullcontext(FilesOfFolder(_known(run).layout))

    def logs(self, run: str, query: LogQuery) -> Iterator[LogRecord]:
        """Records of all processes that match, merged by time; following ends with the run.

        Raises:
            UsageError: grep or level of the query is wrong.
        """
        place = _existing(run, places.find_at_least(run))
        with reported(f"cannot read the logs of run {run}"):
            yield from logs.read(
                place.layout.logs,
                query,
                live=lambda: lock.alive(place.life),
                wait=lambda: time.sleep(FOLLOW_POLL_S),
                clock=time.time,
            )

    def differences(self, plan: Plan, documents: Iterable[Document]) -> Iterator[Difference]:
        """Changes that `apply` would make in the files of the run; writes nothing."""
        place = places.find(plan.run)
        yield from differences([] if place is None else run_state.read_documents(place.layout), documents)

    def preflight(self, plan: Plan, documents: Iterable[Document]) -> list[Check]:
        """Preflight checks of the packages needed: without the simulator the roles would end a second after `up -d` has
        reported success.
        """
        installed = doctor.packages()
        ids = {role.run_file["spec"]["env"]["id"] for role in plan.roles if role.role in ("actor", "evaluator")}
        simulators = [
            Check("simulator", "problem", *lacking) for one in sorted(ids) if (lacking := simulator_missing(one))
        ]
        return simulators if installed.verdict == "ok" else [installed, *simulators]

    def revisions(self, run: str) -> list[Revision]:
        """Revisions that can be rolled back to, newest first; the first is the present one.

        Raises:
            Conflict: there is no such run.
            BackendUnreachable: one of their files is torn or foreign.
        """
        place = _known(run)
        with reported(f"cannot read the revisions of run {run}"):
            return revisions.revisions(place, run_state.read(place))

    def rollback(self, run: str, number: int) -> Iterator[Applied]:
        """Apply the documents of a revision again, as a new revision.

        Raises:
            Conflict: no such run or revision, or a field that cannot change differs; or another command holds the run.
        """
        with reported(f"cannot roll back run {run}"), _locked(run, "rollback"):
            place = _known(run)
            known = run_state.read(place)
            if known is None:
                raise missing(run, number, [])
            kept = revisions.read(place, known, number)
            check_fits(known, kept.revision)
            note = rollback_note(number)
            yield from up.apply(kept.plan, kept.documents, kept.revision.spec, self.waiting, note=note)

    def doctor(self) -> list[Check]:
        """Checks whether this machine can run a training."""
        with reported("cannot look at this machine"):
            return doctor.look()

    @contextmanager
    def forward(self, run: str, what: Literal["tensorboard", "status"]) -> Iterator[str]:
        """URL of a page for as long as the block lasts; TensorBoard is started for it.

        Raises:
            Conflict: no such run, no curves yet, or the run is over and has stored no status.
            BackendUnreachable: the manager, or TensorBoard, does not answer.
        """
        place = _known(run)
        page = pages.status_page(place) if what == "status" else pages.tensorboard(place)
        with ExitStack() as open_page:
            with reported(f"cannot open {what} of run {run}"):
                url = open_page.enter_context(page)
            yield url


@contextmanager
def _locked(run: str, verb: str) -> Iterator[None]:
    run_index.folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock.held(places.lock_file(run), run, verb):
        yield


def _known(run: str) -> Place:
    return _existing(run, places.find(run))


def _existing(run: str, place: Place | None) -> Place:
    if place is None:
        raise Conflict(f"there is no run {run} on this machine", hint="rlctl status lists the runs.", objects=(run,))
    return place


def _live(run: str) -> tuple[Place, RunState]:
    place = _known(run)
    known = run_state.read(place)
    if known is None or known.phase != "running":
        raise Conflict(
            f"run {run} is not live: {'nothing was started' if known is None else known.phase}",
            hint="rlctl up SPEC starts it again.",
            objects=(run,),
        )
    return place, known
