"""Regression of values to targets, weighted per row, with its gradient in closed form."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Regression(NamedTuple):
    total: Tensor  # scalar, differentiable in the values
    error: Tensor  # in the shape of the values, or [B] with `at`, without gradient: value - target


def regression(
    value: Tensor, target: Tensor, weight: Tensor, huber: float | None = None, at: Tensor | None = None
) -> Regression:
    """Sum of weight * half the squared error, linear in errors beyond `huber`.

    Args:
        value: [..., B]; with `at` [B, options].
        target, weight: [B].
        huber: threshold of Huber's loss (1964); None: squares.
        at: [B, D] int64; the values are the sums over these D options of each row.

    Example:
        Errors 1 and -4 with weight 1 give 0.5 + 8, and with huber 2 they give 0.5 + 6.
    """
    return Regression(*_Regression.apply(value, target, weight, huber, at))  # type: ignore[no-untyped-call]


class _Regression(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, target: Tensor, weight: Tensor, huber: float | None, at: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        taken = value if at is None else value.gather(1, at).sum(1)
        error = taken - target
        slope = error if huber is None else error.clamp(-huber, huber)
        by_value = slope * weight
        ctx.save_for_backward(by_value, at)
        ctx.shape = value.shape
        ctx.mark_non_differentiable(error)
        ctx.set_materialize_grads(False)
        # half the square within the bound, and slope (error - slope / 2) beyond it
        half = error * 0.5 if huber is None else torch.sub(error, slope, alpha=0.5)
        return torch.dot(by_value.flatten(), half.flatten()), error

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
        by_value, at = ctx.saved_tensors
        by_value = by_value * grad
        if at is not None:
            table = by_value.new_zeros(ctx.shape)
            by_value = table.scatter_(1, at, by_value.unsqueeze(1).expand(at.shape))
        return by_value, None, None, None, None
