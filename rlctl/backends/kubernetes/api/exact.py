"""Kubernetes quantities as exact numbers, because the API server writes them back in its own form."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any, Final

_SUFFIXES: Final = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([numkMGTPE]|[KMGTPE]i)?)")


def parse(value: Any) -> Fraction | None:
    """The number that a quantity stands for; None when it is none.

    Example:
        "1000m" is 1, "1Gi" is 1073741824, "1e3" is 1000; "700m" is "0.7", which floats would deny.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    digits, power, suffix = match.groups()
    return Fraction(digits) * (Fraction(10) ** int(power) if power else _SUFFIXES[suffix or ""])


def same(one: Any, other: Any) -> bool:
    """Whether both are quantities, and equal."""
    first, second = parse(one), parse(other)
    return first is not None and first == second
