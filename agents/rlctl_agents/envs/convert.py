"""Conversion of Gymnasium's spaces, observations and actions to rlctl's and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from rlctl_agents.envs.base import EnvRefused
from rlctl_agents.types import spaces as ours
from rlctl_agents.types.experience import Array, Arrays

WIDER = {"uint16": "int32", "uint32": "int64"}  # torch computes with these
MOST_BOUNDED_ENTRIES = 4096
"""Most entries of an observation with bounds of their own; larger ones keep one pair of bounds for all: nothing
computes with more, and spaces travel in messages."""


@dataclass(frozen=True, slots=True)
class GymLeaf:
    """One leaf of a Gymnasium space: its path in a value, and dtype and shape of the array that holds it here."""

    name: str  # dotted
    path: tuple[str | int, ...]
    space: Any  # a gymnasium.Space
    raw: tuple[int, ...]  # shape of Gymnasium's value
    dtype: np.dtype[Any]  # of our array
    shape: tuple[int, ...]  # of our array
    start: Array | None  # added to our integers to make Gymnasium's; None: 0

    def pick(self, value: Any) -> Any:
        """This leaf's part of a value of the whole space."""
        for key in self.path:
            value = value[key]
        return value

    def holds(self, value: Array) -> bool:
        """True if our array can hold these values: real numbers rounded, integers exactly."""
        if np.can_cast(value.dtype, self.dtype, "same_kind" if self.dtype.kind == "f" else "safe"):
            return True
        with np.errstate(invalid="ignore"):
            return bool((value.astype(self.dtype) == value).all())

    def observed(self, array: Array) -> Array:
        """Convert Gymnasium's [K, *raw] to our [K, *shape]; the same array where nothing changes."""
        if self.start is not None:
            array = array - self.start  # type: ignore[operator]
        array = array.astype(self.dtype, copy=False)
        return array if self.raw == self.shape else array.reshape(-1, *self.shape)

    def acted(self, array: Array) -> Array:
        """Convert our [K, *shape] to Gymnasium's [K, *raw]; boxes are clipped to their bounds."""
        if self.raw != self.shape:
            array = array.reshape(-1, *self.raw)
        if isinstance(self.space, gym.Box):
            array = np.clip(array, self.space.low, self.space.high)
        elif self.start is not None:
            array = array + self.start  # type: ignore[operator]
        return array.astype(self.space.dtype, copy=False)


class Codec:
    """Conversion of values of one Gymnasium space, in both directions.

    Args:
        space: the space of one environment.
        name: `obs` or `action`.

    Raises:
        EnvRefused: the space has a part that is not supported.
    """

    def __init__(self, space: Any, name: str) -> None:
        self.space = to_ours(space, name)
        self.leaves = tuple(_leaves(space, name, ()))
        self._gym = space

    def observations(self, raw: Sequence[Array]) -> Arrays:
        """Convert Gymnasium's leaves [K, *raw], in the order of `leaves`, to ours."""
        return {leaf.name: leaf.observed(array) for leaf, array in zip(self.leaves, raw, strict=True)}

    def batched(self, action: Arrays) -> Any:
        """Convert our leaves [K, ...] to one value of Gymnasium's batched space."""
        return _assemble(self._gym, iter([leaf.acted(action[leaf.name]) for leaf in self.leaves]))

    def singles(self, action: Arrays) -> Sequence[Any]:
        """Convert our leaves [K, ...] to K values in the form of `action_space.sample()`."""
        rows = [leaf.acted(action[leaf.name]) for leaf in self.leaves]
        if self.leaves[0].path == ():
            return list(rows[0])
        return [_assemble(self._gym, iter(row)) for row in zip(*rows, strict=True)]


def to_ours(space: Any, name: str) -> ours.Space:
    """Convert a Gymnasium space to ours. Floats become float32 and booleans uint8; starts stay with the environment.

    Raises:
        EnvRefused: a leaf is not supported; the text names it and an alternative.
    """
    match space:
        case gym.Box():
            return _box(space, name)
        case gym.Discrete():
            return ours.Discrete(int(space.n))
        case gym.MultiDiscrete():
            return ours.MultiDiscrete(tuple(int(n) for n in space.nvec.ravel()))
        case gym.MultiBinary():
            return ours.MultiBinary(int(np.prod(space.shape)))
        case gym.Dict() | gym.Tuple() if not len(space.spaces):
            raise EnvRefused(f"{name}: {space} holds nothing")
        case gym.Dict():
            for key in space.spaces:
                if not isinstance(key, str) or not key or "." in key:
                    raise EnvRefused(f"{name}: the key {key!r} of a Dict space must be a name without dots")
            return ours.Dict({key: to_ours(space[key], f"{name}.{key}") for key in sorted(space.spaces)})
        case gym.Tuple():
            return ours.Tuple(tuple(to_ours(item, f"{name}.{index}") for index, item in enumerate(space.spaces)))
    leave = ""
    if name.startswith("obs.") and name.count(".") == 1:
        others = name.removeprefix("obs.")
        leave = f"leave it out by the wrapper FilterObservation, whose filter_keys are all but {others}; or "
    raise EnvRefused(
        f"{name}: the space {space} is not supported; {leave}"
        "wrap the environment so that it uses Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _box(space: gym.Box, name: str) -> ours.Box:
    dtype = np.dtype(space.dtype)
    if name.startswith("action") and dtype.kind != "f":
        raise EnvRefused(f"{name}: {space} is a Box of {dtype}; use Discrete or MultiDiscrete for such actions")
    if dtype.kind not in "fiub" or dtype == np.uint64 or not space.low.size:
        raise EnvRefused(f"{name}: {space} is not supported; use numbers such as float32 or uint8, at least one")
    low, high = space.low, space.high
    if low.size > MOST_BOUNDED_ENTRIES and not name.startswith("action"):
        low, high = low.min(), high.max()
    return ours.Box(
        shape=tuple(int(n) for n in space.shape),
        dtype={"f": "float32", "b": "uint8"}.get(dtype.kind) or WIDER.get(dtype.name, dtype.name),
        low=_bound(low),
        high=_bound(high),
    )


def _bound(entries: NDArray[Any]) -> ours.Bound:
    """One number where all entries share it."""
    flat = entries.ravel()
    numbers = [float(x) if np.isfinite(x) else None for x in (flat[:1] if (flat == flat[0]).all() else flat)]
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _leaves(space: Any, name: str, path: tuple[str | int, ...]) -> Iterator[GymLeaf]:
    if isinstance(space, gym.Dict):
        for key in sorted(space.spaces):
            yield from _leaves(space[key], f"{name}.{key}", (*path, key))
    elif isinstance(space, gym.Tuple):
        for index, item in enumerate(space.spaces):
            yield from _leaves(item, f"{name}.{index}", (*path, index))
    else:
        leaf = to_ours(space, name)
        assert not isinstance(leaf, (ours.Dict, ours.Tuple))
        dtype, shape = ours.leaf_array(leaf)
        start = np.asarray(getattr(space, "start", 0))
        yield GymLeaf(name, path, space, space.shape, np.dtype(dtype), shape, start if start.any() else None)


def _assemble(space: Any, values: Iterator[Any]) -> Any:
    """Assemble leaves, in order, to the nested value of a space."""
    if isinstance(space, gym.Dict):
        return {key: _assemble(space[key], values) for key in sorted(space.spaces)}
    if isinstance(space, gym.Tuple):
        return tuple(_assemble(item, values) for item in space.spaces)
    return next(values)
