"""Returns over n steps: by hand, and over every way in which a window ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlctl_agents.ops.n_step import n_step


def test_n_step_of_the_docstring() -> None:
    rewards, steps = torch.tensor([[1.0, 2.0, 0.0]]).repeat(2, 1), torch.tensor([2, 2])
    made = n_step(rewards, steps, torch.tensor([False, True]), 0.5)
    assert made.reward.tolist() == [2.0, 2.0]
    assert made.discount.tolist() == [0.25, 0.0]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_n_step_is_the_sum_written_out(n: int) -> None:
    rng = np.random.default_rng(n)
    steps = rng.integers(1, n + 1, 50)
    rewards = np.where(np.arange(n) < steps[:, None], rng.normal(size=(50, n)), 0).astype(np.float32)
    terminated = rng.random(50) < 0.3
    made = n_step(torch.from_numpy(rewards), torch.from_numpy(steps), torch.from_numpy(terminated), 0.9)
    for row in range(50):
        assert made.reward[row] == pytest.approx(sum(0.9**j * rewards[row, j] for j in range(steps[row])), abs=1e-5)
        assert made.discount[row] == pytest.approx(0.0 if terminated[row] else 0.9 ** steps[row])
