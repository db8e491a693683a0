"""n-step returns of rows that were drawn from a replay, and the factors with which their targets bootstrap."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    reward: Tensor  # [B] sum of gamma^j r_t+j over the k steps of a row
    discount: Tensor  # [B] gamma^k, factor of the value after them; 0 where the episode terminated


@torch.no_grad()
def n_step(rewards: Tensor, steps: Tensor, terminated: Tensor, gamma: float) -> NStep:
    """Discounted sums of the rewards of rows, and the factors of the value after them: y = reward + discount V(x_t+k).

    Args:
        rewards: [B, n] of the steps from each row on, after scaling and clipping; 0 after the k-th.
        steps: [B] int64, k: n, or fewer where the episode ended or was cut short.
        terminated: [B] bool, the k-th step led to a terminal state.
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


class SequenceReturns(NamedTuple):
    target: Tensor  # [L, B] discounted sum of the rewards from a row on, with the bootstrapped value
    whole: Tensor  # [L, B] bool; False where an episode begins without an end before it: there the rest is unknown


@torch.no_grad()
def sequence_returns(
    reward: Tensor, terminated: Tensor, truncated: Tensor, first: Tensor, value: Tensor, gamma: float, steps: int
) -> SequenceReturns:
    """n-step returns of consecutive rows, over fewer steps where an episode or the rows end.

    y_t = sum over j < k of gamma^j r_t+j, + gamma^k V_t+k unless step k led to a terminal state.

    Args:
        reward, terminated, truncated: [L, B].
        first, value: [L + 1, B], the last of them of the row after.
        gamma: discount factor of one step.
        steps: n.

    Source: Kapturowski et al. 2019, section 2.3; the last n - 1 rows have fewer steps, as in SEED RL.
    """
    length, rows_end = len(reward), terminated | truncated
    alive = torch.logical_not(terminated)
    broken = alive & first[1:]
    target = torch.zeros_like(reward)
    going, whole = torch.ones_like(terminated), torch.ones_like(terminated)
    for step in range(min(steps, length)):
        count = length - step
        rest = going[:count]
        target[:count] += gamma**step * torch.where(rest, reward[step:], 0.0)
        stops = rows_end[step:].clone()
        stops[count - 1 if step + 1 < steps else 0 :] = True
        target[:count] += gamma ** (step + 1) * torch.where(rest & stops & alive[step:], value[step + 1 :], 0.0)
        whole[:count] &= ~(rest & broken[step:])
        rest &= ~(stops | broken[step:])
    return SequenceReturns(target, whole)
