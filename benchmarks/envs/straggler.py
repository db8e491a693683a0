"""CartPole with steps that sometimes take ten times as long: `benchmarks.envs.straggler:make`."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np


class Straggler(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One step in a hundred sleeps."""

    def __init__(self, env: gymnasium.Env[Any, Any], share: float, sleep_s: float) -> None:
        super().__init__(env)
        self._share, self._sleep_s = share, sleep_s
        self._rng = np.random.default_rng()

    def step(self, action: Any) -> Any:
        if self._rng.random() < self._share:
            time.sleep(self._sleep_s)
        return self.env.step(action)


def make(share: float = 0.01, sleep_s: float = 0.01) -> gymnasium.Env[Any, Any]:
    """CartPole-v1 that straggles."""
    return Straggler(gymnasium.make("CartPole-v1"), share, sleep_s)
