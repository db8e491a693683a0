"""The clipped surrogate: its gradient in closed form, and minibatches as views of a batch in another order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlctl_agents.algorithms.base import HEAVY_BYTES, Batch, Tensors, shuffled
from rlctl_agents.algorithms.clipped import ClippedCoefficients, Surrogate

STEPS, COLUMNS = 7, 40


def coefficients() -> ClippedCoefficients:
    return ClippedCoefficients(gamma=0.99, lambda_=0.95, value_coef=0.7, entropy_coef=0.03, clip=0.2)


def by_autograd(
    log_prob: Tensor, entropy: Tensor, value: Tensor, fields: Tensors, valid: Tensor, value_clip: float | None
) -> Tensor:
    """The sum of docs/algorithms/ppo.md, operation by operation."""
    ratio = torch.where(valid, log_prob - fields["old_log_prob"], 0.0).exp()
    advantage, target, old = fields["advantage"], fields["scaled_target"], fields["scaled_old_value"]
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    error = (target - value).square()
    if value_clip is not None:
        error = torch.maximum(error, (target - old - (value - old).clamp(-value_clip, value_clip)).square())
    terms = (-gain, 0.7 * 0.5 * error, -0.03 * entropy)
    return torch.stack([torch.where(valid, term, 0.0).sum() for term in terms]).sum()


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("all_valid", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_closed_form_gradient_is_that_of_autograd(
    value_clip: float | None, all_valid: bool, dtype: torch.dtype
) -> None:
    rng = torch.Generator().manual_seed(1)

    def numbers(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(STEPS, COLUMNS, generator=rng, dtype=dtype)

    fields = {name: numbers() for name in ("advantage", "scaled_target", "scaled_old_value", "old_log_prob")}
    log_prob, value = fields["old_log_prob"] + numbers(0.3), fields["scaled_old_value"] + numbers(0.5)
    log_prob[0], value[0] = fields["old_log_prob"][0], fields["scaled_old_value"][0]  # as in the first minibatch
    entropy = numbers()
    valid = torch.rand(STEPS, COLUMNS, generator=rng) < 0.8
    if all_valid:
        valid[:] = True
    else:
        for one in (fields["advantage"], fields["scaled_target"], log_prob, entropy):
            one[~valid] = torch.nan
    inputs = [one.requires_grad_() for one in (log_prob, entropy, value)]
    expected = by_autograd(log_prob, entropy, value, fields, valid, value_clip)
    found, summed = Surrogate.apply(  # type: ignore[no-untyped-call]
        log_prob, entropy, value, fields, None if all_valid else valid, coefficients(), value_clip
    )
    tolerance = {"rtol": 2e-6, "atol": 1e-6} if dtype is torch.float32 else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(found, expected, **tolerance)
    wanted = torch.autograd.grad(expected, inputs)
    for one, other in zip(torch.autograd.grad(found, inputs), wanted, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(), **tolerance)
    assert not summed.requires_grad
    assert 0 < int(summed[4]) < int(valid.sum()), "some ratios are clipped"


def test_minibatches_are_the_rows_of_the_batch_whether_light_or_heavy() -> None:
    image = torch.arange(2 * 10 * HEAVY_BYTES, dtype=torch.int32).view(2, 10, HEAVY_BYTES)
    fields = {"obs": image, "reward": torch.rand(2, 10), "core": torch.rand(10, 3)}
    version = torch.arange(20).view(2, 10)
    batch = Batch(fields, version, frozenset({"core"}))
    parts = list(shuffled(batch, 2, 3, torch.Generator().manual_seed(5)))
    assert [part.version.shape[1] for part in parts] == [4, 3, 3] * 2
    rng = torch.Generator().manual_seed(5)
    for epoch in (parts[:3], parts[3:]):
        order = torch.randperm(10, generator=rng)
        for part, at in zip(epoch, order.tensor_split(3), strict=True):
            expected = batch.select(at)
            assert part.columns is not None
            assert torch.equal(part.columns, at)
            assert torch.equal(part.version, expected.version)
            assert part.fields.keys() == fields.keys()
            assert all(torch.equal(part.fields[name], expected.fields[name]) for name in fields)
