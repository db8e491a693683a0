"""Value rescaling, in place of clipped rewards, and its inverse."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-3
"""Lower bound of the slope of h."""


def rescaled(x: Tensor) -> Tensor:
    """Rescale values: h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x.

    Example:
        0 stays 0, 3 becomes 1.003.

    Source: Pohlen et al. 2018, arXiv:1805.11593, proposition A.2, and so is the inverse.
    """
    return x / (torch.sqrt(x.abs() + 1) + 1) + EPSILON * x  # without a difference: small numbers keep their digits


def unscaled(x: Tensor) -> Tensor:
    """The inverse of `rescaled`, written so that small numbers keep their digits."""
    size, slope = x.abs(), 1 + 2 * EPSILON
    above = 2 * size / (slope + torch.sqrt(slope**2 + 4 * EPSILON * size))  # sqrt(|y| + 1) - 1 of the result y
    return torch.sign(x) * above * (above + 2)
