"""Returns over n steps of rows that were drawn from a replay, and what their targets bootstrap by."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    reward: Tensor  # [B] sum of gamma^j r_t+j over the k steps of a row
    discount: Tensor  # [B] gamma^k, of the value of what comes after them; 0 where the episode terminated


@torch.no_grad()
def n_step(rewards: Tensor, steps: Tensor, terminated: Tensor, gamma: float) -> NStep:
    """Discounted sums of the rewards of rows, and the factors of what follows: y = reward + discount V(x_t+k).

    Args:
        rewards: [B, n] of the steps from each row on, as they are learned from; 0 after the k-th.
        steps: [B] int64, k: n, or fewer where the episode ended or was cut short.
        terminated: [B] bool, the k-th step came to a terminal state.
        gamma: discount factor of one step.

    Example:
        Rewards [1, 2, 0], k = 2, gamma 0.5 give reward 2 and discount 0.25, or 0 where it terminated.

    Source: Sutton and Barto 2018, section 7.1; truncated as in Horgan et al. 2018, arXiv:1803.00933, appendix F.
    """
    alive = torch.logical_not(terminated)
    if rewards.shape[1] == 1:
        return NStep(rewards[:, 0], alive * gamma)
    factors = torch.full((rewards.shape[1],), gamma, dtype=rewards.dtype, device=rewards.device)
    powers = factors.pow(torch.arange(rewards.shape[1], device=rewards.device))
    return NStep(rewards @ powers, torch.pow(gamma, steps.to(rewards.dtype)) * alive)
