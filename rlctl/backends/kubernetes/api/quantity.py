"""Quantities of Kubernetes: 500m, 1.5, 2Gi, 1e3."""

from __future__ import annotations

import math
import re
from typing import Final

_SUFFIXES: Final = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip
_FORM: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkKMGTPE]i?))?")


def parse(value: object) -> float | None:
    """In base units: cores, bytes, objects. None for what is no quantity."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    found = _FORM.fullmatch(str(value).strip())
    if found is None or (found[3] or "") not in _SUFFIXES:
        return None
    return float(found[1]) * 10.0 ** int(found[2] or 0) * _SUFFIXES[found[3] or ""]


def amount(value: object) -> float:
    """The same, 0 for what is no quantity: what others wrote must not stop a reader."""
    return parse(value) or 0.0


def same(one: object, other: object) -> bool:
    """Whether two ways to write a quantity mean the same: "1000m" and 1, "1Gi" and 1073741824."""
    left, right = parse(one), parse(other)
    return left is not None and right is not None and math.isclose(left, right, rel_tol=1e-12)


def written(value: float, *, memory: bool = False) -> str:
    """As a person reads it: 48, 0.5, 10,000, and for memory 1.5Gi, 512Mi."""
    if not memory:
        return f"{value:,.0f}" if value == round(value) else f"{round(value, 3):g}"
    for size, unit in ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki")):
        if abs(value) >= size:
            return f"{round(value / size, 1):g}{unit}"
    return f"{value:g}"
