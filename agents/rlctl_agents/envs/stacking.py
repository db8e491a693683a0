"""Frame stacking for any environment: a Box with `stack`, of which each frame is sent once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.envs.base import Env, EnvRefused, Renders, Rests
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Bound, Box, Dict, Space, Spaces, Tuple, leaves


class Stacked:
    """Vector that shows the last frames of every Box of the observation on a first axis of their own, oldest first,
    zeros before an episode's first. Networks take the colours of all frames as the channels of one image.

    Args:
        env: environment of any family.
        frames: frames of a stack, at least 2.

    Raises:
        EnvRefused: the observation has no Box, or one that is stacked already.
    """

    def __init__(self, env: Env, frames: int) -> None:
        boxes = {name: leaf for name, leaf in leaves(env.spaces.obs, "obs") if isinstance(leaf, Box)}
        if not boxes:
            raise EnvRefused(f"env.frame_stack needs numbers in the observation, got {env.spaces.obs}")
        for name, leaf in boxes.items():
            if leaf.stack:
                raise EnvRefused(f"{name} holds a stack of {leaf.stack} frames already: remove env.frame_stack")
        self._env = env
        self._frames: dict[str, NDArray[Any]] = {  # [slots, frames, ...]
            name: np.zeros((env.envs * env.spaces.seats, frames, *leaf.shape), leaf.dtype)
            for name, leaf in boxes.items()
        }
        self.spaces = Spaces(_stacked(env.spaces.obs, frames), env.spaces.action, env.spaces.seats, env.spaces.legal)
        self.envs, self.all_wait = env.envs, getattr(env, "all_wait", True)
        self.frame_skip = env.frame_skip

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        return self._shown(self._env.reset(seeds))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        return self._shown(self._env.step(slot, action))

    def rest(self, env: NDArray[np.int64]) -> None:
        if isinstance(self._env, Rests):
            self._env.rest(env)

    @property
    def frames_per_s(self) -> float:
        return self._env.frames_per_s if isinstance(self._env, Renders) else 0.0

    def frame(self) -> NDArray[np.uint8] | None:
        return self._env.frame() if isinstance(self._env, Renders) else None

    def close(self) -> None:
        self._env.close()

    def _shown(self, decisions: Decisions) -> Decisions:
        slot, first = decisions.slot, decisions.first
        begun = slot[first]
        obs = dict(decisions.obs)
        for name, stack in self._frames.items():
            whole = slot.size == len(stack)
            if whole:
                stack[:, :-1] = stack[:, 1:]
                stack[:, -1] = obs[name]
            else:
                stack[slot, :-1] = stack[slot, 1:]
                stack[slot, -1] = obs[name]
            if begun.size:
                stack[begun, :-1] = 0
            obs[name] = stack if whole else stack[slot]
        decisions.obs = obs
        return decisions


def _stacked(space: Space, frames: int) -> Space:
    match space:
        case Box():
            low, high = (_with_zero(bound, frames, best) for bound, best in ((space.low, min), (space.high, max)))
            return Box((frames, *space.shape), space.dtype, low, high, stack=frames)
        case Dict():
            return Dict({name: _stacked(item, frames) for name, item in space.items.items()})
        case Tuple():
            return Tuple(tuple(_stacked(item, frames) for item in space.items))
    return space


def _with_zero(bound: Bound, frames: int, best: Any) -> Bound:
    """Bound of a stack: of each of its frames, and of the zeros before an episode's first."""
    if isinstance(bound, tuple):
        return tuple(None if one is None else best(one, 0.0) for one in bound) * frames
    return None if bound is None else float(best(bound, 0.0))
