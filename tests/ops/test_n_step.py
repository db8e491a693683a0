"""Returns over n steps: by hand, and over every way in which a window or a sequence ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.replay.ring import FLAGS
from rlctl_agents.experience.replay.sequences import n_step_returns
from rlctl_agents.ops.n_step import SequenceReturns, n_step, sequence_returns


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


# -- sequences: f begins an episode, T terminates it, c cuts it short, x is the row after an end ---------------------

Arrays = dict[str, NDArray[np.bool_]]


def flags(*columns: str) -> Arrays:
    """[L + 1, B] each."""
    rows = np.array([list(column) for column in columns]).T
    return {"first": rows == "f", "terminated": rows == "T", "truncated": rows == "c", "valid": rows != "x"}


def returns(
    told: Arrays, reward: NDArray[np.float64], value: NDArray[np.float64], gamma: float, n: int
) -> SequenceReturns:
    """As a learner has them: reward [L, B], value [L + 1, B]."""
    ended = [torch.from_numpy(told[name][:-1]) for name in ("terminated", "truncated")]
    rewards, values = (torch.from_numpy(one.astype(np.float32)) for one in (reward, value))
    return sequence_returns(rewards, *ended, torch.from_numpy(told["first"]), values, gamma, n)


@pytest.mark.parametrize(
    ("rows", "n", "target"),
    [
        # reward of row t is t + 1, the value of row t is 100 (t + 1), gamma 1/2
        ("f----", 1, [1 + 100, 2 + 150, 3 + 200, 4 + 250]),
        ("f----", 2, [1 + 1 + 75, 2 + 1.5 + 100, 3 + 2 + 125, 4 + 250]),  # the last one has a step alone
        ("f----", 9, [1 + 1 + 0.75 + 0.5 + 31.25, 2 + 1.5 + 1 + 62.5, 3 + 2 + 125, 4 + 250]),
        ("f-Txf", 2, [1 + 1 + 75, 2 + 1.5, 3, None]),
        ("f-cxf", 2, [1 + 1 + 75, 2 + 1.5 + 100, 3 + 200, None]),  # row 3 holds the final observation
        ("f-cxf", 1, [1 + 100, 2 + 150, 3 + 200, None]),
        ("--f--", 2, [None, None, 3 + 2 + 125, 4 + 250]),  # an episode begins without an end before it
        ("--f--", 1, [1 + 100, None, 3 + 200, 4 + 250]),
        ("-cf--", 2, [None, None, 3 + 2 + 125, 4 + 250]),  # cut short, and the final observation is not there
        ("-Tf--", 2, [1 + 1, 2, 3 + 2 + 125, 4 + 250]),  # a terminal state can do without
        ("-x-f-", 1, [1 + 100, 2 + 150, None, 4 + 250]),
        ("---Tx", 2, [1 + 1 + 75, 2 + 1.5 + 100, 3 + 2, 4]),  # the end and the last row at once
        ("---cx", 2, [1 + 1 + 75, 2 + 1.5 + 100, 3 + 2 + 125, 4 + 250]),
        ("----f", 2, [1 + 1 + 75, 2 + 1.5 + 100, None, None]),
    ],
)
def test_returns_of_a_sequence_end_with_its_episode_and_with_its_rows(
    rows: str, n: int, target: list[float | None]
) -> None:
    number = np.arange(1.0, 6.0)[:, None]
    made = returns(flags(rows), number[:-1], 100 * number, 0.5, n)
    assert [
        at if whole else None for at, whole in zip(made.target[:, 0].tolist(), made.whole[:, 0], strict=True)
    ] == target


def written_out(
    told: Arrays, reward: NDArray[np.float64], value: NDArray[np.float64], gamma: float, n: int, start: int, column: int
) -> float | None:
    """The return of one row; None where it is not whole."""
    total = 0.0
    for j in range(n):
        row = start + j
        total += gamma**j * reward[row, column]
        if told["terminated"][row, column]:
            return total
        if told["first"][row + 1, column]:
            return None
        if told["truncated"][row, column] or row + 1 == len(reward):
            return float(total + gamma ** (j + 1) * value[row + 1, column])
    return float(total + gamma**n * value[start + n, column])


@pytest.mark.parametrize("n", [1, 2, 5, 30])
@pytest.mark.parametrize("length", [1, 4, 20])
def test_returns_of_sequences_are_the_sums_written_out_for_a_learner_and_for_a_shard(n: int, length: int) -> None:
    """Of flags in any order, such as no actor sends them too."""
    rng = np.random.default_rng([n, length])
    told = flags(*("".join(column) for column in rng.choice(list("-----fTcx"), (200, length + 1))))
    reward, value = rng.normal(size=(length + 1, 200)), 10 * rng.normal(size=(length + 1, 200))
    learned = returns(told, reward[:-1], value, 0.9, n)
    bits = sum(np.where(told[name], bit, 0) for name, bit in FLAGS.items()).astype(np.uint8)
    target, whole = n_step_returns(reward, value, bits, ReplaySettings(n, gamma=0.9))
    np.testing.assert_array_equal(learned.whole, whole)
    np.testing.assert_allclose(learned.target.numpy()[whole], target[whole], rtol=1e-4, atol=1e-4)
    for start in range(length):
        for column in range(200):
            wanted = written_out(told, reward[:-1], value, 0.9, n, start, column)
            assert whole[start, column] == (wanted is not None)
            if wanted is not None:
                assert target[start, column] == pytest.approx(wanted)
