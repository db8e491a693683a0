"""Quantities as a user writes them: cores, memory, time. Read where the package kubernetes is not installed, too."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from rlctl.spec.words import seconds_of, show

_MEMORY_BYTES = {"Ti": 2**40, "Gi": 2**30, "G": 10**9, "Mi": 2**20, "M": 10**6, "Ki": 2**10, "K": 10**3}  # by size


def cores(value: object) -> float:
    """2, 0.5 or "500m" in cores.

    Raises:
        ValueError: not a positive quantity, or finer than a thousandth of a core.
    """
    amount: float
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        amount = value
    elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}m", value):
        amount = int(value[:-1]) / 1000
    else:
        raise ValueError(f"must be cores, as in 2, 0.5 or 500m, got {show(value)}")
    if not 0.001 <= amount <= 1024:
        raise ValueError(f"must be between 1m and 1024 cores, got {show(value)}")
    return float(amount)


def mebibytes(value: object) -> float:
    """ "512Mi" or "2Gi" in MiB.

    Raises:
        ValueError: no unit, an unknown unit, or not positive.
    """
    return _bytes(value) / 2**20


def _bytes(value: object) -> float:
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]i|[KMG])", value) if isinstance(value, str) else None
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"must be memory with its unit, as in 512Mi or 2Gi, got {show(value)}")
    return float(match[1]) * _MEMORY_BYTES[match[2]]


def _memory_text(value: object) -> str:
    """The same amount in one spelling (`2Gi` for `2048Mi`), so that another spelling restarts nothing."""
    amount = _bytes(value)
    unit = next((unit for unit, size in _MEMORY_BYTES.items() if amount % size == 0), None)
    return f"{int(amount // _MEMORY_BYTES[unit])}{unit}" if unit else str(value).replace(" ", "")


def seconds(value: object) -> float:
    """30, "30s", "5m", "1h30m" or "2d" in seconds; a number without a unit is seconds.

    Raises:
        ValueError: not a duration, or not positive.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        total: float | None = value
    else:
        total = seconds_of(value) if isinstance(value, str) else None
    if total is None:
        raise ValueError(f"must be a duration, as in 30s, 5m or 1h30m, got {show(value)}")
    if not 0 < total < 1e10:
        raise ValueError(f"must be longer than zero and shorter than 300 years, got {show(value)}")
    return float(total)


Cores = Annotated[
    float, BeforeValidator(cores), WithJsonSchema({"type": ["number", "string"], "examples": [2, "500m"]})
]
Memory = Annotated[str, BeforeValidator(_memory_text), WithJsonSchema({"type": "string", "examples": ["512Mi", "2Gi"]})]
Seconds = Annotated[
    float, BeforeValidator(seconds), WithJsonSchema({"type": ["number", "string"], "examples": ["30s", "5m"]})
]
