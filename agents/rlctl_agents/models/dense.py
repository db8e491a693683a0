"""Products of dense layers, by the library that multiplies faster on this processor.

torch leaves them to MKL, whose kernels for AVX-512 run on Intel's processors alone. On another one that has AVX-512,
oneDNN, by which torch computes convolutions, takes half the time in the same precision (docs/decisions/0017).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlctl_agents.models.precision import cpuinfo

WORTH = 1 << 20
"""Least multiplications of a product that oneDNN computes: it takes ten microseconds to begin with one."""


FUSED = 1 << 13
"""Least outputs whose tanh oneDNN computes with their product: torch's own takes two nanoseconds each."""


@cache
def has_onednn() -> bool:
    """True where torch has oneDNN's layers, and the processor has at least AVX2."""
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    there = available and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return there and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@cache
def onednn_is_faster() -> bool:
    """True on a processor with AVX-512 that is not Intel's."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_onednn() and wide and cpuinfo("vendor_id") not in ("", "GenuineIntel")


class Linear(nn.Linear):
    """`torch.nn.Linear` by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`: inputs [..., a], weights [b, a], biases [b] -> [..., b]."""
    if not _by_onednn(x, weight, weight.shape[0]):
        return functional.linear(x, weight, bias)
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    outputs: Tensor = _Product.apply(rows, weight.t(), bias)  # type: ignore[no-untyped-call]
    return outputs if x.ndim == 2 else outputs.view(*x.shape[:-1], -1)


def tanh_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`tanh(linear(x, weight, bias))` of a matrix, without gradient."""
    if x.shape[0] * weight.shape[0] >= FUSED and _plain(x, weight) and has_onednn():
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "tanh", [], "")
        return found
    return linear(x, weight, bias).tanh_()


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight` of matrices, without gradient."""
    return _onednn(x, weight) if _by_onednn(x, weight, weight.shape[1]) else x @ weight


def _by_onednn(x: Tensor, weight: Tensor, outputs: int) -> bool:
    return _plain(x, weight) and onednn_is_faster() and x.numel() * outputs >= WORTH


def _plain(x: Tensor, weight: Tensor) -> bool:
    """True for numbers in fp32 of a CPU, outside of graphs and of functions of functions."""
    return (
        not torch.compiler.is_compiling()  # first: a graph holds torch's operation alone
        and x.dtype is weight.dtype is torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
    )


class _Product(torch.autograd.Function):
    """x @ weight + bias of matrices [N, a] and [a, b] and a row [b]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        multiply = torch.mm if torch.is_grad_enabled() else _onednn  # the first one for a gradient of this gradient
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            multiply(grad, weight.t()) if of_x else None,
            multiply(x.t(), grad) if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight.t(), bias, "none", [], "")
    return found
