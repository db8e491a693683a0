"""What a Box with `stack` promises of its frames. They travel once: a learner sees what the promise makes of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Decisions
from rlctl_agents.types.spaces import Box, Spaces, leaves


class Frames:
    """A decision shows the frames of the slot's last one, moved on by one; an episode's first, zeros before its frame.

    Args:
        spaces, envs: of the environment.
        whole: so many answers are looked at whole, later ones where an episode begins.
    """

    def __init__(self, spaces: Spaces, envs: int, *, whole: float = math.inf) -> None:
        self._seats = spaces.seats
        self._left = whole
        self._older = {  # [slots, stack - 1, ...] what the next decision of a slot shows before its newest frame
            name: np.zeros((envs * spaces.seats, leaf.stack - 1, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in leaves(spaces.obs, "obs")
            if isinstance(leaf, Box) and leaf.stack > 1
        }

    def fault(self, decisions: Decisions) -> tuple[str, int] | None:
        """What is wrong with an answer after those before it; looked at alone it is right (`check.fault`).

        Returns:
            The rule that it breaks, in words, and the environment that it concerns; None when there is none.
        """
        if not self._older:
            return None
        slot, begun = decisions.slot, np.flatnonzero(decisions.first)
        whole, self._left = self._left > 0, self._left - 1
        rows = np.arange(slot.size) if whole else begun
        if not rows.size:
            return None
        for name, older in self._older.items():
            obs: NDArray[Any] = decisions.obs[name]
            older[slot[begun]] = 0
            odd = (obs[rows, :-1] != older[slot[rows]]).reshape(rows.size, -1).any(axis=1)
            if odd.any():
                row = int(rows[odd.argmax()])
                return _in_words(name, int(slot[row]), bool(decisions.first[row])), int(slot[row]) // self._seats
            if whole:
                older[slot] = obs[:, 1:]
        return None


def _in_words(name: str, slot: int, first: bool) -> str:
    if first:
        got, wanted = "begins an episode with older frames that are not zeros", "pad with zeros"
    else:
        got, wanted = "does not show the frames of its last decision moved on by one", "add one frame a decision"
    return f"observation {name} of slot {slot} {got}; {wanted}, or leave stack out of its Box"
