"""Catch from pixels: a game that trains in half a minute with the network of Pong; for benchmarks/curves.py.

A ball falls through 10 rows of 5 columns, a paddle in the last row moves left, right or stays. An episode is 9 steps;
its return is 1 if the paddle is below the ball at the end, else -1. Random play: -0.6. Source of the game: Catch of
bsuite (Osband et al. 2020, arXiv:1908.03568); the frames of 84x84 and the stacks of four are those of Atari.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from benchmarks.envs.plain import STACK, Declared
from rlctl_agents.envs import make

ROWS, COLUMNS = 10, 5
HEIGHT, WIDTH = 8, 16
"""Pixels of a cell."""


class Catches(VectorEnv[Any, Any, Any]):
    """`num_envs` games; observations are stacks of four frames, before the first of an episode zeros."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (STACK, 84, 84), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rng = np.random.default_rng()
        self._obs = np.zeros((num_envs, STACK, 84, 84), np.uint8)
        self._row = np.zeros(num_envs, np.int64)
        self._ball = np.zeros(num_envs, np.int64)
        self._paddle = np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._begin(np.ones(self.num_envs, np.bool_))
        self._see()
        return self._obs.copy(), {}

    def step(self, actions: Any) -> Any:
        over = self._row == ROWS - 1
        self._row[~over] += 1
        moved = np.clip(self._paddle + np.asarray(actions) - 1, 0, COLUMNS - 1)
        self._paddle[~over] = moved[~over]
        self._begin(over)
        ends = self._row == ROWS - 1
        reward = np.where(ends, np.where(self._paddle == self._ball, 1.0, -1.0), 0.0).astype(np.float32)
        self._see()
        return self._obs.copy(), reward, ends, np.zeros(self.num_envs, np.bool_), {}

    def _begin(self, games: NDArray[np.bool_]) -> None:
        self._row[games] = 0
        self._ball[games] = self._rng.integers(0, COLUMNS, int(games.sum()))
        self._paddle[games] = COLUMNS // 2
        self._obs[games] = 0

    def _see(self) -> None:
        self._obs[:, :-1] = self._obs[:, 1:]
        frame = self._obs[:, -1]
        frame[...] = 0
        cells = frame[:, : ROWS * HEIGHT, : COLUMNS * WIDTH].reshape(self.num_envs, ROWS, HEIGHT, COLUMNS, WIDTH)
        games = np.arange(self.num_envs)
        cells[games, self._row, :, self._ball] = 255
        cells[games, ROWS - 1, :, self._paddle] = 255


class Catch(gymnasium.Env[Any, Any]):
    """One game."""

    def __init__(self) -> None:
        self._games = Catches(1)
        self.observation_space = self._games.single_observation_space
        self.action_space = self._games.single_action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        return self._games.reset(seed=seed)[0][0], {}

    def step(self, action: Any) -> Any:
        obs, reward, ends, _, _ = self._games.step([action])
        return obs[0], float(reward[0]), bool(ends[0]), False, {}


def catch(envs: int) -> Declared:
    """As one batch; frames travel once."""
    return Declared(make("benchmarks.envs.catch:Catches", envs=envs, seeds=range(envs)), STACK)


def whole_stacks(envs: int) -> Declared:
    """As one batch; that its observations are stacks of frames is not declared, so all of them travel."""
    return Declared(make("benchmarks.envs.catch:Catches", envs=envs, seeds=range(envs)), 0)


def one_by_one(envs: int) -> Declared:
    """Stepped one game after the other; frames travel once."""
    return Declared(make("benchmarks.envs.catch:Catch", envs=envs, seeds=range(envs)), STACK)
