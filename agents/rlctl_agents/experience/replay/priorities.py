"""Priorities of windows as masses: of errors that a learner tells, and of Q-values that actors record."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.replay.windows import Windows

RECORDED = ("q", "q_max")
"""Fields per row of an actor: the value of the action that it took, and the largest of any."""
_SMALLEST, _LARGEST = 1e-10, 1e10
"""Of a mass: what may be drawn stays drawable, and no sum of masses overflows."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """Settings of an algorithm that a shard reads."""

    n_step: int
    gamma: float = 0.99  # of initial priorities alone: a learner discounts itself
    prioritized: bool = False
    alpha: float = 0.6
    epsilon: float = 1e-6
    reward_scale: float = 1.0  # of initial priorities alone, and so is the next
    reward_clip: float | None = None


def masses(delta: NDArray[np.floating[Any]], settings: ReplaySettings) -> NDArray[np.float64]:
    """(|delta| + epsilon)^alpha, kept within what a sum of them can bear.

    Source: Schaul et al. 2016, arXiv:1511.05952, equation 1, proportional.
    """
    mass: NDArray[np.float64] = (np.abs(delta, dtype=np.float64) + settings.epsilon) ** settings.alpha
    return np.clip(mass, _SMALLEST, _LARGEST)


def initial_error(windows: Windows, slot: NDArray[np.int64], settings: ReplaySettings) -> NDArray[np.float64]:
    """[B] n-step errors of windows by the values that their actor recorded, wherever the segments end.

    sum_j gamma^j r_(t+j) + gamma^k q_max(t+k) - q(t), without the bootstrap where the window ends in a terminal state.

    Source: Horgan et al. 2018, arXiv:1803.00933, section 3: actors' own estimates are fresher than the largest so far.
    """
    found = windows.outcome(slot)
    reward = found.rewards.astype(np.float64) * settings.reward_scale
    if settings.reward_clip is not None:
        reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
    bootstrap = np.where(found.terminated, 0.0, settings.gamma**found.steps * found.ends["q_max"][1])
    error: NDArray[np.float64] = settings.gamma ** np.arange(settings.n_step) @ reward + bootstrap - found.ends["q"][0]
    return error
