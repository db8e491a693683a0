"""Ownership of an object's fields, from `metadata.managedFields`.

A field set is a tree of `f:name` (a field), `k:{...}` (an item of a list, by its key), `v:...` (a member of a set) and
`.` (the node itself); an empty tree is a leaf, or a value owned as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlctl.backends.kubernetes.api.interface import Object

Fields = Mapping[str, Any]
REPLICAS: Final = ("f:spec", "f:replicas")
_KEY_DEFAULTS: Final = {"protocol": "TCP"}
"""Defaults of key fields, which a document may leave out."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of managedFields."""

    manager: str
    applied: bool  # by server-side apply; else by an update of the whole or a part
    subresource: str
    fields: Fields


def owners(live: Object) -> list[Owner]:
    """All entries except those for the status, which no document has."""
    return [
        Owner(
            manager=entry.get("manager", ""),
            applied=entry.get("operation") == "Apply",
            subresource=entry.get("subresource", ""),
            fields=entry.get("fieldsV1") or {},
        )
        for entry in live["metadata"].get("managedFields") or []
        if entry.get("subresource", "") != "status"
    ]


def applied_by(live: Object, manager: str) -> Fields | None:
    """Fields that a manager owns by server-side apply; None: it has applied nothing."""
    for owner in owners(live):
        if owner.applied and owner.manager == manager and not owner.subresource:
            return owner.fields
    return None


def owning(live: Object, path: Iterable[str]) -> list[Owner]:
    """All field managers that own exactly this field."""
    path = tuple(path)
    return [owner for owner in owners(live) if _holds(owner.fields, path)]


def _holds(fields: Fields, path: tuple[str, ...]) -> bool:
    for step in path:
        if step not in fields:
            return False
        fields = fields[step]
    return True


def has_fields(fields: Fields) -> bool:
    """Whether a field set is that of a mapping, each field with its owner."""
    return any(step.startswith("f:") for step in fields)


def is_by_key(fields: Fields) -> bool:
    """Whether a field set is that of a list with keyed items, or of a set."""
    return any(step.startswith(("k:", "v:")) for step in fields)


def pick(items: Any, step: str) -> Any:
    """The item of a list that `k:{...}` or `v:...` names; None if there is none."""
    if not isinstance(items, list):
        return None
    wanted = json.loads(step[2:])
    for item in items:
        if step.startswith("v:"):
            if item == wanted:
                return item
        elif isinstance(item, dict) and all(
            item.get(name, _KEY_DEFAULTS.get(name)) == value for name, value in wanted.items()
        ):
            return item
    return None


def step_of(item: Any, others: Iterable[Fields]) -> str | None:
    """The step that names an item of a list, in the form of these field managers; None: they name no items."""
    for fields in others:
        for step in fields:
            if step.startswith("v:"):
                return "v:" + json.dumps(item, separators=(",", ":"))
            if step.startswith("k:") and isinstance(item, dict):
                names = json.loads(step[2:])
                key = {name: item.get(name, _KEY_DEFAULTS.get(name)) for name in sorted(names)}
                return "k:" + json.dumps(key, separators=(",", ":"))
    return None


def shown(path: Iterable[str]) -> str:
    """A path as the API server prints it: `.spec.template.spec.containers[name="actor"].image`."""
    return "".join(_shown_steps(path))


def _shown_steps(path: Iterable[str]) -> Iterator[str]:
    for step in path:
        if step.startswith("f:"):
            yield f".{step[2:]}"
        elif step.startswith("k:"):
            names = json.loads(step[2:])
            yield "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in names.items()) + "]"
        else:
            yield f"[{step[2:]}]"
