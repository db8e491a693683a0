"""Runs whose record cannot be read: their objects, found by their labels."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from rlctl.backends.base import RunState
from rlctl.backends.kubernetes.api.interface import KINDS, Api, ApiError, Key, Object
from rlctl.backends.kubernetes.run_state import keys
from rlctl.backends.kubernetes.run_state import record as records
from rlctl.backends.kubernetes.run_state.record import Record
from rlctl.errors import Unreadable
from rlctl.spec.names import UID, selector, state_name, volume_name

_NOT_OURS: Final = ("Pod", "Event", "ResourceQuota", "Lease")
"""Kinds that controllers create, or that no inventory names."""
_MOST: Final = 5000


def find(api: Api, run: str) -> Record | None:
    """The record of a run; if it cannot be read, a stand-in with the objects that exist. None: there is no such run."""
    try:
        return records.find(api, run)
    except Unreadable as error:
        found = api.get(Key("ConfigMap", state_name(run)))
        return None if found is None else _stand_in(api, run, found, error.storage)


def state(api: Api, run: str, error: Unreadable) -> RunState | None:
    """State of a run whose record is unreadable, as far as its objects tell. None: there is no such run."""
    found = api.get(Key("ConfigMap", state_name(run)))
    return None if found is None else _state(run, found, error.storage)


def _stand_in(api: Api, run: str, found: Object, storage: str) -> Record:
    names: list[Key] = []
    uids = []
    for kind in KINDS:
        if kind in _NOT_OURS:
            continue
        try:
            things = api.list(kind, labels=selector(run), most=_MOST).items
        except ApiError as error:
            if error.status != 403:
                raise
            by_name = [keys.core_key(run), keys.actor_key(run)] if kind == "Secret" else []  # read, but not listed
            things = [thing for key in by_name if (thing := api.get(key)) is not None]
        for thing in things:
            key = Key(kind, thing["metadata"]["name"])
            if key.name != state_name(run):
                names.append(key)
                uids.append((thing["metadata"].get("annotations") or {}).get(UID, ""))
    known = _state(run, found, storage)
    if not known.uid:
        known = replace(known, uid=max(uids, key=uids.count, default=""))
    by = str((found["metadata"].get("annotations") or {}).get(records.BY, ""))
    return Record(known, tuple(names), by=by, version=found["metadata"].get("resourceVersion", ""), readable=False)


def _state(run: str, found: Object, storage: str) -> RunState:
    metadata = found["metadata"]
    created = datetime.now(UTC)
    with suppress(ValueError, KeyError, TypeError):
        created = datetime.fromisoformat(metadata["creationTimestamp"])
    return RunState(
        run=run,
        uid=(metadata.get("annotations") or {}).get(UID, ""),
        target="kubernetes",
        phase="running",
        rlctl_version="",
        revision=0,
        created=created,
        storage=storage or f"claim {volume_name(run)}",
        spec={},
        hashes={},
        replicas={},
        spec_replicas={},
    )
