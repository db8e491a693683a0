"""`up` on one machine: from documents to processes. The caller holds the lock of the run."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlctl.backends.base import Applied, Document, RunState, Say
from rlctl.backends.files import copy_policy, remove_asides, reserve, write_at_last, write_changed
from rlctl.backends.local.apply.converge import as_scaled, converge, half_done, remove_old, sections, write_files
from rlctl.backends.local.names import in_order, shown
from rlctl.backends.local.process import supervisord
from rlctl.backends.local.process.supervisord import Supervisor
from rlctl.backends.local.process.unix_http import request
from rlctl.backends.local.state import lock, places, revisions, run_state
from rlctl.backends.local.state.places import Place
from rlctl.backends.run_states import live_counts
from rlctl.errors import BackendUnreachable, Conflict, PartlyApplied
from rlctl.plan import Plan
from rlctl.spec.layout import LIVE, Layout
from rlctl.waiting import Waiting

_ENDING_TIMEOUT_S = 60.0
_RELOAD_TIMEOUT_S = 15.0


def apply(
    plan: Plan,
    documents: Sequence[Document],
    spec: Mapping[str, Any],
    say: Say,
    note: str = "",
    initial: Callable[[], Path] | None = None,
) -> Iterator[Applied]:
    """Apply documents, see LocalBackend.apply. Every step compares first, so a second call writes nothing.

    The order makes a kill harmless: the index before anything that would be lost without it, files before the
    processes that read them, `running` after the supervisor.
    """
    place = _place(plan, documents, spec)
    layout = place.layout
    _prepare_folders(place)
    _await_end(place, say)  # an ending run changes its stored state
    stored = run_state.read_stored(place)
    if initial is not None and (stored is None or not layout.init.exists()):
        folder = initial()
        shutil.rmtree(layout.init, ignore_errors=True)  # left by an `up` that stored no state
        copy_policy(folder, layout.init)
    reserve(layout.run)

    supervisor = Supervisor.of(place, say=say) if lock.alive(place.life) else None
    if supervisor is not None:  # one that does not answer is detected before anything is changed
        supervisor.await_listening()  # a command that was killed may have started it just now
    known = _known_documents(layout)
    wanted = _state(place, plan, spec, stored)
    differs = run_state.write_documents(layout, documents)
    if stored is not None and (differs or replace(wanted, revision=stored.revision) != stored):
        wanted = replace(wanted, revision=stored.revision + 1)
    revisions.keep(place, stored, wanted, documents, note)

    if supervisor is not None:
        try:
            yield from _reconverge(supervisor, place, documents, wanted, say)
        except Conflict:
            if stored is not None and known:  # restored, so that the next call sees the difference too
                run_state.write_documents(layout, known)
                write_files(layout, known, stored.replicas)
                run_state.write_state(layout, stored)
            raise
    else:
        yield from _start(place, documents, wanted, say)
    remove_old(layout, documents)
    revisions.drop_old(layout, wanted.revision)


def _prepare_folders(place: Place) -> None:
    """Make the folders of a run, record them in the index, and remove what killed commands left in them."""
    layout = place.layout
    layout.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # else a record would name what never was
    places.record(place)
    layout.make()
    for folder in (layout.run, *layout.run.glob("*/")):
        remove_asides(folder)
    for left in layout.root.glob(f".{layout.init.name}-*"):  # of an `up` that was killed while it copied a policy
        shutil.rmtree(left, ignore_errors=True)


def _known_documents(layout: Layout) -> list[Document]:
    try:
        return run_state.read_documents(layout)
    except BackendUnreachable:  # torn: it is written anew
        return []


def _reconverge(
    supervisor: Supervisor, place: Place, documents: Sequence[Document], wanted: RunState, say: Say
) -> Iterator[Applied]:
    """Make a live run what is wanted.

    Raises:
        Conflict: the run is ending.
        PartlyApplied: the supervisor or the manager stopped answering in between.
    """
    write_files(place.layout, documents, wanted.replicas)
    run_state.write_state(place.layout, replace(wanted, phase="running"))
    supervisord.linked(place)
    with half_done(f"what changes of run {place.run} is recorded, and not all of it reached"):
        applied = converge(supervisor, sections(documents, wanted.replicas))
        yield from _reloaded(place, documents, wanted.replicas, applied, say)


def _start(place: Place, documents: Sequence[Document], wanted: RunState, say: Say) -> Iterator[Applied]:
    """Start the processes of a run that has none.

    Raises:
        PartlyApplied: they run, and the full disk takes no record of it.
    """
    layout = place.layout
    run_state.write_state(layout, replace(wanted, phase="stopped"))
    run_state.clear_end(layout)
    run_state.watch_file(layout).unlink(missing_ok=True)
    (layout.run / "supervisord.pid").unlink(missing_ok=True)
    places.clear_sockets(place.sockets)
    places.make_sockets(place.sockets)
    write_files(layout, documents, wanted.replicas)
    write_changed(_sent_file(layout), _live_hash(documents, wanted.replicas))
    supervisord.start(place, say)
    try:
        write_at_last(layout.run, lambda: run_state.write_state(layout, replace(wanted, phase="running")))
    except OSError as error:
        raise PartlyApplied(
            f"run {place.run} has been started, and {layout.run} takes no word of it: {error.strerror}",
            hint="Free some space, then run the same command again.",
            objects=(place.run,),
        ) from error
    yield Applied("supervisord", "created")
    for name in sorted(sections(documents, wanted.replicas), key=in_order):
        yield Applied(shown(name), "created")


def _place(plan: Plan, documents: Sequence[Document], spec: Mapping[str, Any]) -> Place:
    """Place of the run, looked up again under the lock.

    Raises:
        Conflict: it is another run than the one rendered.
    """
    storage = (spec.get("storage") or {}).get("path")
    place = places.place(plan.run, storage)
    if not place.recorded:
        place = replace(place, uid=plan.uid, sockets=places.sockets_of(plan.uid))
    rendered = next((document.text for document in documents if document.name == "supervisord.conf"), "")
    if place.uid == plan.uid and str(place.supervisor_socket) not in rendered:
        raise Conflict(
            f"these documents of run {plan.run} are not for {place.sockets}, the folder of its sockets by now",
            hint="rlctl up SPEC renders them anew",
            objects=(plan.run,),
        )
    if place.uid != plan.uid:
        raise Conflict(
            f"run {plan.run} was created by another command meanwhile, with uid {place.uid[:8]}",
            hint="Run the same command again.",
            objects=(plan.run,),
        )
    return place


def _await_end(place: Place, say: Say) -> None:
    """Wait for a run that has just finished or failed, and still ends its processes.

    Raises:
        Conflict: it does not end within 60 s.
    """

    def ended() -> bool:
        return run_state.read_end(place.layout) is None or not lock.alive(place.life)

    if not Waiting(_ENDING_TIMEOUT_S, say).until(ended, 0.1, f"run {place.run} to end its processes"):
        raise Conflict(f"run {place.run} is ending for more than {_ENDING_TIMEOUT_S:g} s", hint="rlctl down ends it.")


def _state(place: Place, plan: Plan, spec: Mapping[str, Any], stored: RunState | None) -> RunState:
    """The state to store. A live count stays unless the spec's own count has changed since the last apply."""
    spec_replicas: dict[str, int] = {role.role: role.replicas for role in plan.roles}
    return RunState(
        run=plan.run,
        uid=plan.uid,
        target="local",
        phase="running" if stored is None else stored.phase,
        rlctl_version=plan.rlctl_version,
        revision=1 if stored is None else stored.revision,
        created=datetime.now(UTC) if stored is None else stored.created,
        storage=str(place.layout.root),
        spec=dict(spec),
        hashes={role.role: role.hash for role in plan.roles},
        replicas=live_counts(stored, spec_replicas),
        spec_replicas=spec_replicas,
        code=plan.code_path,
    )


def _sent_file(layout: Layout) -> Path:
    """File with the hash of the live.json that the manager was told to read; at its start it reads the present one."""
    return layout.run / "live.sent"


def _live_hash(documents: Sequence[Document], replicas: Mapping[str, int]) -> str:
    text = next((as_scaled(document, replicas) for document in documents if document.name == LIVE), "")
    return sha256(text.encode()).hexdigest() + "\n"


def _reloaded(
    place: Place, documents: Sequence[Document], replicas: Mapping[str, int], applied: Iterator[Applied], say: Say
) -> Iterator[Applied]:
    """Yield the changes made; then notify the manager of changed live fields, unless it was or has just started.

    Raises:
        PartlyApplied: it does not answer; the same command notifies it again.
        Conflict: the run is ending.
    """
    sent, wanted = _sent_file(place.layout), _live_hash(documents, replicas)
    if _knows(sent, wanted):
        yield from applied
        return
    reached = False
    for each in applied:
        if each.object == "manager/0" and each.what == "unchanged":
            reached = True
        else:
            yield each
    if reached:
        _post_reload(place, say)
        yield Applied("manager/0", "reloaded", "live fields changed")
    write_changed(sent, wanted)


def tell_numbers(place: Place, documents: Sequence[Document], replicas: Mapping[str, int], say: Say) -> None:
    """Notify a manager of changed numbers of replicas that it uses, unless it was notified.

    Raises:
        PartlyApplied: it does not answer; the same command notifies it again.
        Conflict: the run is ending.
    """
    sent, wanted = _sent_file(place.layout), _live_hash(documents, replicas)
    if not _knows(sent, wanted):
        _post_reload(place, say)
        write_changed(sent, wanted)


def _knows(sent: Path, wanted: str) -> bool:
    return sent.exists() and sent.read_text(encoding="ascii", errors="replace") == wanted


def _post_reload(place: Place, say: Say) -> None:
    """Make the manager reload its live fields.

    Raises:
        PartlyApplied: it does not answer.
        Conflict: the run is ending.
    """
    patience = Waiting(_RELOAD_TIMEOUT_S)
    while True:
        try:
            request(
                place.control_socket,
                "POST",
                "/reload",
                timeout_s=_RELOAD_TIMEOUT_S,
                who=f"the manager of run {place.run}",
                say=say,
            )
            return
        except BackendUnreachable as error:
            if run_state.read_end(place.layout) is not None:
                raise _is_ending(place.run) from error
            if patience.over():
                raise PartlyApplied(
                    f"the changed live fields did not reach the manager: {error.message}",
                    hint="Run the same command again.",
                    objects=("manager/0",),
                ) from error
            time.sleep(0.2)
        except Conflict as error:
            raise _is_ending(place.run) from error


def _is_ending(run: str) -> Conflict:
    return Conflict(
        "the run is ending; the changed live fields did not reach it",
        hint="run the same command again when it has ended",
        objects=(run, "manager/0"),
    )
