"""Figures of an actor's episodes, by which it can be compared with all others: returns, lengths, shares of actions; and
numbers that environments report at the end of an episode."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rlctl_agents.types.spaces import Discrete, MultiBinary, MultiDiscrete, Space, leaves

MAX_SHARES = 18
"""Most shares of actions that an actor counts: as many as a game of Atari has buttons."""
RETURN, LENGTH = "return", "length"
MAX_INFO = 16
"""Most numbers that are read from an episode's end: the first ones."""
LARGEST_INFO = 1e300
"""Largest absolute value of such a number; larger ones are left out, so sums over episodes and actors stay finite."""
_INFO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,63}")


class Moments(msgspec.Struct, array_like=True):
    """Running moments of numbers that are not kept: count, mean and sum of squared deviations from it."""

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0


class Share(NamedTuple):
    """Share of an episode's steps in which one discrete action is chosen."""

    name: str  # "action=2", "action.1[0]=2"; "action=8-9" for neighbours that are counted as one
    leaf: str
    entry: int | None  # of a vector of actions
    low: int
    high: int  # the last one that counts


def shares(action: Space) -> tuple[Share, ...]:
    """Shares that are counted for an action space: those of each entry, up to `MAX_SHARES`. Real numbers have none.

    Raises:
        ValueError: an entry has no action.

    Example:
        `[one.name for one in shares(Discrete(2))]` is `["action=0", "action=1"]`.
    """
    found: list[Share] = []
    for leaf, space in leaves(action, "action"):
        match space:
            case Discrete():
                entries: Iterable[tuple[int | None, int]] = [(None, space.n)]
            case MultiDiscrete():
                entries = enumerate(space.n)
            case MultiBinary():
                entries = ((entry, 2) for entry in range(space.n))  # as many as a process says
            case _:
                entries = ()
        for entry, n in entries:
            if n < 1:
                raise ValueError(f"{leaf} must have at least one action, got {n}")
            parts = min(n, MAX_SHARES)
            if len(found) + parts > MAX_SHARES:
                return tuple(found)
            bounds = [part * n // parts for part in range(parts + 1)]
            for low, end in pairwise(bounds):
                which = f"{low}" if end - low == 1 else f"{low}-{end - 1}"
                place = "" if entry is None else f"[{entry}]"
                found.append(Share(f"{leaf}{place}={which}", leaf, entry, low, end - 1))
    return tuple(found)


def figure_names(action: Space) -> tuple[str, ...]:
    """Names of the figures that an actor reports, in their order."""
    return (RETURN, LENGTH, *(one.name for one in shares(action)))


def info_numbers(info: Any) -> dict[str, float]:
    """Numbers that an environment reports in `info`: finite scalars, Booleans included, with plain names.

    Args:
        info: any object: it comes from the user's environment.

    Returns:
        The first `MAX_INFO` of them, by name.

    Example:
        `info_numbers({"is_success": True, "score": np.float32(3), "mask": np.ones(2)})` is
        `{"is_success": 1.0, "score": 3.0}`.
    """
    found: dict[str, float] = {}
    for name, value in info.items() if isinstance(info, Mapping) else ():
        if not isinstance(name, str) or not isinstance(value, (int, float, np.generic, np.ndarray)):
            continue
        array = np.asarray(value)
        # an integer beyond 64 bits is an object; of NaN no comparison is true
        plain = array.ndim == 0 and array.dtype.kind in "biuf" and abs(float(array)) <= LARGEST_INFO
        if plain and _INFO_NAME.fullmatch(name):
            found[name] = float(array)
        if len(found) == MAX_INFO:
            break
    return found
