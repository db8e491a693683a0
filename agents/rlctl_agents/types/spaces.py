"""Observation and action spaces without a simulator: the learner's image has none.

A space is a tree; its leaves have dotted names. `{"position": Box, "camera": Box}` as an observation has the leaves
`obs.position` and `obs.camera`; a lone Box is `obs` itself; a tuple action has `action.0`, `action.1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

Bound = float | tuple[float | None, ...] | None


class Box(msgspec.Struct, frozen=True, tag="box"):
    """An array. A bound is one number where all entries share it, else a tuple of one per entry, in C order; None where
    infinite, inside the tuple too. Large observations keep the smallest and the largest only.

    Raises:
        ValueError: a tuple has not one bound per entry, or a bound is infinite or not a number.

    Example:
        `Box((2,), "float32", low=(-1.0, 0.0), high=(1.0, None))`: from -1 to 1, and from 0 up.
    """

    shape: tuple[int, ...]
    dtype: str  # numpy name: "float32", "uint8"
    low: Bound = None
    high: Bound = None
    stack: int = 0
    """Above 0: the first axis is the last so many frames, oldest first, and zeros before an episode's first."""

    def __post_init__(self) -> None:
        if self.stack and (not self.shape or self.stack != self.shape[0]):
            raise ValueError(f"stack of a Box must be the length of its first axis, got {self.stack} for {self.shape}")
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, tuple) and len(bound) != math.prod(self.shape):
                raise ValueError(
                    f"{name} of a Box must be one number or one per entry, got {len(bound)} for {math.prod(self.shape)}"
                )
            for number in bound if isinstance(bound, tuple) else (bound,):
                if number is not None and not (isinstance(number, (int, float)) and math.isfinite(number)):
                    raise ValueError(
                        f"{name} of a Box must be a finite number, a tuple of them, or None where infinite, "
                        f"got {number!r}"
                    )

    def bounds(self) -> Iterator[tuple[float | None, float | None]]:
        """Low and high of every entry, in C order."""
        entries = math.prod(self.shape)
        lows, highs = (bound if isinstance(bound, tuple) else (bound,) * entries for bound in (self.low, self.high))
        return zip(lows, highs, strict=True)

    def outer(self) -> Box:
        """The same with the smallest and the largest bound over all entries; None where one of them is infinite."""
        lows = [self.low] if not isinstance(self.low, tuple) else list(self.low)
        highs = [self.high] if not isinstance(self.high, tuple) else list(self.high)
        low = None if None in lows else min(bound for bound in lows if bound is not None)
        high = None if None in highs else max(bound for bound in highs if bound is not None)
        return Box(self.shape, self.dtype, low, high)


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
    """Observation and action space of one seat."""

    obs: Space
    action: Space
    seats: int = 1  # agents that act in one environment
    legal: bool = False  # decisions carry masks: a Boolean per option of each of `choices(action)`, side by side


def has_images(space: Space) -> bool:
    """True if a leaf has three axes or more, or two of uint8 or bool: other numbers in two axes are stacked vectors."""
    boxes = [leaf for _, leaf in leaves(space, "") if isinstance(leaf, Box)]
    return any(len(leaf.shape) > (1 if leaf.dtype in ("uint8", "bool") else 2) for leaf in boxes)


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


def choices(space: Space) -> tuple[int, ...]:
    """Number of options of each choice in an action that can be masked: every Discrete, and every entry of a
    MultiDiscrete, in the order of `leaves`.

    Example:
        `choices(Tuple((Discrete(2), Box((1,), "float32"), MultiDiscrete((3, 4)))))` is (2, 3, 4).
    """
    sizes: list[int] = []
    for _, leaf in leaves(space, "action"):
        if isinstance(leaf, Discrete):
            sizes.append(leaf.n)
        elif isinstance(leaf, MultiDiscrete):
            sizes.extend(leaf.n)
    return tuple(sizes)


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
