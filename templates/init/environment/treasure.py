"""A small environment of your own: a treasure lies somewhere on a grid, walk there."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])  # what each of the four actions adds to the position


class Treasure(gymnasium.Env[np.ndarray, int]):
    """Reaching the treasure gives 1 and ends the episode, every step costs 0.02.

    Any environment with Gymnasium's interface works in its place. `env.kwargs` of spec.yaml are the arguments of
    `__init__`, and `env.max_episode_steps` there cuts an episode that leads nowhere.

    Args:
        size: cells along each side of the grid.
        render_mode: rgb_array when `rlctl play` wants to show it; training leaves it out.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, size: int = 7, render_mode: str | None = None) -> None:
        self.size = size
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)  # our row and column, those of the treasure
        self.action_space = spaces.Discrete(len(STEPS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)  # every random number below comes from self.np_random, so that a seed repeats a game
        here, there = self.np_random.choice(self.size**2, size=2, replace=False)
        self.position = np.array(divmod(here, self.size))
        self.treasure = np.array(divmod(there, self.size))
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.position = np.clip(self.position + STEPS[action], 0, self.size - 1)
        found = bool((self.position == self.treasure).all())
        return self._observation(), float(found) - 0.02, found, False, {}

    def render(self) -> np.ndarray:
        frame = np.full((self.size, self.size, 3), 40, np.uint8)
        frame[tuple(self.treasure)], frame[tuple(self.position)] = (255, 190, 0), (70, 130, 255)  # gold, and us in blue
        return frame.repeat(32, 0).repeat(32, 1)

    def _observation(self) -> np.ndarray:
        return np.concatenate([self.position, self.treasure]).astype(np.float32) / (self.size - 1)
