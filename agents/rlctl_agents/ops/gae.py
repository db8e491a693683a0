"""Generalized advantage estimation: advantages of experience that the learner's own policy gathered."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gae(NamedTuple):
    target: Tensor  # [T, B] value regression target, the lambda-return
    advantage: Tensor  # [T, B]


@torch.no_grad()
def gae(reward: Tensor, discount: Tensor, value: Tensor, valid: Tensor, *, lambda_: float | Tensor = 1.0) -> Gae:
    """Advantages by GAE: A_t = delta_t + discount_t lambda A_{t+1} with delta_t = r_t + discount_t V_{t+1} - V_t.

    Row t is the step taken from x_t. The row after an episode's end holds its final observation and is not valid: sums
    do not cross it, and the step before it bootstraps from its value, unless the episode terminated there.

    Args:
        reward: [T, B] of step t.
        discount: [T, B] per-step factor; 0 where the episode terminated, not where it was cut short.
        value: [T+1, B] V(x_t); the last row bootstraps.
        valid: [T, B] bool.
        lambda_: trace decay in [0, 1]: 0 is the one-step error, 1 the whole discounted return.

    Returns:
        Both [T, B]; on rows that are not valid the target is the value itself and the advantage is 0.

    Example:
        T=2, B=1, reward 1 then 2, discount 0.5, value [0, 0, 8], lambda 1 gives advantages [4, 6]:
        2 + 0.5*8 = 6, then 1 + 0.5*6 = 4.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    nothing = torch.zeros((), dtype=value.dtype, device=value.device)
    # where, not a product: an undefined number in a row that is not valid must not survive as nan
    delta = torch.where(valid, reward + discount * value[1:] - value[:-1], nothing)
    decay = torch.where(valid, discount * lambda_, nothing)
    advantages = [nothing.expand_as(value[-1])] * (len(reward) + 1)
    for t, delta_t, decay_t in zip(
        reversed(range(len(reward))), reversed(delta.unbind()), reversed(decay.unbind()), strict=True
    ):
        advantages[t] = torch.addcmul(delta_t, decay_t, advantages[t + 1])
    advantage = torch.stack(advantages[:-1])
    return Gae(value[:-1] + advantage, advantage)
