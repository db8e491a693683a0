"""A simulator that waits and computes for as long as it is told: `benchmarks.envs.latency:Latency`.

A step sleeps `latency_ms`, once for all environments of the vector as if each had a machine of its own, then burns
`cpu_ms` of CPU per environment, by the thread's own clock. Needs no gymnasium and no torch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Box, Discrete, Spaces

Jitter = Literal["fixed", "lognormal", "stragglers"]


class Latency:
    """`envs` environments; an episode has `episode_steps`, and a step is worth 1 when action 1 was taken.

    Args:
        envs: side by side.
        latency_ms: of a step, without CPU.
        cpu_ms: of a step of one environment.
        jitter: of the latency: none, a coefficient of variation of 0.5, or 10 times as long for one step in a hundred.
        pixels: observations of 84x84 bytes instead of 16 floats.
    """

    def __init__(
        self, envs: int, latency_ms: float = 0.0, cpu_ms: float = 0.1, jitter: Jitter = "fixed", pixels: bool = False,
        episode_steps: int = 200,
    ) -> None:  # fmt: skip
        shape, dtype = ((84, 84), "uint8") if pixels else ((16,), "float32")
        self.spaces = Spaces(Box(shape, dtype), Discrete(2))
        self.envs = envs
        self.frame_skip = 1
        self._latency_s, self._cpu_s, self._jitter = latency_ms / 1e3, cpu_ms / 1e3, jitter
        self._episode_steps = episode_steps
        self._slot = np.arange(envs, dtype=np.int64)
        self._obs = np.zeros((envs, *shape), dtype)
        self._rng = np.random.default_rng(0)
        self._age = np.zeros(envs, np.int64)
        self._ended = np.zeros(envs, np.bool_)

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        if seeds is not None:
            self._rng = np.random.default_rng(list(seeds))
        self._age[:] = 0
        self._ended[:] = False
        none = np.zeros(self.envs, np.float32)
        return self._decisions(none, first=np.ones(self.envs, np.bool_))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        self._simulate()
        begins = self._ended.copy()
        reward = np.where(begins, 0.0, action["action"] == 1).astype(np.float32)
        self._age = np.where(begins, 0, self._age + 1)
        self._ended = ~begins & (self._age >= self._episode_steps)
        return self._decisions(reward, first=begins)

    def close(self) -> None:
        pass

    def _simulate(self) -> None:
        latency_s = self._latency_s * self._stretch()
        if latency_s > 0:
            time.sleep(latency_s)
        until = time.thread_time() + self._cpu_s * self.envs
        while time.thread_time() < until:
            pass

    def _stretch(self) -> float:
        match self._jitter:
            case "lognormal":  # mean 1, coefficient of variation 0.5
                sigma = np.sqrt(np.log(1.25))
                return float(self._rng.lognormal(-sigma * sigma / 2, sigma))
            case "stragglers":
                return 10.0 if self._rng.random() < 0.01 else 1.0
            case _:
                return 1.0

    def _decisions(self, reward: NDArray[np.float32], first: NDArray[np.bool_]) -> Decisions:
        self._obs.reshape(self.envs, -1)[:, 0] = self._age % 2
        return Decisions(
            slot=self._slot, obs={"obs": self._obs}, reward=reward, terminated=self._ended,
            truncated=np.zeros(self.envs, np.bool_), first=first,
        )  # fmt: skip
