"""Environments of rlctl's own protocol, named `module:attribute`: several seats, turns, masks of legal actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.envs.base import Env, EnvError, EnvRefused, chosen_seeds
from rlctl_agents.envs.check import fault
from rlctl_agents.envs.frames import Frames
from rlctl_agents.envs.order import Order
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.figures import info_numbers
from rlctl_agents.types.spaces import Box, Space, Spaces, leaves

STACKS_CHECKED = 300
"""Number of first answers in which all stacks are checked; later, only beginnings of episodes and samples are."""


def make(
    id: str,
    factory: Callable[..., Any],
    envs: int,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
) -> Env:
    """Call the factory with `envs` and the kwargs.

    Raises:
        EnvRefused: it failed, its result is no `Env`, or max_episode_steps is set: only the factory can cut episodes.
    """
    if max_episode_steps is not None:
        raise EnvRefused(f"{id} cuts its own episodes: give it their length in env.kwargs, not in max_episode_steps")
    try:
        env = factory(envs=envs, **kwargs)
    except EnvRefused:
        raise
    except Exception as error:
        raise EnvRefused(f"cannot make {id}: {type(error).__name__}: {error}") from error
    lacking = [name for name in ("spaces", "envs", "frame_skip", "reset", "step", "close") if not hasattr(env, name)]
    if lacking:
        raise EnvRefused(f"{id}: {type(env).__name__} has no {', '.join(lacking)}; see rlctl_agents.envs.base.Env")
    if not isinstance(env.spaces, Spaces):
        raise EnvRefused(f"{id}: spaces must be rlctl_agents.types.spaces.Spaces, got {type(env.spaces).__name__}")
    parts: dict[str, Any] = {"obs": env.spaces.obs, "action": env.spaces.action}
    for name, space in parts.items():
        if not isinstance(space, Space):
            kind = f"{type(space).__module__}.{type(space).__name__}"
            raise EnvRefused(f"{id}: spaces.{name} must be one of rlctl_agents.types.spaces, got {kind}")
    if env.envs != envs:
        raise EnvRefused(f"{id}: asked for {envs} environments, its envs says {env.envs}")
    return CheckedEnv(id, env, _plain(id, env.spaces), seeds)


def _plain(id: str, spaces: Spaces) -> Spaces:
    """Spaces as plain numbers, tuples and names, as they are sent and stored; NumPy's numbers and dtypes are converted.

    Raises:
        EnvRefused: a value is of another type.
    """

    def of_numpy(one: Any) -> Any:
        return one.item() if isinstance(one, np.generic) else np.dtype(one).name

    try:
        return msgspec.convert(msgspec.to_builtins(spaces, enc_hook=of_numpy), Spaces)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise EnvRefused(f"{id}: spaces: {error}") from error


class CheckedEnv:
    """Environment of rlctl's own protocol; every answer is checked, so that a fault is reported where it arises."""

    def __init__(self, name: str, env: Env, spaces: Spaces, seeds: Sequence[int]) -> None:
        self._name = name
        self._env = env
        self._seeds = list(seeds)
        self._steps = 0
        self._order = Order(env.envs, spaces.seats)
        self._frames = Frames(spaces, env.envs, whole=STACKS_CHECKED)
        self._bounds = {
            name: _bounds(leaf)
            for name, leaf in leaves(spaces.action, "action")
            if isinstance(leaf, Box) and leaf.dtype.startswith("float")
        }
        self.spaces = spaces
        self.envs = env.envs
        self.frame_skip = env.frame_skip

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self._seeds = chosen_seeds(seeds, self._seeds)
        self._steps = 0
        self._order.begin()
        return self._checked(lambda: self._env.reset(self._seeds))

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        self._steps += 1
        within = {name: np.clip(action[name], low, high) for name, (low, high) in self._bounds.items()}
        return self._checked(lambda: self._env.step(slot, {**action, **within}))

    def close(self) -> None:
        self._env.close()

    def _checked(self, call: Callable[[], Decisions]) -> Decisions:
        verb = "step" if self._steps else "reset"
        try:
            decisions: Any = call()
        except EnvError:
            raise
        except Exception as error:
            raise EnvError.at(
                f"{verb} raised {type(error).__name__}: {error}", self._name, self._seeds[0], self._steps
            ) from error
        if not isinstance(decisions, Decisions):
            what = f"{verb} returned {type(decisions).__name__}, not rlctl_agents.types.experience.Decisions"
            raise EnvError.at(what, self._name, self._seeds[0], self._steps)
        found = fault(decisions, self.spaces, self.envs) or self._order.fault(decisions)
        found = found or self._frames.fault(decisions)
        if found is not None:
            raise EnvError.at(found[0], self._name, self._seeds[found[1]], self._steps)
        if decisions.info:
            decisions.info = {slot: info_numbers(told) for slot, told in decisions.info.items()}
        return decisions


def _bounds(leaf: Box) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lower and upper bound of each number of an action, infinite where there is none; in the leaf's shape."""
    pairs = [(-np.inf if low is None else low, np.inf if high is None else high) for low, high in leaf.bounds()]
    both = np.array(pairs, leaf.dtype).reshape(*leaf.shape, 2)
    return both[..., 0], both[..., 1]
