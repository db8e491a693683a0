"""Drift between a live object and its document, without a request that changes anything.

Two things are compared: the value of every field of the document, and the set of fields that our manager owns. Equal
values are not enough: a field that we no longer name has to be given up, one that we name has to become ours. Fields
that the server fills in are in neither. Fields of other managers are left alone.

A mutating webhook changes what we send, and the changed field stays ours: sending it again would change nothing. So a
difference right after our own write is recorded as a mark of both values, and is no drift while both stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rlctl.backends.kubernetes.api import quantity
from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.api.ownership import (
    REPLICAS,
    Fields,
    applied_by,
    has_fields,
    is_by_key,
    owners,
    pick,
    shown,
    step_of,
)
from rlctl.spec.names import MANAGER

_IDENTITY: Final = {(): {"apiVersion", "kind", "status"}, ("f:metadata",): {"name", "namespace", "creationTimestamp"}}
"""Fields that identify an object; they are in no field set."""
_QUANTITIES: Final = {"limits", "requests", "capacity", "hard", "sizeLimit", "divisor"}


@dataclass(frozen=True, slots=True)
class Drift:
    """One field whose value or owner an apply would change."""

    path: tuple[str, ...]
    theirs: Any  # live
    ours: Any  # in the document; None: it no longer names the field
    differs: bool  # whether the value differs, not only its owner
    owners: tuple[str, ...] = ()  # other managers that own it: a conflict if the value differs

    def __str__(self) -> str:
        return shown(self.path)


def compare(document: Object, live: Object) -> list[Drift]:
    """Every field that an apply of this document would change, in the order of the document."""
    mine = applied_by(live, MANAGER) or {}
    others = [owner for owner in owners(live) if not (owner.manager == MANAGER and owner.applied)]
    return list(_mapping(document, live, mine, [(owner.manager, owner.fields) for owner in others], ()))


def admitted(document: Object, live: Object) -> dict[str, str]:
    """Changes that the cluster made to a document just sent: field -> mark, for each of our fields that differs."""
    return {str(each): mark(each) for each in compare(document, live) if not each.owners and each.path != REPLICAS}


def mark(each: Drift) -> str:
    """Hash of what we send and what is live: another one when either changes."""
    text = json.dumps([each.ours, each.theirs], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Others = list[tuple[str, Fields]]


def _mapping(ours: Object, theirs: Any, mine: Fields, others: Others, path: tuple[str, ...]) -> Iterator[Drift]:
    live = theirs if isinstance(theirs, dict) else {}
    named = set()
    for name, value in ours.items():
        if name in _IDENTITY.get(path, ()):
            continue
        step = f"f:{name}"
        named.add(step)
        yield from _value(value, live.get(name), mine.get(step), _below(others, step), (*path, step))
    yield from _given_up(mine, named, live, path, others)


def _value(ours: Any, theirs: Any, mine: Fields | None, others: Others, path: tuple[str, ...]) -> Iterator[Drift]:
    """Compare a field, or an item of a list. The owners of its parts tell its kind."""
    trees = [mine or {}, *(fields for _, fields in others)] if ours else [mine or {}]
    if isinstance(ours, dict) and any(has_fields(fields) for fields in trees):
        yield from _mapping(ours, theirs, mine or {}, others, path)
    elif isinstance(ours, list) and any(is_by_key(fields) for fields in trees):
        yield from _list(ours, theirs, mine or {}, others, path)
    elif isinstance(ours, dict) and ours and mine is None and not others:
        yield from _mapping(ours, theirs, {}, [], path)
    else:
        differs = not _covers(theirs, ours, _name(path))
        if differs or mine is None:
            yield Drift(path, theirs, ours, differs, tuple(dict.fromkeys(name for name, _ in others)))


def _list(ours: list[Any], theirs: Any, mine: Fields, others: Others, path: tuple[str, ...]) -> Iterator[Drift]:
    """Compare a list with keyed items: each with the live item of its key, at any position."""
    named = set()
    for item in ours:
        step = step_of(item, [mine, *(fields for _, fields in others)])
        if step is None:  # unreachable while the caller has seen a key
            yield Drift(path, theirs, item, True)
            continue
        named.add(step)
        live = pick(theirs, step)
        yield from _value(item, live, mine.get(step), _below(others, step), (*path, step))
    yield from _given_up(mine, named, theirs, path, others)


def _given_up(mine: Fields, named: set[str], live: Any, path: tuple[str, ...], others: Others) -> Iterator[Drift]:
    """Fields that we own and the document no longer names; each is removed unless another manager owns it too."""
    for step in mine:
        if step == "." or step in named:
            continue
        theirs = live.get(step[2:]) if step.startswith("f:") and isinstance(live, dict) else pick(live, step)
        shared = tuple(dict.fromkeys(name for name, _ in _below(others, step)))
        yield Drift((*path, step), theirs, None, differs=not shared, owners=shared)


def _below(others: Others, step: str) -> Others:
    return [(name, fields[step]) for name, fields in others if step in fields]


def _covers(theirs: Any, ours: Any, name: str) -> bool:
    """Whether the live value equals ours, ignoring what the server filled in."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return not ours and theirs is None
        inner = name if name in _QUANTITIES else ""
        return all(_covers(theirs.get(key), value, inner or key) for key, value in ours.items())
    if isinstance(ours, list):
        if not isinstance(theirs, list):
            return not ours and theirs is None
        return len(theirs) == len(ours) and all(_covers(one, two, name) for one, two in zip(theirs, ours, strict=True))
    if theirs == ours and isinstance(theirs, bool) == isinstance(ours, bool):
        return True
    if theirs is None:  # the server omits empty values; ownership is checked separately
        return not ours
    return name in _QUANTITIES and quantity.same(theirs, ours)


def _name(path: tuple[str, ...]) -> str:
    """Name by which a leaf is compared: `limits` for .resources.limits.cpu, else the field's own name."""
    names = [step[2:] for step in path[-2:] if step.startswith("f:")]
    return next((name for name in names if name in _QUANTITIES), names[-1] if names else "")


def replaced(drift: list[Drift]) -> bool:
    """Whether these changes restart pods."""
    return any(each.differs and each.path[:2] == ("f:spec", "f:template") for each in drift)
