"""Sum tree: draws leaves with probability proportional to their mass."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FAN_OUT = 16
TOP = 4096
"""Most nodes of the topmost level, whose running sum is searched: levels below it cost more than a longer sum."""
_BELOW = 1.0 - 2.0**-52
"""Largest point, as a factor of all mass: one that rounding puts at the very end belongs to the last node with mass."""
_RUNNING = np.tri(FAN_OUT)


class SumTree:
    """Masses of `capacity` leaves in float32, their sums in float64.

    Sums are computed anew from their children whenever one changes, never incremented, so they do not drift. A leaf
    without mass is never drawn, in spite of rounding.

    Raises:
        ValueError: capacity is not positive.
    """

    def __init__(self, capacity: int) -> None:
        self._levels: list[NDArray[Any]] = [
            np.zeros(size, np.float64 if level else np.float32) for level, size in enumerate(_sizes(capacity))
        ]
        self._capacity = capacity
        self._running = np.zeros(self._levels[-1].size + 1)  # [1:] of the topmost level
        self._changed = False

    @staticmethod
    def bytes_for(capacity: int) -> int:
        """Bytes of a tree."""
        leaves, *sums = _sizes(capacity)
        return 4 * leaves + 8 * (sum(sums) + 1 + (sums or [leaves])[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(level.nbytes for level in self._levels) + self._running.nbytes

    @property
    def mass(self) -> NDArray[np.float32]:
        """[capacity] masses of the leaves, to be read only."""
        return self._levels[0][: self._capacity]

    @property
    def total(self) -> float:
        """Sum of all masses, as draws use it."""
        return float(self._sums()[-1])

    def set(self, at: NDArray[np.int64], mass: NDArray[np.floating[Any]]) -> None:
        """Set the masses of leaves.

        Args:
            at: [K] leaves; of duplicates the last mass counts.
            mass: [K] finite and not negative.
        """
        self._levels[0][at] = mass
        if at.size * 4 > self._capacity:
            self.rebuild()
            return
        self._changed = True
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            at = at // FAN_OUT  # duplicates are summed more than once: to remove them takes as long
            level[at] = _sum(below.reshape(-1, FAN_OUT).take(at, 0))

    def rebuild(self) -> None:
        """Compute every sum anew."""
        self._changed = True
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            level[: below.size // FAN_OUT] = _sum(below.reshape(-1, FAN_OUT))

    def draw(self, points: NDArray[np.float64]) -> NDArray[np.int64]:
        """Leaves at points of the cumulative mass.

        Args:
            points: [K] in [0, 1), as shares of all mass.

        Returns:
            [K], each with a mass above 0.

        Raises:
            ValueError: there is no mass.
        """
        sums = self._sums()
        if not sums[-1] > 0:
            raise ValueError("there is nothing to draw")
        left = np.minimum(points * sums[-1], sums[-1] * _BELOW)
        node: NDArray[np.int64] = sums[1:].searchsorted(left, "right")
        left -= sums[node]
        column = np.arange(points.size)
        for level in reversed(self._levels[:-1]):
            children = level.reshape(-1, FAN_OUT).take(node, 0)
            until = _RUNNING @ children.T.astype(
                np.float64
            )  # [j]: mass of the children up to the j-th; twice as fast as cumsum
            child = (until[:-1] <= left).view(np.uint8).sum(0, dtype=np.uint8).astype(np.int64)
            mass = children[column, child]
            if not mass.all():  # rounding has led to one without mass
                child = np.where(mass > 0, child, children.argmax(1))
                mass = children[column, child]
            left -= until[child, column] - mass
            node = node * FAN_OUT + child
        return node

    def _sums(self) -> NDArray[np.float64]:
        if self._changed:
            np.cumsum(self._levels[-1], out=self._running[1:], dtype=np.float64)
            self._changed = False
        return self._running


def _sizes(capacity: int) -> list[int]:
    """Number of nodes of each level, leaves first; all but the topmost are multiples of FAN_OUT."""
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    sizes, needed = [], capacity
    while needed > TOP:
        needed = -(-needed // FAN_OUT)
        sizes.append(needed * FAN_OUT)
    return [*sizes, needed]


def _sum(children: NDArray[Any]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.einsum("ij->i", children.astype(np.float64, copy=False))
    return found
