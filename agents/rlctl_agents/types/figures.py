"""Figures of an actor's episodes, by which it can be compared with all others: returns, lengths, shares of actions."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import msgspec

from rlctl_agents.types.spaces import Discrete, MultiBinary, MultiDiscrete, Space, leaves

MAX_SHARES = 18
"""Shares of actions that an actor counts, at most: as many as a game of Atari has buttons."""
RETURN, LENGTH = "return", "length"


class Moments(msgspec.Struct, array_like=True):
    """Count, mean and sum of squared deviations from it, of numbers of which none is kept."""

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0


class Share(NamedTuple):
    """How often one discrete action is chosen, as a share of an episode's steps."""

    name: str  # "action=2", "action.1[0]=2"; "action=8-9" for neighbours that are counted as one
    leaf: str
    entry: int | None  # of a vector of actions
    low: int
    high: int  # the last one that counts


def shares(action: Space) -> tuple[Share, ...]:
    """What is counted of an action space: each entry that has room among `MAX_SHARES`. Real numbers have no shares.

    Example:
        `[one.name for one in shares(Discrete(2))]` is `["action=0", "action=1"]`.
    """
    found: list[Share] = []
    for leaf, space in leaves(action, "action"):
        match space:
            case Discrete():
                entries: list[tuple[int | None, int]] = [(None, space.n)]
            case MultiDiscrete():
                entries = list(enumerate(space.n))
            case MultiBinary():
                entries = [(entry, 2) for entry in range(space.n)]
            case _:
                entries = []
        for entry, n in entries:
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
