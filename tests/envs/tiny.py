"""Small environments for tests of every builder, named `tests.envs.tiny:Class`; every episode is short.

Gymnasium's interface: `Reach` (continuous), `Memory` (needs a memory), `Mixed` (Dict observation, Tuple action),
`Clock` (only ever truncated), `Exam` (tells numbers). Our own protocol: `Turns` (two seats in turn, legal moves),
`Duel` (two seats at once).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Box, Discrete, Spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Reach(gymnasium.Env[Any, Any]):
    """Bring a point on a line to 0: action in [-1, 1] moves it by half, reward is minus its distance, 10 steps."""

    observation_space = spaces.Box(-2.0, 2.0, (1,), np.float64)  # arrives as float32
    action_space = spaces.Box(np.float32(-1), np.float32(1), (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, 1)
        self.left = 10
        return self.at.copy(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        self.at = np.clip(self.at + action / 2, -2, 2)
        self.left -= 1
        return self.at.copy(), -abs(float(self.at[0])), self.left == 0, False, {}


class Memory(gymnasium.Env[Any, Any]):
    """A light shows once, `delay` dark steps follow, then the button of that light gives 1: chance is 0.5."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)  # light 0, light 1, "press now"
    action_space = spaces.Discrete(2)

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay

    def _see(self) -> NDArray[np.float32]:
        seen = np.zeros(3, np.float32)
        if self.now == 0:
            seen[self.light] = 1
        elif self.now > self.delay:
            seen[2] = 1
        return seen

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.light = int(self.np_random.integers(2))
        self.now = 0
        return self._see(), {}

    def step(self, action: Any) -> Step:
        pressed = self.now > self.delay
        self.now += 1
        return self._see(), float(pressed and action == self.light), pressed, False, {}


class Mixed(gymnasium.Env[Any, Any]):
    """Dict observation, Tuple action: the number shown, from 1 to 3, and the sign of the position give 1 each."""

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "camera": spaces.Box(0, 255, (2, 2), np.uint8),
            "inner": spaces.Dict({"number": spaces.Discrete(3, start=1), "bits": spaces.MultiBinary((2, 2))}),
        }
    )
    action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-2.0, 2.0, (2,), np.float32)))

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def _see(self) -> dict[str, Any]:
        self.number = int(self.np_random.integers(1, 4))
        self.position = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {
            "position": self.position,
            "camera": np.full((2, 2), self.number, np.uint8),
            "inner": {"number": self.number, "bits": np.full((2, 2), self.number % 2, np.int8)},
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.length
        return self._see(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), action
        button, push = action
        reward = float(button == self.number) + float((np.sign(push) == np.sign(self.position)).all())
        self.left -= 1
        return self._see(), reward, self.left == 0, False, {}


class Clock(gymnasium.Env[Any, Any]):
    """Shows the number of steps since the reset and goes on for ever, until it is cut short; reward 1 a step."""

    observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, False, self.now == self.length, {}


class Exam(Clock):
    """A clock that tells numbers: passed where the seed is odd, and a score that grows by 1 with each episode."""

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self.odd = self.games = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.odd, self.games = seed % 2, 0
        self.games += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> Step:
        obs, reward, terminated, truncated, _ = super().step(action)
        score = np.float32(self.games + 2 * self.odd)
        info = {
            "is_success": bool(self.odd),
            "score": score,
            "grade": "good",
            "parts": np.zeros(3),
            "steps": float("nan"),
        }
        return obs, reward, terminated, truncated, info


class Turns:
    """Two seats take 1 or 2 stones in turn; the one that takes the last wins: +1 and -1. Seat 0 begins.

    Observation: one-hot of the stones left. Two seats in our own protocol; 2 is not legal with one stone left.
    """

    frame_skip = 1

    def __init__(self, envs: int, stones: int = 7) -> None:
        self.envs = envs
        self.stones = stones
        self.spaces = Spaces(Box((stones + 1,), "float32", 0.0, 1.0), Discrete(2), seats=2, legal=True)

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self.rng = [np.random.default_rng(seed) for seed in seeds or range(self.envs)]
        self.left = np.zeros(self.envs, np.int64)
        self.turn = np.zeros(self.envs, np.int64)  # seat that acts
        self.played = np.zeros((self.envs, 2), np.bool_)
        for env in range(self.envs):
            self._deal(env)
        return self._decisions(np.zeros(self.envs, np.bool_))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        over = np.zeros(self.envs, np.bool_)
        taken = dict(zip(slot.tolist(), action["action"].tolist(), strict=True))
        for env in range(self.envs):
            if self.left[env] == 0:  # answered final observations
                self._deal(env)
                continue
            seat = int(self.turn[env])
            self.played[env, seat] = True
            self.left[env] -= min(int(taken[env * 2 + seat]) + 1, int(self.left[env]))
            over[env] = self.left[env] == 0
            if not over[env]:
                self.turn[env] = 1 - seat
        return self._decisions(over)

    def close(self) -> None:
        pass

    def _deal(self, env: int) -> None:
        self.left[env] = self.rng[env].integers(2, self.stones + 1)
        self.turn[env] = 0
        self.played[env] = False

    def _decisions(self, over: NDArray[np.bool_]) -> Decisions:
        rows = []  # slot, reward, ended, first
        for env in range(self.envs):
            for seat in (0, 1):
                if over[env] and self.played[env, seat]:
                    rows.append((env * 2 + seat, 1.0 if seat == self.turn[env] else -1.0, True, False))
                elif not over[env] and seat == self.turn[env]:
                    rows.append((env * 2 + seat, 0.0, False, not self.played[env, seat]))
        slot, reward, ended, first = (np.array(column) for column in zip(*rows, strict=True))
        left = self.left[slot // 2]
        return Decisions(
            slot=slot,
            obs={"obs": np.eye(self.stones + 1, dtype=np.float32)[left]},
            reward=reward.astype(np.float32),
            terminated=ended,
            truncated=np.zeros(len(slot), np.bool_),
            first=first,
            legal=np.stack([np.ones(len(slot), np.bool_), left >= 2], axis=1),
        )


class Duel:
    """Two seats choose rock, paper or scissors at once, five times: +1, 0 or -1 each; they see the last choices."""

    frame_skip = 1

    def __init__(self, envs: int, rounds: int = 5) -> None:
        self.envs = envs
        self.rounds = rounds
        self.spaces = Spaces(Box((7,), "float32", 0.0, 1.0), Discrete(3), seats=2)

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self.now = np.zeros(self.envs, np.int64)
        self.last = np.zeros((self.envs, 2, 3), np.float32)
        return self._decisions(np.zeros((self.envs, 2)))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        chosen: NDArray[Any] = action["action"].reshape(self.envs, 2)
        beats = (chosen[:, 0] - chosen[:, 1]) % 3  # 1: seat 0 wins, 2: seat 1 wins
        reward = np.stack([(beats == 1) * 1.0 - (beats == 2), (beats == 2) * 1.0 - (beats == 1)], axis=1)
        begins = self.now == self.rounds
        self.now = np.where(begins, 0, self.now + 1)
        self.last = np.where(begins[:, None, None], 0, np.eye(3, dtype=np.float32)[chosen])
        return self._decisions(np.where(begins[:, None], 0.0, reward))

    def close(self) -> None:
        pass

    def _decisions(self, reward: NDArray[Any]) -> Decisions:
        mine, other = self.last, self.last[:, ::-1]
        left = np.repeat(1 - self.now / self.rounds, 2).reshape(self.envs, 2, 1)
        count = self.envs * 2
        return Decisions(
            slot=np.arange(count),
            obs={"obs": np.concatenate([mine, other, left], axis=2).reshape(count, 7).astype(np.float32)},
            reward=reward.reshape(count).astype(np.float32),
            terminated=np.repeat(self.now == self.rounds, 2),
            truncated=np.zeros(count, np.bool_),
            first=np.repeat(self.now == 0, 2),
        )
