"""Record of a run in its namespace: one ConfigMap, the first object written and the last removed.

It holds the state, the inventory (every object of the run that may exist, so that nothing is ever lost), and the
manager's last status. It is written back whole with the resourceVersion that was read, so a command that has lost its
lock without knowing cannot overwrite what its successor wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rlctl.backends.base import RunState
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object, kubectl
from rlctl.backends.kubernetes.api.refusals import in_words, lacks_right
from rlctl.backends.run_states import from_stored, to_stored
from rlctl.errors import Conflict, Unreadable
from rlctl.spec.names import DOMAIN, UID, labels, state_name

BY: Final = f"{DOMAIN}/by"
"""Annotation: the user who created the object, user@host."""
LIVE_SENT: Final = f"{DOMAIN}/live-sent"
"""Annotation of the record: hash of the live fields last sent to the manager."""
UNKNOWN: Final = "unknown"
"""Value of that annotation while the manager is notified: after a kill or a refusal, the next command notifies it."""


@dataclass(frozen=True, slots=True)
class Record:
    """Record of one run, stored or to be stored."""

    state: RunState
    inventory: tuple[Key, ...]
    by: str  # the user who started the run, user@host
    final: Mapping[str, Any] | None = None  # the manager's status when the run was taken down
    live_sent: str = ""  # hash of the live fields last sent to the manager
    denied: tuple[Key, ...] = ()  # objects that we may not create, and can do without
    kept: tuple[Key, ...] = ()  # objects of the inventory that no document names but an old revision needs
    admitted: Mapping[Key, Mapping[str, str]] = field(default_factory=dict)
    """Changes that the cluster made to fields that we sent, by object; see drift.admitted."""
    emptied: bool = False  # `down --volumes` has removed its folder from a volume that is not ours
    version: str = ""  # resourceVersion; "": not written yet
    readable: bool = True  # False: a stand-in for a record that cannot be read; never written

    @property
    def key(self) -> Key:
        return Key("ConfigMap", state_name(self.state.run))


def find(api: Api, run: str) -> Record | None:
    """The record of the run of that name, or None, in one request.

    Raises:
        Unreadable: it is torn or foreign.
    """
    key = Key("ConfigMap", state_name(run))
    try:
        found = api.get(key)
    except ApiError as error:
        if lacks_right(error):
            raise in_words(error, "get", key, api, written=False) from error
        raise
    return None if found is None else of(found, api)


def of(found: Object, api: Api) -> Record:
    """Read the record in a state ConfigMap.

    Raises:
        Unreadable: it is torn, foreign, or has a format that this rlctl does not know.
    """
    name = found["metadata"]["name"]
    notes = found["metadata"].get("annotations") or {}
    try:
        data = found["data"]
        state = from_stored(json.loads(data["state.json"]))
        if state_name(state.run) != name:
            raise ValueError(f"it is the state of run {state.run}")
        return Record(
            state=state,
            inventory=parse_keys(data["inventory.json"]),
            by=notes.get(BY, ""),
            final=json.loads(data["final.json"]) if "final.json" in data else None,
            live_sent=notes.get(LIVE_SENT, ""),
            denied=parse_keys(data.get("denied.json", "[]")),
            kept=parse_keys(data.get("kept.json", "[]")),
            admitted=_admitted(json.loads(data.get("admitted.json", "{}"))),
            emptied=json.loads(data.get("emptied.json", "false")) is True,
            version=found["metadata"].get("resourceVersion", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        run = name.removesuffix(state_name(""))
        raise Unreadable(
            f"ConfigMap {name} does not hold the state of run {run}: {type(error).__name__}: {error}",
            run=run,
            storage=_storage(found),
            hint=f"Another program wrote it, or a newer rlctl did. Look at it: {kubectl(api)} get configmap "
            f"{name} -o yaml",
            objects=(f"ConfigMap {name}",),
        ) from error


def _storage(found: Object) -> str:
    """Storage of the run's data, as far as a torn record tells."""
    text = str((found.get("data") or {}).get("state.json", ""))
    match = re.search(r'"storage": "(claim [^"]*)"', text)
    return match[1] if match else ""


def save(api: Api, record: Record) -> Record:
    """Write a record; returns it with its new version.

    Raises:
        Conflict: it has changed since it was read, or another command has created it meanwhile.
    """
    document = document_of(record)
    try:
        written = api.replace(document) if record.version else api.create(document)
    except ApiError as error:
        if error.status != 409:
            raise
        raise Conflict(
            f"the state of run {record.state.run} was written by another command meanwhile",
            hint="Run the same command again.",
            objects=(str(record.key),),
        ) from error
    return of(written, api)


def document_of(record: Record) -> Object:
    """The record as the ConfigMap to send."""
    state = record.state
    data = {"state.json": _json(to_stored(state)), "inventory.json": written_keys(record.inventory)}
    if record.final is not None:
        data["final.json"] = _json(record.final)
    notes = {UID: state.uid, BY: record.by}
    if record.live_sent:
        notes[LIVE_SENT] = record.live_sent
    for name, keys in (("denied.json", record.denied), ("kept.json", record.kept)):
        if keys:
            data[name] = written_keys(keys)
    if record.admitted:
        data["admitted.json"] = _json({f"{key.kind}/{key.name}": marks for key, marks in record.admitted.items()})
    if record.emptied:
        data["emptied.json"] = "true\n"
    metadata: dict[str, Any] = {"name": state_name(state.run), "labels": labels(state.run), "annotations": notes}
    if record.version:
        metadata["resourceVersion"] = record.version
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def parse_keys(text: str) -> tuple[Key, ...]:
    """Read a JSON list of keys.

    Raises:
        ValueError, TypeError: the text is no JSON list of "Kind/name".
    """
    return tuple(_key(str(each)) for each in json.loads(text))


def _key(text: str) -> Key:
    """Key from "Kind/name"."""
    return Key(*text.split("/", 1))


def written_keys(keys: Iterable[Key]) -> str:
    return json.dumps([f"{key.kind}/{key.name}" for key in keys])


def _admitted(stored: Mapping[str, Mapping[str, str]]) -> dict[Key, dict[str, str]]:
    return {_key(name): {path: str(mark) for path, mark in marks.items()} for name, marks in stored.items()}


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
