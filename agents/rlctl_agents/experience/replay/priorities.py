"""Priorities of windows as masses: from errors that a learner sends, and from Q-values that actors record."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

RECORDED = ("q", "q_max")
"""Fields that an actor records per row: the value of its action, and the largest value of any action."""
_SMALLEST, _LARGEST = 1e-10, 1e10
"""Bounds of a mass: drawable units stay drawable, and no sum of masses overflows."""


class ReplaySettings(msgspec.Struct, frozen=True):
    """Settings of an algorithm that a shard reads."""

    n_step: int
    sequence: int = 0  # rows of a sequence that are learned from; 0: single rows are drawn
    burn_in: int = 0  # rows of a sequence before these, which only warm up the memory
    gamma: float = 0.99  # of initial priorities alone: a learner discounts itself
    prioritized: bool = False
    alpha: float = 0.6
    epsilon: float = 1e-6
    reward_scale: float = 1.0  # of initial priorities alone, and so is the next
    reward_clip: float | None = None
    rescaled: bool = False  # the values that actors record are rescaled ones
    priority_max: float = 0.9  # weight of the largest error of a sequence; the rest is the weight of their mean

    @property
    def unit_rows(self) -> int:
        """Rows of a unit that are learned from."""
        return self.sequence or 1


def masses(delta: NDArray[np.floating[Any]], settings: ReplaySettings) -> NDArray[np.float64]:
    """Masses of errors: (|delta| + epsilon)^alpha, within bounds in which sums do not overflow.

    Source: Schaul et al. 2016, arXiv:1511.05952, equation 1, proportional.
    """
    mass: NDArray[np.float64] = (np.abs(delta, dtype=np.float64) + settings.epsilon) ** settings.alpha
    return np.clip(mass, _SMALLEST, _LARGEST)


def with_exponent(mass: NDArray[Any], before: float, now: float) -> NDArray[np.float64]:
    """Convert masses to another alpha; those of alpha 0 are all equal, and stay so."""
    found: NDArray[np.float64] = mass.astype(np.float64)
    if before in (0, now):
        return found
    return np.where(found > 0, np.clip(found ** (now / before), _SMALLEST, _LARGEST), 0.0)


EPSILON = 1e-3
"""Lower bound of the slope of the rescaling."""


def rescaled(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """NumPy twin of `ops.rescaling.rescaled`, in float64: a shard does without torch.

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x.

    Source: Pohlen et al. 2018, arXiv:1805.11593, proposition A.2, and so is the inverse.
    """
    found: NDArray[np.float64] = np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + EPSILON * x
    return found


def unscaled(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse of `rescaled`, and the twin of `ops.rescaling.unscaled`."""
    size = np.abs(x) + 1 + EPSILON
    root = 2 * size / (1 + np.sqrt(1 + 4 * EPSILON * size))  # sqrt(|y| + 1) of the result y
    found: NDArray[np.float64] = np.sign(x) * (root - 1) * (root + 1)
    return found
