"""`up`: makes a namespace hold the wanted objects.

Read everything, and when nothing differs, write nothing. Otherwise take the lock, read again, and write in this order:
the record with every object that may exist from now on; keys; documents in waves, dependencies first; then remove
objects that are not wanted any more; the revision; to the manager its changed live fields, and of a run that now
resumes the replicas that the manager had released meanwhile; the record as it is now. Then the initial policy of a new
run goes to its manager, without the lock; the learner waits for it. A kill after any of these writes leaves a state
from which the same call resumes. The last actors are added without the lock, because waiting for the first ones can
take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Final

from rlctl.backends.base import Applied
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object, kubectl
from rlctl.backends.kubernetes.api.refusals import FORWARD_RIGHT, GO_ON, lasting
from rlctl.backends.kubernetes.api.watch import follow
from rlctl.backends.kubernetes.apply import ramp, revisions
from rlctl.backends.kubernetes.apply.conflicts import check, conflict_of
from rlctl.backends.kubernetes.apply.drift import admitted
from rlctl.backends.kubernetes.apply.initial import upload
from rlctl.backends.kubernetes.apply.survey import DISPENSABLE, Item, Survey, survey
from rlctl.backends.kubernetes.apply.writing import Writer
from rlctl.backends.kubernetes.run_state import inventory, keys, replicas
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, revision_document, revision_key
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.errors import Conflict, PartlyApplied, RlctlError
from rlctl.spec.names import WORKLOADS

GONE_TIMEOUT_S: Final = 120.0
"""Seconds without progress in the removal of objects by a recent `down`: since the last of their pods went."""

_BOOKKEEPING: Final = ("resourceVersion", "generation", "managedFields")


def apply(
    session: Session, wanted: DesiredState, verb: str = "up", initial: Callable[[], Path] | None = None
) -> Iterator[Applied]:
    """Apply the wanted objects; see KubernetesBackend.apply."""
    seen = survey(session, wanted)
    if seen.settled:
        for item in seen.items:
            yield Applied(str(item.key), "unchanged", _kept_words(item))
        if initial is not None:
            yield from upload(session, seen.state, initial)
        session.lock(verb).sweep()
        return
    check(session, seen)
    _await_gone(session, seen)
    with session.lock(verb).held() as hold:
        seen = survey(session, wanted)
        _check_staying(seen)
        if not seen.settled:
            yield from _Up(session, seen, Writer(session, hold)).run()
    if initial is not None:
        yield from upload(session, seen.state, initial)
    yield from ramp.go_on(session, wanted.run, seen.state, _actors(seen), verb)


def _check_staying(seen: Survey) -> None:
    """Check that no wanted object is being removed.

    Raises:
        Conflict: a wanted object is being removed.
    """
    if seen.terminating:
        raise Conflict(
            f"{seen.terminating[0]} is being removed by another command or user", hint="Run the same command again.",
            objects=tuple(map(str, seen.terminating)),
        )  # fmt: skip


def _actors(seen: Survey) -> dict[Key, int]:
    """Actor Deployments whose number is ours to raise, with that number; in the order in which they are filled."""
    ours = {item.key: item.replicas for item in seen.items if not item.kept}
    return {key: ours[key] for key in seen.wanted.workloads("actor") if key in ours}


class _Up:
    """One `up`, under the lock."""

    def __init__(self, session: Session, seen: Survey, writer: Writer) -> None:
        self._session, self._seen, self._writer = session, seen, writer
        self._api, self._wanted = session.api, seen.wanted
        self._denied: list[Key] = []
        self._admitted: dict[Key, dict[str, str]] = {}
        self._first_shard = next(iter(seen.wanted.workloads("actor")), None)  # the first actors are added here

    def run(self) -> Iterator[Applied]:
        number = revisions.next_number(self._api, self._seen)
        record = self._begin(number)
        yield from self._keys()
        for item in self._seen.items:
            yield from self._item(item)
        kept = revisions.kept(self._api, self._seen, record.inventory, number)
        unwanted = inventory.unused(record.inventory, self._wanted.objects, kept, self._wanted.run)
        for key in unwanted:
            why = "no document names it any more"
            yield from self._writer.remove(key, self._wanted.uid, why=why)
        self._keep_revision(number)
        told, goes_on = self._tell()
        if goes_on:
            yield from self._bring_back()
        self._end(number, record, kept, unwanted)
        if told is not None:
            yield told

    def _begin(self, number: int) -> Record:
        """Record every object that may exist from now on, before any does. The live fields last sent to the manager are
        unknown until it has answered."""
        seen = self._seen
        names = [*seen.wanted.objects, keys.core_key(seen.wanted.run), keys.actor_key(seen.wanted.run)]
        names.append(revision_key(seen.wanted.run, number))
        if seen.record is None:
            state = replace(seen.state, revision=0)
            return self._writer.save(Record(state, inventory.union(names), self._session.me.by))
        planned = replace(
            seen.record,
            state=replace(seen.record.state, phase="running"),
            inventory=inventory.union(seen.record.inventory, names),
            live_sent=records.UNKNOWN if seen.tells else seen.record.live_sent,
            emptied=False,
        )
        return planned if planned == seen.record else self._writer.save(planned)

    def _keys(self) -> Iterator[Applied]:
        run, uid = self._wanted.run, self._wanted.uid
        core, actor = self._seen.core, self._seen.actor
        if core is None:
            keys.check_not_lost(run, self._seen.live_workloads)
        if core is None and actor is not None:  # its other half is lost
            self._writer.delete(keys.actor_key(run), uid=actor["metadata"]["uid"])
            actor = None
        if core is None:
            core = self._writer.create(keys.make(run, uid))
            yield Applied(str(keys.core_key(run)), "created")
        if actor is None:
            self._writer.create(keys.derived(core, run, uid, kubectl(self._api)))
            yield Applied(str(keys.actor_key(run)), "created")

    def _item(self, item: Item) -> Iterator[Applied]:
        try:
            live = self._document(item)
        except ApiError as error:
            if error.conflicts:
                raise conflict_of(item, error, self._wanted.run) from error
            # 404: a RoleBinding whose Role we may not make
            lacks = error.status == 403 or (error.status == 404 and item.key.kind == "RoleBinding")
            if lacks and item.key.kind in DISPENSABLE:
                self._denied.append(item.key)
                self._session.note(
                    f"{error.message}: the run does without; after its end its pods stay until `rlctl down`"
                )
                return
            raise
        if marks := admitted(item.document, live):
            self._admitted[item.key] = marks
        if item.live is None:
            yield Applied(str(item.key), "created")
        elif _said(live) == _said(item.live):
            yield Applied(str(item.key), "unchanged", _kept_words(item))
        elif item.key.kind in WORKLOADS and live["spec"]["template"] != item.live["spec"]["template"]:
            yield Applied(str(item.key), "restarted", "its configuration changed")
        else:
            why = ", ".join(str(each) for each in item.drift if each.differs)
            yield Applied(str(item.key), "changed", why or _count_words(item))

    def _document(self, item: Item) -> Object:
        """Write one document, and the number of its replicas; unchanged ones are not written."""
        writer, live = self._writer, item.live
        workload = item.key.kind in WORKLOADS
        if live is None:
            made = replicas.with_replicas(item.document) if workload else item.document
            live = writer.apply(made)
        elif item.what == "change" or (item.count is not None and item.count.whose == "unfinished"):
            if item.count is not None and item.count.whose == "unfinished":
                live = writer.set_count(live, replicas.count(live).value)  # as a killed command left it
            live = writer.apply(item.document, uid=live["metadata"]["uid"], force=self._session.force)
        if workload and item.scales:
            live = self._scale(item, live)
        return live

    def _scale(self, item: Item, live: Object) -> Object:
        number = item.replicas
        if item.role == "actor":
            now = replicas.count(live)
            number = ramp.first(now.value, item.replicas, is_first=item.key == self._first_shard)
            if number == 0 and item.replicas and now.whose == "unfinished":
                return live  # its turn comes later, and the field changes its owner then
        if replicas.count(live) == replicas.Count(number, "ours"):
            return live
        live = self._writer.set_count(live, number, force=self._session.force)
        if replicas.count(live).whose == "unfinished":  # both own an equal number: give ours up
            live = self._writer.apply(item.document, uid=live["metadata"]["uid"], force=self._session.force)
        return live

    def _keep_revision(self, number: int) -> None:
        if self._api.get(revision_key(self._wanted.run, number)) is None:
            at = self._session.now().replace(microsecond=0)
            self._writer.create(revision_document(self._wanted, number, at, self._session.me.by))

    def _tell(self) -> tuple[Applied | None, bool]:
        """Notify a manager that keeps running of changed live fields; returns also whether its finished run resumes.

        Raises:
            PartlyApplied: it does not answer, or refuses; the same command notifies it again.
        """
        if not self._seen.tells:
            return None, False
        manager = f"StatefulSet {self._wanted.run}-manager"
        try:
            live = self._wanted.live_with(self._seen.state.replicas)
            answer = self._session.ask("/reload", {"live": live})
        except RlctlError as error:
            lasts = any(isinstance(one, RlctlError) and lasting(one) for one in (error, error.__cause__))
            raise PartlyApplied(
                f"the live fields did not reach the manager: {error.message}",
                hint=(error.hint or FORWARD_RIGHT) if lasts else GO_ON,
                objects=(manager,),
            ) from error
        goes_on = isinstance(answer, dict) and answer.get("resumed") is True
        changed = self._seen.record is None or self._seen.record.live_sent != self._seen.live_hash
        why = [text for text, holds in (("live fields changed", changed), ("the run that was over goes on", goes_on))
               if holds]  # fmt: skip
        return Applied(manager, "reloaded" if why else "unchanged", ", and ".join(why)), goes_on

    def _bring_back(self) -> Iterator[Applied]:
        """Scale up workloads that the manager of a finished run has scaled to 0 after the survey; it no longer does."""
        for item in self._seen.items:
            live = self._api.get(item.key) if item.key.kind in WORKLOADS and item.replicas else None
            if live is None or not inventory.is_ours(live, self._wanted.run, self._wanted.uid):
                continue
            if (found := replicas.count(live)).value or found.whose == "foreign":
                continue
            try:
                number = replicas.count(self._scale(item, live)).value
            except ApiError as error:
                if not error.conflicts:
                    raise
                raise conflict_of(item, error, self._wanted.run) from error
            if number:
                yield Applied(str(item.key), "changed", f"replicas: 0 -> {number}")

    def _end(self, number: int, record: Record, kept: set[Key], unwanted: list[Key]) -> None:
        """Record the run as it is now."""
        gone = {*unwanted, *self._denied}
        named = self._wanted.objects
        final = replace(
            record,
            state=replace(self._seen.state, revision=number),
            inventory=tuple(key for key in record.inventory if key not in gone),
            kept=tuple(key for key in record.inventory if key in kept and key not in named),
            denied=tuple(self._denied),
            admitted=self._admitted,
            live_sent=self._seen.live_hash,
            final=None,
        )
        if final != record:
            self._writer.save(final)


def _await_gone(session: Session, seen: Survey) -> None:
    """Wait until objects of ours that a recent `down` is removing are gone, so that no vanishing object is changed.

    Raises:
        Conflict: they are not removed.
    """
    for key in seen.terminating:
        patience, fewest = session.patience(GONE_TIMEOUT_S), inf
        for known in follow(session.api, key.kind, fields=f"metadata.name={key.name}"):
            if not any(thing["metadata"].get("deletionTimestamp") for thing in known.values()):
                break
            pods = sum((thing.get("status") or {}).get("replicas", 0) for thing in known.values())
            if pods < fewest:  # thousands take longer than any bound, but they go
                fewest = pods
                patience.moved()
            if patience.over(f"{key} to be gone"):
                raise Conflict(
                    f"{key} is being removed, without progress for {GONE_TIMEOUT_S:g} s: something holds it",
                    hint=f"{kubectl(session.api)} get {key.kind.lower()} {key.name} -o yaml shows its finalizers.",
                    objects=(str(key),),
                )


def _said(live: Object) -> Object:
    """An object without its status, and without bookkeeping of its writers."""
    metadata = {name: value for name, value in live["metadata"].items() if name not in _BOOKKEEPING}
    return {**{name: value for name, value in live.items() if name != "status"}, "metadata": metadata}


def _kept_words(item: Item) -> str:
    if item.kept and item.count is not None and item.count.value != item.replicas:
        return f"keeping {item.count.value} replicas, set by {item.count.by} (rlctl would have {item.replicas})"
    return ""


def _count_words(item: Item) -> str:
    if item.count is not None and item.scales and item.count.value != item.replicas:
        return f"replicas: {item.count.value} -> {item.replicas}"
    return ""
