"""Observation and action spaces without a simulator: the learner's image has none.

A space is a tree; its leaves have dotted names. `{"position": Box, "camera": Box}` as an observation has the leaves
`obs.position` and `obs.camera`; a lone Box is `obs` itself; a tuple action has `action.0`, `action.1`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class Box(msgspec.Struct, frozen=True, tag="box"):
    """An array. Bounds are the smallest and the largest over all entries; None where infinite."""

    shape: tuple[int, ...]
    dtype: str  # numpy name: "float32", "uint8"
    low: float | None = None
    high: float | None = None


class Discrete(msgspec.Struct, frozen=True, tag="discrete"):
    """An integer from 0 to n - 1."""

    n: int


class MultiDiscrete(msgspec.Struct, frozen=True, tag="multi_discrete"):
    """A vector of integers, entry i from 0 to n[i] - 1."""

    n: tuple[int, ...]


class MultiBinary(msgspec.Struct, frozen=True, tag="multi_binary"):
    """A vector of n bits."""

    n: int


class Dict(msgspec.Struct, frozen=True, tag="dict"):
    """Named spaces, in sorted order of their names."""

    items: dict[str, Space]


class Tuple(msgspec.Struct, frozen=True, tag="tuple"):
    """Numbered spaces."""

    items: tuple[Space, ...]


Space = Box | Discrete | MultiDiscrete | MultiBinary | Dict | Tuple
Leaf = Box | Discrete | MultiDiscrete | MultiBinary


class Spaces(msgspec.Struct, frozen=True):
    """What one seat sees and does."""

    obs: Space
    action: Space
    seats: int = 1  # agents that act in one environment
    legal: bool = False  # decisions carry a mask of legal actions; the action is Discrete


def leaves(space: Space, name: str) -> Iterator[tuple[str, Leaf]]:
    """Dotted name and leaf of every leaf below `space`, in a fixed order.

    Example:
        `dict(leaves(Tuple((Discrete(2), Discrete(3))), "action"))` has the keys `action.0` and `action.1`.
    """
    if isinstance(space, Dict):
        for key in sorted(space.items):
            yield from leaves(space.items[key], f"{name}.{key}")
    elif isinstance(space, Tuple):
        for index, item in enumerate(space.items):
            yield from leaves(item, f"{name}.{index}")
    else:
        yield name, space


def leaf_array(leaf: Leaf) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of one entry of a leaf as an array on the wire."""
    match leaf:
        case Box():
            return leaf.dtype, leaf.shape
        case Discrete():
            return "int64", ()
        case MultiDiscrete():
            return "int64", (len(leaf.n),)
        case MultiBinary():
            return "int8", (leaf.n,)
