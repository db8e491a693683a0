"""The environment: one of several lights is on, press the button below it."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

Light = np.ndarray[Any, np.dtype[np.float32]]


class Lights(gymnasium.Env[Light, np.int64]):
    """1 for the right button, 20 times an episode.

    Args:
        lights: number of lights and buttons.
    """

    def __init__(self, lights: int = 4) -> None:
        self.on = np.eye(lights, dtype=np.float32)  # what is seen of each light
        self.observation_space = spaces.Box(0.0, 1.0, (lights,), np.float32)
        self.action_space = spaces.Discrete(lights)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Light, dict[str, Any]]:
        super().reset(seed=seed)  # self.np_random, so that a seed repeats a game
        self.left = 20
        return self._next(), {}

    def step(self, action: np.int64) -> tuple[Light, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.light)
        self.left -= 1
        return self._next(), reward, self.left == 0, False, {}

    def _next(self) -> Light:
        self.light = int(self.np_random.integers(len(self.on)))
        seen: Light = self.on[self.light]
        return seen
