"""Quantities of Kubernetes (500m, 1.5, 2Gi, 1e3) as exact numbers: the API server writes them back in its own form."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, Final

_SIGNS: Final = re.compile(r"[-+.0-9eEinumkKMGTP]+")
"""Characters of a quantity: the package's parser also takes blanks, underscores and NaN."""


def parse(value: object) -> Decimal | None:
    """Exact value of a quantity in base units: cores, bytes, objects. None for text that is no quantity.

    Example:
        "1000m" is 1, "1Gi" is 1073741824, "1e3" is 1000; "700m" equals "0.7", which floats would deny.
    """
    # imported here, as the target is imported without the package too; the spec's own units are read without it
    from kubernetes.utils.quantity import parse_quantity

    untyped: Any = parse_quantity
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or not _SIGNS.fullmatch(str(value)):
        return None
    try:
        found: Decimal = untyped(str(value))
    except ValueError:
        return None
    return found


def amount(value: object) -> float:
    """Value in base units; 0 for text that is no quantity: text of other programs must not stop a reader."""
    return float(parse(value) or 0)


def same(one: object, other: object) -> bool:
    """Whether both are quantities with equal values."""
    first, second = parse(one), parse(other)
    return first is not None and first == second


def written(value: float, *, memory: bool = False) -> str:
    """Value in readable form: 48, 0.5, 10,000, and for memory 1.5Gi, 512Mi."""
    if not memory:
        return f"{value:,.0f}" if value == round(value) else f"{round(value, 3):g}"
    for size, unit in ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki")):
        if abs(value) >= size:
            return f"{round(value / size, 1):g}{unit}"
    return f"{value:g}"
