"""V-trace: targets and advantages of an actor-critic for experience gathered by an older policy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    target: Tensor  # [T, B] value regression target
    advantage: Tensor  # [T, B] weight of the policy gradient


@torch.no_grad()
def vtrace(
    log_rho: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    valid: Tensor,
    *,
    lambda_: float | Tensor = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    pg_rho_max: float = 1.0,
    gae: bool = False,
) -> VTrace:
    """Value targets and advantages for experience gathered by an older policy.

    Row t is the step taken from x_t; T rows of one segment, B segments side by side. The row after an episode's
    end holds its final observation and is not valid: its log_rho, reward and discount are not used.

    Args:
        log_rho: [T, B] log pi(a|x) of the learner minus that of the actor, natural log.
        reward: [T, B] reward of step t, after clipping.
        discount: [T, B] per-step factor; 0 where the episode terminated, not where it was cut short.
        value: [T+1, B] V(x_t) under the learner; the last row bootstraps.
        valid: [T, B] bool; corrections never cross a row that is not.
        lambda_: trace decay in [0, 1].
        rho_max, c_max, pg_rho_max: importance-weight clips; math.inf switches one off.
        gae: the advantage bootstraps from V(x_t+1) + lambda_ (v_t+1 - V(x_t+1)) rather than from the target v_t+1. It
            is that of `gae` where the experience is the learner's own; both are the same for lambda_ 1.

    Returns:
        Both [T, B]; no gradient flows through either; on rows that are not valid the target is the value itself and
        the advantage is 0.

    Raises:
        ValueError: shapes do not fit, T is 0, or c_max > rho_max (outside the paper's assumption).

    Example:
        T=2, B=1, on-policy, reward 1 then 2, discount 0.5, value [0, 0, 8] gives target [4, 6]:
        2 + 0.5*8 = 6, then 1 + 0.5*6 = 4.

    Source: Espeholt et al. 2018, arXiv:1802.01561, section 4; lambda_ as in its remark 2.
    """
    _require_shapes(log_rho, reward, discount, value, valid)
    if c_max > rho_max:
        raise ValueError(f"c_max must not exceed rho_max, got c_max={c_max}, rho_max={rho_max}")
    rho = log_rho.exp()
    # where, not a product: an infinite or undefined number in a row that is not valid must not survive as nan
    nothing = torch.zeros((), dtype=value.dtype, device=value.device)
    delta = torch.where(valid, rho.clamp(max=rho_max) * (reward + discount * value[1:] - value[:-1]), nothing)
    decay = torch.where(valid, discount * lambda_ * rho.clamp(max=c_max), nothing)

    steps = len(reward)
    corrections = [nothing.expand_as(value[-1])] * (steps + 1)
    for t, delta_t, decay_t in zip(
        reversed(range(steps)), reversed(delta.unbind()), reversed(decay.unbind()), strict=True
    ):
        corrections[t] = torch.addcmul(delta_t, decay_t, corrections[t + 1])
    target = value + torch.stack(corrections)

    after = torch.lerp(value[1:], target[1:], torch.as_tensor(lambda_, dtype=value.dtype)) if gae else target[1:]
    advantage = rho.clamp(max=pg_rho_max) * (reward + discount * after - value[:-1])
    return VTrace(target[:-1], torch.where(valid, advantage, nothing))


def _require_shapes(log_rho: Tensor, reward: Tensor, discount: Tensor, value: Tensor, valid: Tensor) -> None:
    if reward.ndim != 2 or len(reward) == 0:
        raise ValueError(f"reward must be [T, B] with T of at least 1, got {list(reward.shape)}")
    steps, streams = reward.shape
    for name, tensor, rows in (
        ("log_rho", log_rho, steps),
        ("discount", discount, steps),
        ("value", value, steps + 1),
        ("valid", valid, steps),
    ):
        if tensor.shape != (rows, streams):
            raise ValueError(f"{name} must be [{rows}, {streams}] beside this reward, got {list(tensor.shape)}")
    if valid.dtype != torch.bool:
        raise ValueError(f"valid must be bool, got {valid.dtype}")
