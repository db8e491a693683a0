"""Answers of an environment that numpy or Python would take for something else: they are refused, in words."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from rlctl_agents.envs import EnvError
from rlctl_agents.envs.gymnasium import make_from

BYTES = spaces.Box(0, 255, (2,), np.uint8)
ACTION = {"action": np.zeros(1, np.int64)}


class Said(gymnasium.Env[Any, Any]):
    """Answers with what it is told to; every second step ends an episode."""

    def __init__(self, space: Any = BYTES, obs: Any = None, later: Any = None, **told: Any) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.good = np.zeros(space.shape, space.dtype)
        self.obs, self.later, self.told, self.steps, self.resets = obs, later, told, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.resets += 1
        return (self.later if self.later is not None and self.resets > 2 else self.good), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.steps += 1
        obs = self.good if self.obs is None else self.obs
        told = {"reward": 0.0, "terminated": self.steps % 2 == 0, "info": {}, **self.told}
        return obs, told["reward"], told["terminated"], False, told["info"]


def play(steps: int = 4, **said: Any) -> None:
    env = make_from("said", lambda: Said(**said), 1, [3], {}, None)
    slot = env.reset([3]).slot
    for _ in range(steps):
        slot = env.step(slot, ACTION).slot


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (BYTES, np.array([300, 5], np.uint16), "of uint16 that uint8 of its space cannot hold"),
        (spaces.Box(-128, 127, (2,), np.int8), np.array([200, 5]), "of int64 that int8 of its space cannot hold"),
        (spaces.MultiBinary(2), np.array([256, 1]), "of int64 that int8 of its space cannot hold"),
        (BYTES, [[1], [1, 2]], r"returned observation obs that is no array of shape \(2,\)"),
    ],
)
def test_an_observation_that_would_become_another_one_is_refused(space: Any, obs: Any, words: str) -> None:
    with pytest.raises(
        EnvError, match=f"step returned observation obs .*{words.removeprefix('returned observation obs ')}"
    ):
        play(space=space, obs=obs)


def test_integers_of_another_kind_that_fit_are_taken() -> None:
    play(space=BYTES, obs=np.array([255, 0], np.int64))
    play(space=spaces.Box(-1, 1, (2,), np.float32), obs=np.array([0.1, 0.2]))


@pytest.mark.parametrize("end", [float("nan"), "False", None, 2, [True, False]])
def test_an_end_that_is_no_truth_is_refused(end: Any) -> None:
    with pytest.raises(EnvError, match=r"step returned terminated .* Gymnasium wants one truth each"):
        play(terminated=end)


@pytest.mark.parametrize("end", [False, np.False_, 0, 0.0, np.array(False), np.array([0])])
def test_an_end_may_be_any_truth(end: Any) -> None:
    play(terminated=end)


def test_text_is_no_reward() -> None:
    with pytest.raises(EnvError, match=r"step returned reward '1\.0'; Gymnasium wants one number"):
        play(reward="1.0")


def test_a_mask_that_only_a_step_tells_is_refused() -> None:
    with pytest.raises(EnvError, match=r'step returned info\["action_mask"\], but reset did not'):
        play(info={"action_mask": np.array([0, 1])})


def test_a_fault_of_a_later_reset_is_one_of_reset() -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(EnvError, match="reset returned NaN in observation obs"):
        play(space=space, later=np.full(2, np.nan, np.float32))
    with pytest.raises(EnvError, match=r"reset returned observation obs of shape \(3,\)"):
        play(space=space, later=np.zeros(3, np.float32))


class Many(VectorEnv[Any, Any, Any]):
    """Two environments that see large numbers."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 2) -> None:
        self.num_envs, self.single_observation_space, self.single_action_space = num_envs, BYTES, spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.full((self.num_envs, 2), 300, np.uint16), {}


def test_a_vector_is_held_to_its_space_as_well() -> None:
    env = make_from("many", Many, 2, [3, 4], {}, None)
    with pytest.raises(EnvError, match="reset returned observation obs of uint16 that uint8 of its space cannot hold"):
        env.reset([3, 4])
