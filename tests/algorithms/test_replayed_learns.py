"""Off-policy algorithms learn in one process, from a replay in plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlctl_agents.algorithms.apex_dqn import ApexDqn
from rlctl_agents.algorithms.dqn import Dqn
from rlctl_agents.algorithms.replayed import ReplayedAlgorithm
from rlctl_agents.algorithms.sac import Sac
from rlctl_agents.algorithms.td3 import Td3
from tests.algorithms.replayed import Games, greedy_return, train
from tests.algorithms.test_impala_learns import Chain, Dials
from tests.algorithms.world import World


def last_return(kind: type[ReplayedAlgorithm], config: dict[str, Any], world: World, steps: int, **more: Any) -> float:
    *_, (player, _) = train(kind, {"batch_size": 256, "minibatch_size": 64, **config}, world, steps, starts=200, **more)
    return float(np.mean([*player.returns][-100:]))


@pytest.mark.parametrize("kind", [Dqn, ApexDqn])
def test_learns_to_pay_now_for_more_later(kind: type[ReplayedAlgorithm]) -> None:
    config = {"lr": 3e-3, "gamma": 0.99, "epsilon_steps": 2000, "prioritized": False}
    if kind is ApexDqn:
        del config["epsilon_steps"]
    assert last_return(kind, config, Chain(16, 2), 5000, model={"hidden": [16]}) > 0.3


@pytest.mark.parametrize("kind", [Sac, Td3])
def test_learns_to_set_dials_of_very_different_ranges(kind: type[ReplayedAlgorithm]) -> None:
    config = {"lr": 3e-3, "gamma": 0.0, "tau": 0.05}
    assert last_return(kind, config, Dials(16, 2), 3000, model={"hidden": [16]}, ratio=32) > 0.7


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_dqn_balances_the_pole() -> None:
    torch.set_num_threads(1)
    world = Games("CartPole-v1", 8, 0)
    best = 0.0
    for player, _ in train(Dqn, {"lr": 1e-3}, world, 20_000, ratio=32):
        if player.progress >= 18_000 and best < 195:
            best = max(best, greedy_return(player.algorithm, player.schema, Games("CartPole-v1", 10, 1000), 10))
    assert best >= 195


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_sac_swings_the_pendulum_up() -> None:
    torch.set_num_threads(1)
    config = {"minibatch_size": 128, "batch_size": 1024, "lr": 1e-3}
    *_, (player, _) = train(Sac, config, Games("Pendulum-v1", 2, 0), 10_000, ratio=128, model={"hidden": [64, 64]})
    assert greedy_return(player.algorithm, player.schema, Games("Pendulum-v1", 10, 1000), 20) >= -250
