"""The environments of `peers` less one of the ways in which they are fast; see benchmarks/ablation.py."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rlctl_agents.envs import Env, make
from rlctl_agents.types.spaces import Box, Spaces

STACK = 4


class Declared:
    """Wrapper that declares an environment's observation to be a stack of so many frames; 0: just an array."""

    def __init__(self, env: Env, stack: int) -> None:
        seen = env.spaces.obs
        assert isinstance(seen, Box)
        self.spaces = Spaces(Box(seen.shape, seen.dtype, seen.low, seen.high, stack=stack), env.spaces.action)
        self.envs, self.frame_skip = env.envs, env.frame_skip
        self.reset, self.step, self.close = env.reset, env.step, env.close


def whole_stacks(envs: int) -> Declared:
    """Pong from ALE's own vector; that its observations are stacks of frames is not declared, so all of them travel."""
    return Declared(make("ALE/Pong-v5", envs=envs, seeds=range(envs), preset="atari"), 0)


def one_by_one(envs: int) -> Declared:
    """Pong by Gymnasium's wrappers, stepped one environment after the other; frames travel once."""
    return Declared(make("benchmarks.envs.plain:pong", envs=envs, seeds=range(envs)), STACK)


def pong() -> gymnasium.Env[Any, Any]:
    """One game with the preprocessing of the preset atari."""
    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=108_000)
    return FrameStackObservation(AtariPreprocessing(game, noop_max=30), STACK, padding_type="zero")


def cartpole() -> gymnasium.Env[Any, Any]:
    """One of Gymnasium's by a function, for which rlctl looks for no vector form."""
    return gymnasium.make("CartPole-v1")
