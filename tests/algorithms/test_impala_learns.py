"""IMPALA learns what can be computed by hand, in seconds and in one process, also with weights that lag."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl.spec import algorithms as specs
from rlctl.spec.schema import Network
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.types.experience import Arrays
from rlctl_agents.types.spaces import Box, Discrete, Spaces, Tuple
from tests.algorithms.world import Actor, World, train


class Lights(World):
    """One of four lights is on; press its button. Every step is an episode; chance earns 0.25."""

    spaces = Spaces(Discrete(4), Discrete(4))
    steps = 100

    def begin(self, which: NDArray[np.bool_]) -> None:
        pass

    def observe(self) -> Arrays:
        self.light = self.random.integers(0, 4, self.slots)
        return {"obs": self.light}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return (action["action"] == self.light).astype(np.float32), np.ones(self.slots, bool)


class Chain(World):
    """Five places in a row. A step right costs 0.1, the last one ends with 1; a step left from the first ends with 0.2.

    Going right all the way earns 0.6; without foresight, left looks better.
    """

    spaces = Spaces(Discrete(5), Discrete(2))
    steps = 30

    def begin(self, which: NDArray[np.bool_]) -> None:
        self.place = np.where(which, 0, getattr(self, "place", np.zeros(self.slots, np.int64)))

    def observe(self) -> Arrays:
        return {"obs": np.clip(self.place, 0, 4)}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        self.place = self.place + np.where(self.ended, 0, np.where(action["action"] == 1, 1, -1))
        reward = np.where(self.place == 5, 1.0, np.where(self.place < 0, 0.2, np.where(action["action"] == 1, -0.1, 0)))
        return reward.astype(np.float32), (self.place == 5) | (self.place < 0)


class Recall(World):
    """A cue in the first row, five blank rows, then name it: +1 or -1. Without memory no policy earns more than 0."""

    spaces = Spaces(Box((3,), "float32"), Discrete(2))
    steps = 100
    delay = 5

    def begin(self, which: NDArray[np.bool_]) -> None:
        cue = self.random.integers(0, 2, self.slots)
        self.cue = np.where(which, cue, getattr(self, "cue", cue))

    def observe(self) -> Arrays:
        shown = np.zeros((self.slots, 3), np.float32)
        shown[self.age == 0, self.cue[self.age == 0]] = 1
        shown[:, 2] = self.age == self.delay
        return {"obs": shown}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        asked = self.age == self.delay
        return np.where(asked, np.where(action["action"] == self.cue, 1.0, -1.0), 0.0).astype(np.float32), asked


class Aim(World):
    """Shown a number, give its double and its sign: 1 for the right sign (so 0.5 without), minus the squared error."""

    spaces = Spaces(Box((1,), "float32", -1.0, 1.0), Tuple((Box((1,), "float32", -2.0, 2.0), Discrete(2))))
    steps = 1

    def begin(self, which: NDArray[np.bool_]) -> None:
        pass

    def observe(self) -> Arrays:
        self.shown = self.random.uniform(-1, 1, (self.slots, 1)).astype(np.float32)
        return {"obs": self.shown}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        error = action["action.0"].astype(np.float32)[:, 0] - 2 * self.shown[:, 0]
        sign = action["action.1"] == (self.shown[:, 0] > 0)
        return (sign - error**2).astype(np.float32), np.zeros(self.slots, bool)


class Dials(World):
    """Set two dials to 0.8 of the number shown, each in units of its own range: 1 minus the mean error."""

    low, high = np.array([-1, 0], np.float32), np.array([1, 1000], np.float32)
    spaces = Spaces(Box((1,), "float32", -1.0, 1.0), Box((2,), "float32", (-1.0, 0.0), (1.0, 1000.0)))
    steps = 1

    def begin(self, which: NDArray[np.bool_]) -> None:
        pass

    def observe(self) -> Arrays:
        self.shown = self.random.uniform(-1, 1, (self.slots, 1)).astype(np.float32)
        return {"obs": self.shown}

    def move(self, action: Arrays) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        clipped = np.clip(action["action"].astype(np.float32), self.low, self.high)
        turned = (clipped - self.low) / (self.high - self.low) * 2 - 1
        reward = 1 - np.abs(turned - 0.8 * self.shown).mean(1)
        return reward.astype(np.float32), np.zeros(self.slots, bool)


class EvenDials(Dials):
    low, high = np.array([-1, -1], np.float32), np.array([1, 1], np.float32)
    spaces = Spaces(Dials.spaces.obs, Box((2,), "float32", -1.0, 1.0))


def trained(world: type[World], updates: int, lag: int, network: dict[str, Any], **settings: Any) -> float:
    """Mean return of the last 200 episodes, sampled actions."""
    config = specs.Impala.model_validate({"optimizer": "adam", "lr": 0.01, "entropy_coef": 0.003, **settings})
    model = Network.model_validate({"hidden": [16], **network})
    actor, learner = (Impala(config, model, world.spaces, seed=1) for _ in range(2))
    schema = Impala.schema(config, model, world.spaces)
    player = Actor(actor, schema, world(32, seed=2), seed=3)
    for _ in train(player, learner, updates, lag):
        pass
    return float(np.mean(player.returns))


@pytest.mark.parametrize("lag", [0, 4])
def test_learns_to_press_the_button_of_the_light(lag: int) -> None:
    assert trained(Lights, 60, lag, {}, unroll_length=5, gamma=0.0) > 0.9


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_learns_to_pay_now_for_more_later(optimizer: str) -> None:
    assert trained(Chain, 100, 2, {}, unroll_length=10, gamma=1.0, **{"lambda": 0.95}, optimizer=optimizer) > 0.5


@pytest.mark.slow
def test_learns_to_remember_with_a_memory_and_cannot_without() -> None:
    settings = {"unroll_length": 14, "gamma": 0.95}
    for core in ("lstm", "gru"):
        assert trained(Recall, 120, 1, {"core": core, "width": 16}, **settings) > 0.9
    assert trained(Recall, 120, 1, {}, **settings) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gaussian", "lr"),
    # at 0.01 a network that shrinks its deviation for some observations first learns faster, and then diverges
    [({}, 0.01), ({"std": "network"}, 0.003), ({"squash": True}, 0.01)],
    ids=["free", "network", "squashed"],
)
def test_learns_numbers_and_bits_together(gaussian: dict[str, Any], lr: float) -> None:
    network = {"gaussian": gaussian}
    assert trained(Aim, 300, 1, network, unroll_length=8, gamma=0.0, entropy_coef=0.0, lr=lr) > 0.5


@pytest.mark.slow
def test_entries_with_ranges_of_very_different_width_are_learned_like_equal_ones() -> None:
    uneven, even = (
        trained(world, 200, 1, {}, unroll_length=8, gamma=0.0, entropy_coef=0.0) for world in (Dials, EvenDials)
    )
    assert even > 0.8
    assert uneven == pytest.approx(even, abs=0.02)
