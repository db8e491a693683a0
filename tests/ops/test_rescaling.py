"""Rescaling of values: the formula of its source, an exact inverse, and the same numbers in a shard."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rlctl_agents.experience.replay import priorities
from rlctl_agents.ops.rescaling import EPSILON, rescaled, unscaled

SIZES = torch.logspace(-6, 6, 2_001, dtype=torch.float64)
NUMBERS = torch.cat([-SIZES.flip(0), torch.zeros(1, dtype=torch.float64), SIZES])
Function = Callable[[Tensor], Tensor]
ULP = 2.0**-24
"""Relative error of one operation in fp32."""


def test_rescaled_of_the_docstring() -> None:
    assert rescaled(torch.tensor([0.0, 3.0, -3.0])).tolist() == pytest.approx([0.0, 1.003, -1.003])


def test_both_are_the_formulas_of_their_source() -> None:
    x = NUMBERS
    h = x.sign() * (torch.sqrt(x.abs() + 1) - 1) + EPSILON * x
    inverse = x.sign() * (((torch.sqrt(1 + 4 * EPSILON * (x.abs() + 1 + EPSILON)) - 1) / (2 * EPSILON)) ** 2 - 1)
    # the formulas lose digits where they take differences: of numbers near 1, in the inverse divided by 2 EPSILON
    assert torch.allclose(rescaled(x), h, rtol=1e-12, atol=1e-15)
    assert torch.allclose(unscaled(x), inverse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("there", "back", "roundings"),
    [(rescaled, unscaled, (5, 11, 2 * 5 + 11)), (unscaled, rescaled, (11, 5, 11 + 5))],
    ids=["rescaled", "unscaled"],
)
def test_the_inverse_gives_every_number_back_to_the_rounding_of_fp32(
    there: Function, back: Function, roundings: tuple[int, int, int]
) -> None:
    """No differences are taken, so relative errors add up: of the rescaling to 5 roundings at most, of its inverse to
    11. What goes through the inverse comes out with up to twice its relative error, since x h'(x) / h(x) is above 1/2,
    what goes through h with no more than it had."""
    x = NUMBERS.to(torch.float32)
    between = there(x)
    of_there, of_back, both = roundings
    assert torch.allclose(between.double(), there(x.double()), rtol=of_there * ULP, atol=0.0)
    assert torch.allclose(back(between).double(), back(between.double()), rtol=of_back * ULP, atol=0.0)
    assert torch.allclose(back(between), x, rtol=both * ULP, atol=0.0)


def test_a_shard_has_the_same_numbers() -> None:
    x = NUMBERS.numpy()
    for ours, its in ((rescaled, priorities.rescaled), (unscaled, priorities.unscaled)):
        wanted = ours(torch.from_numpy(x)).numpy()
        # it takes differences in fp64: 2e-16 of a number near 1
        np.testing.assert_allclose(its(x), wanted, rtol=1e-12, atol=1e-14)
    assert priorities.EPSILON == EPSILON


def test_the_slope_is_that_of_the_formula_at_zero_too() -> None:
    x = torch.tensor([-7.0, -1e-6, 0.0, 1e-6, 7.0], dtype=torch.float64, requires_grad=True)
    rescaled(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 0.5 / torch.sqrt(x.detach().abs() + 1) + EPSILON)
