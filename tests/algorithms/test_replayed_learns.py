"""Off-policy algorithms learn in one process, from a replay in plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlctl_agents.algorithms.apex_dqn import ApexDqn
from rlctl_agents.algorithms.dqn import Dqn
from rlctl_agents.algorithms.replayed import ReplayedAlgorithm
from rlctl_agents.algorithms.sac import Sac
from rlctl_agents.algorithms.td3 import Td3
from rlctl_agents.types.experience import Arrays
from rlctl_agents.types.spaces import Discrete, MultiDiscrete, Spaces
from tests.algorithms.replayed import Games, greedy_return, train
from tests.algorithms.test_impala_learns import Chain, Dials, Lights
from tests.algorithms.world import World


class Menu(World):
    """Choose a dish of four and a drink of three, of those that there are today: each has its own worth."""

    spaces = Spaces(Discrete(1), MultiDiscrete((4, 3)), legal=True)
    steps = 1
    worth = np.array([0.1, 0.4, 0.2, 0.5, 0.3, 0.0, 0.4])  # of dishes, then of drinks

    def begin(self, which: NDArray[np.bool_]) -> None:
        pass

    def observe(self) -> Arrays:
        self.there = self.random.random((self.slots, 7)) < 0.5
        self.there[:, 0] |= ~self.there[:, :4].any(1)
        self.there[:, 4] |= ~self.there[:, 4:].any(1)
        return {"obs": np.zeros(self.slots, np.int64)}

    def legal(self) -> NDArray[np.bool_]:
        return self.there

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        column = action["action"] + [0, 4]
        assert np.take_along_axis(self.there, column, 1).all()
        got, there = self.worth[column].sum(1), np.where(self.there, self.worth, 0.0)
        self.regret = there[:, :4].max(1) + there[:, 4:].max(1) - got
        return got.astype(np.float32), np.zeros(self.slots, bool)


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


def test_sac_over_options_learns_to_pay_now_for_more_later() -> None:
    config = {"lr": 3e-3, "gamma": 0.99, "tau": 0.05, "temperature": 0.02}
    assert last_return(Sac, config, Chain(16, 2), 3000, model={"hidden": [16]}, ratio=32) > 0.5


def test_sac_over_options_comes_to_the_policy_and_the_temperature_that_one_computes_by_hand() -> None:
    """The one of four that earns 1 is chosen with p = 1 / (1 + 3 exp(-1 / alpha)), alpha such that its entropy is half
    of log 4."""
    config = {"batch_size": 256, "minibatch_size": 64, "lr": 3e-3, "gamma": 0.0, "tau": 0.05}
    *_, (player, updated) = train(Sac, config, Lights(16, 2), 3000, starts=200, model={"hidden": [16]}, ratio=32)
    assert updated.stats["entropy"] == pytest.approx(0.5 * np.log(4), abs=0.02)
    assert updated.stats["alpha"] == pytest.approx(0.392, abs=0.02)
    assert np.mean([*player.returns][-200:]) == pytest.approx(0.81, abs=0.1)
    assert greedy_return(player.algorithm, player.schema, Lights(16, 5), 100) == 1.0


def test_sac_learns_the_best_legal_option_of_each_choice() -> None:
    config = {"batch_size": 256, "minibatch_size": 64, "lr": 3e-3, "gamma": 0.0, "tau": 0.05}
    *_, (player, updated) = train(Sac, config, Menu(16, 2), 3000, starts=200, model={"hidden": [16]}, ratio=32)
    assert 0.0 < updated.stats["alpha"] < 1.0, "what is wanted of the entropy can be had with what is legal"
    player.greedy = True
    for _ in range(20):
        player.segment()
        assert np.allclose(player.world.regret, 0)  # type: ignore[attr-defined]


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
