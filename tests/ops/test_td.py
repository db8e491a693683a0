"""Regression to targets is what autograd makes of its formula."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rlctl_agents.ops.td import regression


def test_regression_of_the_docstring() -> None:
    value, zero, one = torch.tensor([1.0, -4.0]), torch.zeros(2), torch.ones(2)
    assert regression(value, zero, one).total.item() == 8.5
    assert regression(value, zero, one, huber=2.0).total.item() == 6.5


@pytest.mark.parametrize("huber", [None, 0.7])
@pytest.mark.parametrize("critics", [False, True])
def test_regression_and_its_gradient_are_those_of_autograd(huber: float | None, critics: bool) -> None:
    torch.manual_seed(0)
    value = torch.randn((2, 9) if critics else (9,), requires_grad=True)
    target, weight = torch.randn(9) * 2, torch.rand(9)
    made = regression(value, target, weight, huber)
    torch.autograd.backward(made.total * 3.0)
    got, value.grad = value.grad, None
    goal = target.expand_as(value)
    one = (
        0.5 * (value - goal).square()
        if huber is None
        else functional.huber_loss(value, goal, reduction="none", delta=huber)
    )
    (weight * one).sum().mul(3.0).backward()
    assert made.total.item() == pytest.approx((weight * one).sum().item())
    assert got is not None
    assert torch.allclose(got, value.grad)
    assert torch.equal(made.error, (value - goal).detach())


def test_regression_of_chosen_columns_is_that_of_their_sums() -> None:
    torch.manual_seed(0)
    table, at = torch.randn(6, 5, requires_grad=True), torch.tensor([[0, 3], [1, 4], [2, 3], [0, 4], [1, 3], [2, 4]])
    target, weight = torch.randn(6), torch.rand(6)
    made = regression(table, target, weight, None, at)
    made.total.backward()
    got, table.grad = table.grad, None
    total = (weight * 0.5 * (table.gather(1, at).sum(1) - target).square()).sum()
    total.backward()
    assert made.total.item() == pytest.approx(total.item())
    assert got is not None
    assert torch.allclose(got, table.grad)
