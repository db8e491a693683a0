"""Products of dense layers are those of torch, whichever library computes them, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from rlctl_agents.models import dense, precision
from rlctl_agents.models.dense import FUSED, Linear, linear, product, tanh_linear

ROWS, INPUTS, OUTPUTS = 96, 130, 100
"""More than WORTH multiplications, and no multiples of what a vector register holds."""


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """oneDNN computes, whatever the processor; the shapes of inputs that it was given."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("NOT TESTED with oneDNN: this torch has none; install one for x86")
    monkeypatch.setattr(dense, "onednn_is_faster", lambda: True)
    given: list[tuple[int, ...]] = []
    multiply = dense._onednn

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        given.append(tuple(x.shape))
        return multiply(x, weight, bias)

    monkeypatch.setattr(dense, "_onednn", noted)
    return given


def tensors(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    of_inputs = torch.randn(*shape, INPUTS, requires_grad=True)
    return of_inputs, torch.randn(OUTPUTS, INPUTS, requires_grad=True), torch.randn(OUTPUTS, requires_grad=True)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS // 8, 8)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_layer_is_torchs(by_onednn: list[tuple[int, ...]], shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight, bias = tensors(*shape)
    given = (x, weight, bias) if with_bias else (x, weight)
    ours, theirs = linear(*given), functional.linear(*given)
    assert torch.allclose(ours, theirs, atol=1e-4)
    slope = torch.randn_like(theirs)
    found, expected = (torch.autograd.grad(one, given, slope) for one in (ours, theirs))
    assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(found, expected, strict=True))
    assert by_onednn == [(ROWS, INPUTS), (ROWS, OUTPUTS), (INPUTS, ROWS)]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("rows", [FUSED // OUTPUTS + 1, 3])
def test_a_layer_and_its_tanh_are_torchs_whichever_library_computes_both(
    monkeypatch: pytest.MonkeyPatch, rows: int, there: bool
) -> None:
    monkeypatch.setattr(dense, "has_onednn", lambda: there and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
    x, weight, bias = (one.detach() for one in tensors(rows))
    small = weight / 10  # else every output is 1 or -1
    assert torch.allclose(tanh_linear(x, small, bias), functional.linear(x, small, bias).tanh(), atol=2e-6)


def test_gradients_of_any_layout_are_right(by_onednn: list[tuple[int, ...]]) -> None:
    x, weight, bias = tensors(ROWS)
    wide = torch.randn(ROWS, 2 * INPUTS)
    for inputs in (x, wide[:, ::2], wide[:, INPUTS:], wide.t().contiguous().t()[:, :INPUTS], x[:1].expand(ROWS, -1)):
        ours, theirs = linear(inputs, weight, bias), functional.linear(inputs, weight, bias)
        assert torch.allclose(ours, theirs, atol=1e-4)
        for reduced in (Tensor.sum, lambda one: one.t().contiguous().t().square().sum()):  # a slope without strides
            found, expected = (
                torch.autograd.grad(reduced(one), (weight, bias), retain_graph=True) for one in (ours, theirs)
            )
            assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-2) for a, b in zip(found, expected, strict=True))
    assert by_onednn


def test_a_gradient_has_a_gradient(by_onednn: list[tuple[int, ...]]) -> None:
    x, weight, bias = tensors(ROWS)

    def penalty(layer: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        (by_x,) = torch.autograd.grad(layer(x, weight, bias).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(by_x.square().sum(), (weight, bias))

    assert all(
        torch.allclose(a, b, atol=1e-3) for a, b in zip(penalty(linear), penalty(functional.linear), strict=True)
    )
    assert by_onednn


def test_small_products_and_other_precisions_and_graphs_are_left_to_torch(by_onednn: list[tuple[int, ...]]) -> None:
    x, weight, bias = tensors(ROWS)
    layer = Linear(INPUTS, OUTPUTS)
    linear(x[:2], weight, bias)
    linear(x.double(), weight.double(), bias.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    torch.export.export(layer, (x,))
    torch.func.vmap(layer)(torch.randn(2, ROWS, INPUTS))
    assert torch.allclose(product(x[:2].detach(), weight.detach().t()), x[:2] @ weight.t())
    assert by_onednn == []


@pytest.mark.parametrize(
    ("says", "capability", "faster"),
    [
        ("vendor_id\t: AuthenticAMD\n", "AVX512", True),
        ("vendor_id\t: AuthenticAMD\n", "AVX2", False),
        ("vendor_id\t: GenuineIntel\n", "AVX512", False),
        ("", "AVX512", False),
    ],
)
def test_the_processor_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, capability: str, faster: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(says)
    monkeypatch.setattr(precision, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for cached in (precision.cpuinfo, dense.onednn_is_faster):
        cached.cache_clear()
    try:
        assert dense.onednn_is_faster() is faster
    finally:
        for cached in (precision.cpuinfo, dense.onednn_is_faster):
            cached.cache_clear()
