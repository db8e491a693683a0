"""Flattening of masks of legal actions, in the form of Gymnasium's `Space.sample(mask)`, to one row of Booleans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, choices


class MaskError(ValueError):
    """Mask that does not fit the action space; the text names the mask and the expected form."""


def flattened(space: Space, mask: Any) -> NDArray[np.bool_]:
    """One Boolean per option of each of `choices(space)`, side by side: [options].

    Args:
        space: action space.
        mask: for a Discrete one array of bool or integers; for a MultiDiscrete a tuple of them, or all of them in one
            array; for a Dict or a Tuple one of the same form, in which None or a missing key masks nothing.

    Raises:
        MaskError: shape, dtype or form do not fit, or it masks a Box or a MultiBinary.

    Example:
        For `MultiDiscrete((2, 3))` both `([1, 0], [1, 1, 0])` and `[1, 0, 1, 1, 0]` leave the first option of the first
        entry and the first two of the second one.
    """
    parts = list(_parts(space, mask, "action"))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def each_choice_has_one(legal: NDArray[np.bool_], sizes: tuple[int, ...]) -> NDArray[np.bool_]:
    """True where every choice has a legal option: [...] for masks [..., sum of sizes]."""
    if len(sizes) == 1:
        return np.asarray(legal.any(axis=-1))
    starts = np.cumsum((0, *sizes[:-1]))
    return np.asarray(np.logical_or.reduceat(legal, starts, axis=-1).all(axis=-1))


def _parts(space: Space, mask: Any, name: str) -> Iterator[NDArray[np.bool_]]:
    match space:
        case Discrete():
            yield _row(mask, space.n, name)
        case MultiDiscrete():
            yield from _entries(space, mask, name)
        case Dict():
            if not isinstance(mask, Mapping) or mask.keys() - space.items.keys():
                raise MaskError(f"{_got(mask)}, expected a dict with keys of {sorted(space.items)}{_of(name)}")
            for key in sorted(space.items):
                yield from _below(space.items[key], mask.get(key), f"{name}.{key}")
        case Tuple():
            if not isinstance(mask, (tuple, list)) or len(mask) != len(space.items):
                raise MaskError(f"{_got(mask)}, expected a tuple of {len(space.items)}{_of(name)}")
            for index, (item, one) in enumerate(zip(space.items, mask, strict=True)):
                yield from _below(item, one, f"{name}.{index}")
        case Box() | MultiBinary():
            raise MaskError(f"{_got(mask)} of {name}, which cannot be masked: give None, or no key")


def _below(space: Space, mask: Any, name: str) -> Iterator[NDArray[np.bool_]]:
    if mask is None:
        yield np.ones(sum(choices(space)), np.bool_)
    else:
        yield from _parts(space, mask, name)


def _entries(space: MultiDiscrete, mask: Any, name: str) -> Iterator[NDArray[np.bool_]]:
    total, rows = sum(space.n), list(_rows(mask))
    if len(rows) == 1:
        yield _row(rows[0], total, name)
        return
    if len(rows) != len(space.n):
        raise MaskError(f"{len(rows)} masks, expected a tuple of {len(space.n)} or one array [{total}]{_of(name)}")
    for entry, (row, size) in enumerate(zip(rows, space.n, strict=True)):
        yield _row(row, size, f"{name}[{entry}]")


def _rows(mask: Any) -> Iterator[Any]:
    """Masks of the entries, nested in any way, or one mask of all."""
    nested = isinstance(mask, (tuple, list)) and not all(np.isscalar(one) for one in mask)
    if nested or (isinstance(mask, np.ndarray) and (mask.ndim > 1 or mask.dtype == object)):
        for one in mask:
            yield from _rows(one)
    else:
        yield mask


def _row(mask: Any, size: int, name: str) -> NDArray[np.bool_]:
    array = np.asarray(mask)
    if array.shape != (size,) or array.dtype.kind not in "biu":
        raise MaskError(f"{_got(mask)}, expected bool or int8 [{size}]{_of(name)}")
    return array.astype(np.bool_)


def _of(name: str) -> str:
    return "" if name == "action" else f" for {name}"


def _got(mask: Any) -> str:
    if mask is None:
        return "none"
    if isinstance(mask, np.ndarray):
        return f"{mask.dtype} {list(mask.shape)}"
    keys = f" with {sorted(map(str, mask))}" if isinstance(mask, Mapping) else ""
    return f"a {type(mask).__name__}{keys or (f' of {len(mask)}' if isinstance(mask, (tuple, list)) else '')}"
