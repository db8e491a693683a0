"""Statistics of an actor's episodes: moments of returns, lengths and action shares; means of the numbers in `info`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays
from rlctl_agents.types.figures import MAX_INFO, Moments, shares
from rlctl_agents.types.spaces import Space

COUNTED_SLOTS = 64
"""Most slots whose actions are counted: enough episodes to compare, at a cost that does not grow with the slots."""


class EpisodeFigures:
    """Moments of the episodes that have ended, in the order of `figure_names`.

    Nothing is counted before each watched slot has ended an episode: the first ones to end are the short ones, so an
    actor that has just been started would look worse than the others.

    Args:
        action: the action space.
        watched: [slots] bool, True for slots whose episodes count.
    """

    def __init__(self, action: Space, watched: NDArray[np.bool_]) -> None:
        self._watched = watched
        self._young = watched.copy()  # has not ended an episode
        self._waits = bool(watched.any())  # for the first episode of a watched slot
        self._length = np.zeros(watched.size, np.int64)
        self._counted = min(watched.size, COUNTED_SLOTS)
        found = shares(action)
        self._counts = np.zeros((self._counted, len(found)), np.float64)
        self._flat = self._counts.reshape(-1)
        self._row = np.arange(self._counted, dtype=np.int64) * len(found)
        self._entries = _entries(found)
        self._over = np.zeros(0, np.int64)  # slots in which the present decision ends an episode
        self._moments = np.zeros((3, 2 + len(found)))  # count, mean, m2

    def ended(self, over: NDArray[np.int64], returns: NDArray[np.float64]) -> None:
        """Record the returns of episodes that are over.

        Args:
            over: [K] slots, ascending.
            returns: [K] of these episodes.
        """
        self._over = over
        if self._waits:
            self._young[over] = False
            self._waits = bool(self._young.any())
            return
        kept = self._watched[over]
        length = self._length[over]
        self._merge(slice(0, 1), returns[kept, None])
        self._merge(slice(1, 2), length[kept, None].astype(np.float64))
        counted = kept & (over < self._counted) & (length > 0)
        if self._counts.shape[1] and counted.any():
            self._merge(slice(2, None), self._counts[over[counted]] / length[counted, None])

    def acted(self, slot: NDArray[np.int64], action: Arrays) -> None:
        """Count the actions of these slots; an action where an episode has just ended does not count. After a lost life
        it does: the game goes on.

        Args:
            slot: [K] ascending.
            action: leaf name -> [K, ...].
        """
        whole = slot.size == self._length.size
        if whole:
            self._length += 1
        else:
            self._length[slot] += 1
        if self._entries:
            count = self._counted if whole else int(np.searchsorted(slot, self._counted))
            row = self._row if whole else self._row[slot[:count]]
            for leaf, entry, column in self._entries:
                chosen: Any = action[leaf][:count] if entry is None else action[leaf][:count, entry]
                at = column[chosen]
                at += row
                self._flat[at] += 1.0
        if self._over.size:
            self._length[self._over] = 0
            self._counts[self._over[: np.searchsorted(self._over, self._counted)]] = 0.0
            self._over = self._over[:0]

    def moments(self) -> list[Moments]:
        """Current moments of every figure."""
        return [Moments(*column) for column in self._moments.T.tolist()]

    def _merge(self, at: slice, values: NDArray[np.float64]) -> None:
        """Merge values [K, figures]. Source: Chan, Golub and LeVeque 1983, updating formulae for the variance."""
        if not len(values):
            return
        count, mean, m2 = self._moments[:, at]
        mean_here = values.mean(0)
        total = count + len(values)
        shift = mean_here - mean
        m2 += np.square(values - mean_here).sum(0) + np.square(shift) * count * len(values) / total
        mean += shift * len(values) / total
        count += len(values)


class InfoFigures:
    """Means over episodes of the numbers in `info` at their ends, for the first `MAX_INFO` names.

    Args:
        recent: number of newest episodes averaged, of those that report the name; None: all.
    """

    def __init__(self, recent: int | None = None) -> None:
        self._recent = recent
        self._told: dict[str, deque[float]] = {}

    def ended(self, numbers: Mapping[str, float]) -> None:
        """Record the numbers of an episode that is over."""
        for name, value in numbers.items():
            if name in self._told or len(self._told) < MAX_INFO:
                self._told.setdefault(name, deque(maxlen=self._recent)).append(value)

    def means(self) -> dict[str, float]:
        """Mean of every reported number, by name."""
        return {name: math.fsum(told) / len(told) for name, told in self._told.items()}


def _entries(found: Any) -> list[tuple[str, int | None, NDArray[np.int64]]]:
    """Leaf, its entry (None: a leaf of one), and for each of its actions the number of the share that it counts for."""
    columns: dict[tuple[str, int | None], list[int]] = {}
    for number, one in enumerate(found):
        columns.setdefault((one.leaf, one.entry), []).extend([number] * (one.high - one.low + 1))
    return [(leaf, entry, np.array(which, np.int64)) for (leaf, entry), which in columns.items()]
