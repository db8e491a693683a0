"""Environments that fail, and episodes of them as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from rlctl_agents import envs
from rlctl_agents.envs.base import EnvError
from rlctl_agents.repro.provenance import provenance
from rlctl_agents.repro.record import Chunk, Header, pack
from rlctl_agents.repro.recording import EpisodeRecorder
from rlctl_agents.runtime.logs import users_traceback
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Discrete, MultiDiscrete, Spaces, leaf_array, leaves

HERE = __name__


class Lamps(gymnasium.Env[Any, Any]):
    """Shows three random numbers in each of `length` steps, and fails where they are too bright.

    Args:
        bright: sum of the numbers at which it fails.
        own: it draws from a generator of its own, which no other can see.
    """

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(3)
    fixed = False
    """Since it was mended it does not fail any more."""
    shift = 0.0
    """Of all that it shows: another build of it."""

    def __init__(self, bright: float = 2.82, length: int = 9, own: bool = False) -> None:
        self.bright, self.length, self.own = bright, length, own

    def _see(self) -> Any:
        numbers = self.draw.random(3) if self.own else self.np_random.random(3)
        return np.clip(numbers + self.shift, 0, 1).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.draw = np.random.default_rng(seed)
        self.now = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        seen = self._see()
        assert self.fixed or seen.sum() < self.bright, "too bright"
        return seen, float(action), self.now == self.length, False, {}


class Together:
    """Two seats in each of some environments, all drawn from one generator; fails in its 700th step."""

    frame_skip = 1

    def __init__(self, envs: int, last: int = 700) -> None:
        self.envs, self.last = envs, last
        self.spaces = Spaces(leaves_of((2,)), Discrete(5), seats=2)

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self.draw, self.now = np.random.default_rng(list(seeds or ())), 0
        return self._decisions(0.0)

    def step(self, slot: Any, action: Arrays) -> Decisions:
        self.now += 1
        if self.now == self.last:
            raise RuntimeError("worn out")
        return self._decisions(float(action["action"].sum()))

    def close(self) -> None:
        pass

    def _decisions(self, reward: float) -> Decisions:
        slots = 2 * self.envs
        over, first = self.now % 10 == 9, self.now % 10 == 0
        return Decisions(
            np.arange(slots), {"obs": self.draw.random((slots, 2), np.float32)},
            np.full(slots, 0.0 if first else reward, np.float32), np.full(slots, over), np.zeros(slots, np.bool_),
            np.full(slots, first),
        )  # fmt: skip


def leaves_of(shape: tuple[int, ...]) -> Any:
    from rlctl_agents.types.spaces import Box

    return Box(shape, "float32", 0.0, 1.0)


def random_actions(spaces: Spaces, rows: int, rng: np.random.Generator) -> Arrays:
    """Actions that the environment may be given."""
    action: Arrays = {}
    for name, leaf in leaves(spaces.action, "action"):
        dtype, shape = leaf_array(leaf)
        if isinstance(leaf, Discrete | MultiDiscrete):
            action[name] = rng.integers(0, leaf.n, (rows, *shape)).astype(dtype)
        else:
            action[name] = rng.uniform(-1, 1, (rows, *shape)).astype(dtype)
    return action


def recorder(section: dict[str, Any], count: int, *, training: bool) -> EpisodeRecorder:
    made = envs.make_of(section, envs=count, seeds=[0] * count, training=training)
    return EpisodeRecorder(made, section, training=training)


def drive(env: EpisodeRecorder, steps: int, seed: int = 0) -> None:
    """Reset it, and act at random."""
    rng = np.random.default_rng(seed)
    decisions = env.reset([seed + 11 * number for number in range(env.envs)])
    for _ in range(steps):
        slot, legal = decisions.slot.copy(), decisions.legal
        action = random_actions(env.spaces, slot.size, rng)
        if legal is not None:
            action["action"] = np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in legal])
        decisions = env.step(slot, action)


def crash(section: dict[str, Any], count: int = 3, *, training: bool = True) -> tuple[Header, list[Chunk]]:
    """The episode in which one of the environments fails."""
    env = recorder(section, count, training=training)
    try:
        drive(env, 100_000)
    except EnvError as error:
        header, chunks = env.crashed(str(error))
        told = {"error": str(error), "traceback": users_traceback(error)}
        return msgspec.structs.replace(header, provenance=provenance(), **told), chunks
    raise AssertionError("it did not fail")


def file_of(header: Header, chunks: list[Chunk]) -> bytes:
    line, body = pack(header, chunks)
    return line + b"\n" + body
