"""Survey of a namespace against the wanted objects: read once, before anything is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from rlctl.backends.base import RunState
from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.backends.kubernetes.api.ownership import REPLICAS
from rlctl.backends.kubernetes.api.refusals import in_words
from rlctl.backends.kubernetes.apply.drift import Drift, compare, mark, replaced
from rlctl.backends.kubernetes.run_state import inventory, keys, replicas
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.desired_state import DesiredState, revision_key, same, shares, stored_revision
from rlctl.backends.kubernetes.run_state.owner import check_owner
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.backends.kubernetes.run_state.replicas import Count
from rlctl.backends.kubernetes.run_state.session import Session
from rlctl.backends.run_states import live_counts
from rlctl.errors import Conflict
from rlctl.spec.layout import Layout
from rlctl.spec.names import MANAGER, WORKLOADS, selector, volume_name

DISPENSABLE: Final = ("Role", "RoleBinding")
"""Kinds that many users may not create; a run does without, and then its user has to run `rlctl down` after its end.

The ServiceAccount that they refer to is none of them: without it the manager's pod is not created."""
_MOST: Final = 5000
"""Objects of one kind, at most; a limited list is as fresh as a read by name."""
ALONE: Final = 1
"""Replicas of a workload that no plan counts: TensorBoard, the status page."""


@dataclass(frozen=True, slots=True)
class Item:
    """One document, and the live object that it describes."""

    key: Key
    role: str
    document: Object
    live: Object | None
    drift: tuple[Drift, ...] = ()
    edited: bool = False  # whether the document has changed since the last whole `up`
    replicas: int = 0  # wanted replicas of a workload
    count: Count | None = None  # live replicas of a workload
    kept: bool = False  # the live number stays: another field manager has set it
    denied: bool = False  # we may not create it, and can do without

    @property
    def what(self) -> Literal["create", "change", "same"]:
        if self.live is None:
            return "create"
        return "change" if self.drift or self.edited else "same"

    @property
    def sent(self) -> Object:
        """The document as a dry run sends it; with the live number, if a killed command left that field to `rlctl`."""
        if self.count is None or self.count.whose != "unfinished":
            return self.document
        return replicas.with_replicas(self.document, self.count.value)

    @property
    def restarts(self) -> bool:
        return self.live is not None and replaced(list(self.drift))

    @property
    def scales(self) -> bool:
        """Whether the number of replicas has to be written."""
        if self.count is None:
            return self.key.kind in WORKLOADS
        return not self.kept and (self.count.value != self.replicas or self.count.whose == "unfinished")


@dataclass(frozen=True, slots=True)
class Survey:
    """A run as its cluster has it beside the run that is wanted, and the writes of an `up` that follow from both."""

    wanted: DesiredState
    record: Record | None
    previous: DesiredState | None  # the revision last applied as a whole
    items: tuple[Item, ...]  # in the order in which they are sent
    core: Object | None  # Secrets
    actor: Object | None
    state: RunState  # to be recorded in the end, except the number of a new revision

    @property
    def new_revision(self) -> bool:
        return self.previous is None or not same(self.previous, self.wanted)

    @property
    def live_hash(self) -> str:
        text = json.dumps(self.wanted.live, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def tells(self) -> bool:
        """Whether a manager that keeps running has to be notified: of changed live fields, or that its run resumes."""
        if self.record is None or (self.record.live_sent in ("", self.live_hash) and not self.was_released):
            return False
        return any(item.role == "manager" and item.key.kind == "StatefulSet" and item.live is not None
                   and not item.restarts for item in self.items)  # fmt: skip

    @property
    def was_released(self) -> bool:
        """Whether learners are wanted and there are none: the manager has released the pods of a run that is over."""
        return any(
            item.role == "learner" and item.replicas > 0 and item.count is not None
            and (item.count.value, item.count.whose) == (0, "ours") for item in self.items
        )  # fmt: skip

    @property
    def settled(self) -> bool:
        """Whether there is nothing to write."""
        if self.record is None or self.new_revision or self.core is None or self.actor is None:
            return False
        kept = {*self.record.kept, revision_key(self.wanted.run, self.record.state.revision)}
        if inventory.unused(self.record.inventory, self.wanted.objects, kept, self.wanted.run):
            return False
        if self.record.state != self.state or self.record.live_sent != self.live_hash:
            return False
        return all((item.what == "same" and not item.scales) or item.denied for item in self.items)

    @property
    def live_workloads(self) -> list[Object]:
        return [item.live for item in self.items if item.live is not None and item.key.kind in WORKLOADS]

    @property
    def terminating(self) -> list[Key]:
        return [item.key for item in self.items if item.live and item.live["metadata"].get("deletionTimestamp")]


def survey(session: Session, wanted: DesiredState) -> Survey:
    """Read everything that an `up` needs.

    Raises:
        Conflict: the run, or one of its objects, has another owner.
        ApiError: the server does not answer, or refuses.
    """
    api = session.api
    record = records.find(api, wanted.run)
    if record is not None:
        check_owner(session, record, "up", uid=wanted.uid)
    previous = None if record is None else stored_revision(api, wanted.run, wanted.uid, record.state.revision)
    live = _read(session, wanted)
    core, actor = _get(session, keys.core_key(wanted.run)), _get(session, keys.actor_key(wanted.run))
    there = [thing for thing in (*live.values(), core, actor) if thing is not None]
    _check_foreign(there, wanted, api.namespace)
    stored = None if record is None else record.state
    roles = dict.fromkeys(inventory.role_of(wanted.objects[key]) for key in wanted.workloads())
    totals = live_counts(stored, {role: wanted.spec_replicas.get(role, ALONE) for role in roles})
    counts: dict[Key, int] = {}
    for role, total in totals.items():
        counts |= shares(wanted.workloads(role), total)
    kept_roles = {
        role for role in totals if stored and stored.spec_replicas.get(role) == wanted.spec_replicas.get(role)
    }
    items = tuple(
        _item(key, thing, live[key], record, previous, counts.get(key, 0), kept_roles)
        for key, thing in wanted.objects.items()
    )
    items = tuple(replace(item, denied=_still_denied(session, item)) if item.denied else item for item in items)
    return Survey(
        wanted=wanted,
        record=record,
        previous=previous,
        items=items,
        core=core,
        actor=actor,
        state=_state(session, wanted, stored, totals),
    )


def _item(
    key: Key, document: Object, live: Object | None, record: Record | None, previous: DesiredState | None,
    replicas_wanted: int, kept_roles: set[str],
) -> Item:  # fmt: skip
    role = inventory.role_of(document)
    denied = record is not None and live is None and key in record.denied
    if live is None:
        return Item(key, role, document, None, replicas=replicas_wanted, denied=denied)
    found = replicas.count(live) if key.kind in WORKLOADS else None
    known = record.admitted.get(key, {}) if record is not None else {}
    drift = [
        each for each in compare(document, live)
        if each.path != REPLICAS and (each.owners or known.get(str(each)) != mark(each))
    ]  # fmt: skip
    edited = previous is None or previous.objects.get(key) != document
    kept = found is not None and found.whose == "foreign" and (role in kept_roles or found.value == replicas_wanted)
    return Item(key, role, document, live, tuple(drift), edited, replicas_wanted, found, kept)


def _still_denied(session: Session, item: Item) -> bool:
    """Whether we still may not create an object: the right may have been granted since. One dry run changes nothing."""
    try:
        session.api.apply(item.document, manager=MANAGER, dry_run=True)
    except ApiError as error:
        return error.status in (403, 404)  # 404: a RoleBinding whose Role we may not create
    return False


def _state(session: Session, wanted: DesiredState, stored: RunState | None, totals: Mapping[str, int]) -> RunState:
    counts = {role: totals.get(role, count) for role, count in wanted.spec_replicas.items()}
    if stored is not None:
        return replace(
            stored, phase="running", rlctl_version=wanted.rlctl_version, storage=_storage(wanted), spec=wanted.spec,
            hashes=dict(wanted.hashes), replicas=counts, spec_replicas=dict(wanted.spec_replicas), failure=None,
        )  # fmt: skip
    return RunState(
        run=wanted.run,
        uid=wanted.uid,
        target="kubernetes",
        phase="running",
        rlctl_version=wanted.rlctl_version,
        revision=0,
        created=session.now().replace(microsecond=0),
        storage=_storage(wanted),
        spec=wanted.spec,
        hashes=dict(wanted.hashes),
        replicas=counts,
        spec_replicas=dict(wanted.spec_replicas),
    )


def _storage(wanted: DesiredState) -> str:
    storage: Mapping[str, Any] = wanted.spec.get("storage") or {}
    claim = storage.get("claim") or volume_name(wanted.run)
    return f"claim {claim}:{Layout.of(Path('/'), wanted.run, wanted.uid).root}"


def _read(session: Session, wanted: DesiredState) -> dict[Key, Object | None]:
    """Live objects of the wanted ones: a list for each kind, and a read by name for those in no list."""
    found: dict[Key, Object] = {}
    for kind in dict.fromkeys(key.kind for key in wanted.objects):
        if kind not in DISPENSABLE:
            for thing in _list(session, kind, wanted.run):
                found[Key(kind, thing["metadata"]["name"])] = thing
    return {key: found.get(key) or _get(session, key) for key in wanted.objects}


def _list(session: Session, kind: str, run: str) -> list[Object]:
    try:
        return session.api.list(kind, labels=selector(run), most=_MOST).items
    except ApiError as error:
        if error.status == 403:  # perhaps we may read by name
            return []
        raise


def _get(session: Session, key: Key) -> Object | None:
    try:
        return session.api.get(key)
    except ApiError as error:
        if error.status == 403 and key.kind in DISPENSABLE:
            return None
        raise in_words(error, "get", key, session.api, written=False) from error


def _check_foreign(there: list[Object], wanted: DesiredState, namespace: str) -> None:
    foreign = [thing for thing in there if not inventory.is_ours(thing, wanted.run, wanted.uid)]
    if foreign:
        named = [f"{thing['kind']} {thing['metadata']['name']}" for thing in foreign]
        told = "\n".join(f"  {name}: {inventory.whose(thing)}" for name, thing in zip(named, foreign, strict=True))
        raise Conflict(
            f"these objects are in namespace {namespace} already, and not of this run:\n{told}",
            hint=f"Choose another name (--set run={wanted.run}-2), or have their owner remove them.",
            objects=tuple(named),
        )
