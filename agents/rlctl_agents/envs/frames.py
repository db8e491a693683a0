"""Consistency of stacked frames (a Box with `stack`). Each travels once: learners rebuild the stacks from them."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Decisions
from rlctl_agents.types.spaces import Box, Spaces, leaves

SELDOM = 100
"""Inverse of the probability that a slot of an answer not checked whole is compared with its next decision."""


class Frames:
    """Check that a decision shows the frames of the slot's last one, shifted by one, and an episode's first only zeros
    before its frame.

    Args:
        spaces, envs: of the environment.
        whole: number of first answers that are checked whole; later ones are checked where an episode begins and, at
            random times, in one slot.
    """

    def __init__(self, spaces: Spaces, envs: int, *, whole: float = math.inf) -> None:
        self._seats = spaces.seats
        self._left = whole
        self._random = random.Random()  # its own: environments may have seeded the other
        self._watched = -1  # the slot whose `older` is kept, when not those of all slots; -1: none
        self._older = {  # [slots, stack - 1, ...] what the next decision of a slot shows before its newest frame
            name: np.zeros((envs * spaces.seats, leaf.stack - 1, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in leaves(spaces.obs, "obs")
            if isinstance(leaf, Box) and leaf.stack > 1
        }

    def fault(self, decisions: Decisions) -> tuple[str, int] | None:
        """Fault in an answer, given the answers before it; by itself it has passed `check.fault`.

        Returns:
            The broken rule in words and the number of its environment; None when there is none.
        """
        if not self._older:
            return None
        slot, begun = decisions.slot, np.flatnonzero(decisions.first)
        whole, self._left = self._left > 0, self._left - 1
        rows = np.flatnonzero(decisions.first | (slot == self._watched) | whole)
        keep = np.arange(slot.size) if whole else self._chosen(slot)
        if not rows.size and not keep.size:
            return None
        for name, older in self._older.items():
            obs: NDArray[Any] = decisions.obs[name]
            older[slot[begun]] = 0
            odd = (obs[rows, :-1] != older[slot[rows]]).any(axis=tuple(range(1, obs.ndim)))
            if odd.any():
                row = int(rows[odd.argmax()])
                return _in_words(name, int(slot[row]), bool(decisions.first[row])), int(slot[row]) // self._seats
            older[slot[keep]] = obs[keep, 1:]
        return None

    def _chosen(self, slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row with frames to keep for its slot's next decision, if any; the watched slot is free once it has come."""
        if self._watched in slot:
            self._watched = -1
        if self._watched >= 0 or not slot.size or self._random.randrange(SELDOM):
            return slot[:0]
        row = self._random.randrange(slot.size)
        self._watched = int(slot[row])
        return np.array([row])


def _in_words(name: str, slot: int, first: bool) -> str:
    if first:
        got, wanted = "begins an episode with older frames that are not zeros", "pad with zeros"
    else:
        got, wanted = "does not show the frames of its last decision moved on by one", "add one frame a decision"
    return f"observation {name} of slot {slot} {got}; {wanted}, or leave stack out of its Box"
