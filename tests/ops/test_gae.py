"""GAE against its sum written out, and against V-trace where both are the same."""

from __future__ import annotations

import pytest
import torch

from rlctl_agents.ops.gae import gae
from rlctl_agents.ops.vtrace import vtrace
from tests.ops.test_vtrace import experience


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_the_sum_of_discounted_errors_that_ends_with_the_episode(lambda_: float) -> None:
    given = experience(9, 40, seed=1, end=0.3)
    reward, discount, value, valid = (given[name] for name in ("reward", "discount", "value", "valid"))
    assert (~valid).sum() > 30
    found = gae(reward, discount, value, valid, lambda_=lambda_)
    steps, streams = reward.shape
    for b in range(streams):
        for s in range(steps):
            expected, factor = 0.0, 1.0
            for t in range(s, steps):
                if not valid[t, b]:
                    break
                expected += factor * float(reward[t, b] + discount[t, b] * value[t + 1, b] - value[t, b])
                factor *= float(discount[t, b]) * lambda_
            assert abs(float(found.advantage[s, b]) - expected) < 1e-9
    torch.testing.assert_close(found.target, value[:-1] + found.advantage)


def test_the_example_of_its_documentation() -> None:
    column = torch.tensor([[1.0], [2.0]])
    value, valid = torch.tensor([[0.0], [0.0], [8.0]]), torch.ones(2, 1, dtype=torch.bool)
    assert gae(column, torch.full((2, 1), 0.5), value, valid).advantage.flatten().tolist() == [4.0, 6.0]


def test_what_stands_in_rows_that_are_not_valid_is_not_looked_at() -> None:
    reward = torch.tensor([[1.0], [torch.nan]])
    found = gae(reward, torch.tensor([[0.0], [torch.inf]]), torch.ones(3, 1), torch.tensor([[True], [False]]))
    assert found.advantage.flatten().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_v_trace_with_the_advantages_of_gae_is_gae_on_policy_and_the_published_one_is_not(lambda_: float) -> None:
    given = experience(8, 30, seed=2, end=0.2)
    reward, discount, value, valid = (given[name] for name in ("reward", "discount", "value", "valid"))
    still = torch.zeros_like(reward)
    found = gae(reward, discount, value, valid, lambda_=lambda_)
    same = vtrace(still, reward, discount, value, valid, lambda_=lambda_, gae=True)
    torch.testing.assert_close(same.advantage, found.advantage)
    torch.testing.assert_close(same.target, found.target)
    published = vtrace(still, reward, discount, value, valid, lambda_=lambda_)
    assert torch.allclose(published.advantage, found.advantage) is (lambda_ == 1.0)
