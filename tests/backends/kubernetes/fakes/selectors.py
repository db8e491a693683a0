"""Selectors, merge patches and refusals, as an API server has them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from rlctl.backends.kubernetes.api.interface import KINDS, ApiError, Key, Object


def forbidden(key: Key, verb: str = "patch", user: str = "system:serviceaccount:rl:alice") -> ApiError:
    """As the server says that a right is missing."""
    plural = KINDS[key.kind].plural
    message = (
        f'{plural} "{key.name}" is forbidden: User "{user}" cannot {verb} resource "{plural}" in API group "" in the '
        f'namespace "rl"'
    )
    return ApiError(message, status=403, key=key)


@cache
def _parts(labels: str) -> list[tuple[str, tuple[str, list[str]] | None]]:
    """Parts of a selector; of `a in (b,c)` also the name and the values."""
    found: list[tuple[str, tuple[str, list[str]] | None]] = []
    for part in filter(None, re.split(r",(?![^(]*\))", labels)):
        among = re.fullmatch(r"(\S+) in \(([^)]*)\)", part.strip())
        values = (among[1], [value.strip() for value in among[2].split(",")]) if among else None
        found.append((part.strip(), values))
    return found


def matches(thing: Object, labels: str, fields: str) -> bool:
    """Whether selectors find the object: `a=b`, `a!=b`, `a`, `!a`, `a in (b,c)`; fields by their place."""
    there = thing["metadata"].get("labels") or {}
    for part, among in _parts(labels):
        if among:
            if there.get(among[0]) not in among[1]:
                return False
        elif "!=" in part:
            name, _, value = part.partition("!=")
            if there.get(name) == value:
                return False
        elif "=" in part:
            name, _, value = part.replace("==", "=").partition("=")
            if there.get(name) != value:
                return False
        elif (part.lstrip("!") in there) == part.startswith("!"):
            return False
    for part in filter(None, fields.split(",")):
        negated = "!=" in part
        name, _, value = part.partition("!=" if negated else "=")
        found: Any = thing
        for step in name.split("."):
            found = (found or {}).get(step)
        if (str(found or "") == value) == negated:
            return False
    return True
