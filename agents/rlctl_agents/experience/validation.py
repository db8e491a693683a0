"""Validation of experience: rejects values that no correct actor sends, once, when a block is received.

The wire checks shapes and dtypes, this module the values. One such value crashes a learner (an action
outside its space), or goes through gradients into all weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Field, Schema
from rlctl_agents.types.spaces import Box, Discrete, Leaf, MultiBinary, MultiDiscrete, Spaces, choices, leaves

LOG_PROB_TOLERANCE = 1e-4
"""Tolerance of a log-probability above 0: rounding gives a few 1e-7 for each part of an action."""
_CACHED = 1 << 15
"""Numbers of one part of an array: it stays in a core's own cache between two passes."""

_Check = Callable[[NDArray[Any]], str]


class ValueCheck:
    """Check of the values of a block against schema and spaces.

    - Floats are finite, in every field.
    - Actions, last actions and observations of a Discrete, MultiDiscrete or MultiBinary lie in their space, in every
      part of a Dict or Tuple; where decisions carry masks, each choice of a valid row's action is legal, unless none of
      it is.
    - `log_prob` is at most 0 where every part of the action is discrete; a density has no such limit.
    - `version` is not negative and not above the block's.
    - The row after an end is not valid and has no end itself, and the row after that is `first`.

    It takes a pass or two over each array, and allocates one byte per row for masks and flags alone.
    """

    def __init__(self, spaces: Spaces, schema: Schema) -> None:
        parts = dict([*leaves(spaces.obs, "obs"), *leaves(spaces.action, "action")])
        discrete = not any(isinstance(leaf, Box) for _, leaf in leaves(spaces.action, "action"))
        self._checks = [
            (field.name, check)
            for field in schema.fields
            if (check := _check_of(field, parts.get(_part(field.name)), discrete=discrete)) is not None
        ]
        names = {field.name for field in schema.fields}
        self._masked = list(_choices(spaces)) if {"legal", "valid"} <= names else []
        self._flagged = {"first", "valid", "terminated", "truncated"} <= names

    def __call__(self, version: NDArray[np.int64], newest: int, fields: Arrays) -> str:
        """First fault in words; "" when there is none.

        Args:
            version: [T, B].
            newest: version of the block.
            fields: of exactly the schema's dtypes and shapes, contiguous.
        """
        if fault := _whole(newest + 1)(version):
            return f"version {fault}"
        for name, check in self._checks:
            if fault := check(fields[name]):
                return f"{name} {fault}"
        for name, entry, options in self._masked:
            chosen = fields[name] if entry is None else fields[name][..., entry]
            if fault := _illegal(chosen, fields["legal"][:-1, :, options], fields["valid"]):
                return f"{name} {fault}"
        return _out_of_order(fields) if self._flagged else ""


def _part(field: str) -> str:
    """Name of the part of observation or action that a field holds."""
    return field.removeprefix("last_") if field.startswith("last_action") else field


def _check_of(field: Field, leaf: Leaf | None, *, discrete: bool) -> _Check | None:
    if 0 in field.shape:
        return None
    if np.dtype(field.dtype).kind == "f":
        return _log_prob if field.name == "log_prob" and discrete else _finite
    match leaf:
        case Discrete():
            return _whole(leaf.n)
        case MultiDiscrete():
            return _each(leaf.n)
        case MultiBinary():
            return _whole(2)
    return None


def _finite(values: NDArray[Any]) -> str:
    flat = values.reshape(-1)
    parts = (flat[start : start + _CACHED] for start in range(0, flat.size, _CACHED))
    # maximum and minimum are NaN as soon as one number is; the second pass finds its numbers in the cache
    if all(math.isfinite(part.max()) and math.isfinite(part.min()) for part in parts):
        return ""
    odd = ~np.isfinite(values)
    return f"holds {values[odd][0]} in {_share(odd)}"


def _log_prob(values: NDArray[Any]) -> str:
    if values.max() <= LOG_PROB_TOLERANCE and values.min() > -math.inf:
        return ""
    if fault := _finite(values):
        return fault
    odd = values > LOG_PROB_TOLERANCE
    return f"holds {values[odd][0]:.6g} in {_share(odd)}; the log-probability of a discrete action is at most 0"


def _whole(n: int) -> _Check:
    """Check of integers from 0 to n - 1."""

    def check(values: NDArray[Any]) -> str:
        if int(_unsigned(values).max()) < n:
            return ""
        odd: NDArray[np.bool_] = np.logical_or(values < 0, values >= n)
        return f"holds {values[odd][0]} in {_share(odd)}; it must be from 0 to {n - 1}"

    return check


def _each(sizes: tuple[int, ...]) -> _Check:
    """Check of vectors of integers, entry i from 0 to sizes[i] - 1."""
    if len(set(sizes)) == 1:
        return _whole(sizes[0])
    limits = np.array(sizes, np.int64)

    def check(values: NDArray[Any]) -> str:
        if (_unsigned(values).reshape(-1, len(sizes)).max(0) < limits.astype(np.uint64)).all():
            return ""
        odd: NDArray[np.bool_] = np.logical_or(values < 0, values >= limits)
        return f"holds {values[odd][0]} in {_share(odd)}; its entries must be below {list(sizes)[:8]}, and not below 0"

    return check


def _choices(spaces: Spaces) -> Iterator[tuple[str, int | None, slice]]:
    """Each choice that masks cover: leaf of the action, entry of a MultiDiscrete (else None), columns in the masks."""
    at = 0
    for name, leaf in leaves(spaces.action, "action"):
        for entry, size in enumerate(choices(leaf)):
            yield name, entry if isinstance(leaf, MultiDiscrete) else None, slice(at, at + size)
            at += size


def _illegal(action: NDArray[Any], legal: NDArray[Any], valid: NDArray[Any]) -> str:
    """Illegal choice in words, "" without one; of action [T, B] in its range, legal [T, B, n], valid [T, B]."""
    odd = ~np.take_along_axis(legal, action[..., None], -1)[..., 0] & valid & legal.any(-1)
    return f"holds {action[odd][0]} in {_share(odd)} where it is not legal" if odd.any() else ""


def _out_of_order(fields: Arrays) -> str:
    first, valid = (np.asarray(fields[name], np.bool_) for name in ("first", "valid"))
    ended: NDArray[np.bool_] = np.logical_or(fields["terminated"], fields["truncated"])
    if (ended > valid).any():
        return f"terminated or truncated is set in {_share(ended > valid)} that are not valid"
    if (odd := valid[1:] == ended[:-1]).any():
        return f"valid does not follow from the end of the row before in {_share(odd)}"
    if (odd := first[1:] == valid).any():
        return f"first is not set after the row that is not valid, or elsewhere, in {_share(odd)}"
    return ""


def _unsigned(values: NDArray[Any]) -> NDArray[Any]:
    """View as unsigned integers, so that a negative one is above any limit: one pass instead of two."""
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "i" else values


def _share(odd: NDArray[np.bool_]) -> str:
    return f"{np.count_nonzero(odd)} of {odd.size} places"
