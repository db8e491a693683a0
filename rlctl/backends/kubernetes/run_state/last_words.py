"""Last status of a manager, as the record of its run stores it: plain JSON of a bounded size."""

from __future__ import annotations

import json
import math
from typing import Any, Final

MOST_BYTES: Final = 256 * 1024
"""Bytes of a stored status, at most, of the 1 MiB of a ConfigMap; the spec and the inventory need room too."""


def kept(said: object) -> tuple[dict[str, Any], list[str]] | None:
    """The part of a status to store, and the names of entries left out: the largest, until the rest fits.

    A number that is not finite becomes null, a character that UTF-8 cannot encode becomes `?`. None: it is no status.
    """
    try:
        status = _plain(said)
        if not isinstance(status, dict):
            return None
        sizes = {name: _bytes({name: value}) for name, value in status.items()}
    except RecursionError:
        return None
    left_out = []
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        if sum(sizes.values()) <= MOST_BYTES:
            break
        del sizes[name], status[name]
        left_out.append(name)
    return status, left_out


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(str(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _bytes(value: object) -> int:
    """Bytes of a value as the record writes it."""
    return len(json.dumps(value, indent=1, ensure_ascii=False).encode())
