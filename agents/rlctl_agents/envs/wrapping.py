"""Wrapping of each Gymnasium environment by the spec: wrappers, repeated actions, lives, smaller images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from rlctl.spec import wrappers
from rlctl_agents.envs.base import EnvRefused, Wrapping
from rlctl_agents.envs.names import attribute, missing

LIFE = "_life_lost"
"""Key in `info` that marks an episode's end as the loss of a life alone."""
MASK = "action_mask"
"""Key in `info` of the mask of legal actions, as Gymnasium and PettingZoo name it; see `masks.flattened`."""
MASKS = "action_masks"
"""Method of an environment, or of a wrapper, that returns that mask, as sb3-contrib has it."""

_ARRAYS = ("RescaleAction", "RescaleObservation")
"""Wrappers of Gymnasium whose bounds for each entry are arrays; other sequences are tuples there."""


def around(env: Any, wrapping: Wrapping) -> Any:
    """The environment with all of its wrappers.

    Raises:
        EnvRefused: a wrapper does not exist, does not fit, or needs a missing package.
    """
    for number, one in enumerate(wrapping.wrappers):
        env = _wrapped(env, one["name"], one["kwargs"], f"env.wrappers[{number}]")
    if wrapping.repeats > 1:
        env = Repeated(env, wrapping.repeats)
    if wrapping.episodic_life:
        env = Lives(env)
    if wrapping.grayscale or wrapping.resize is not None:
        env = Screen(env, wrapping.grayscale, wrapping.resize)
    if env.has_wrapper_attr(MASKS) and callable(masks := env.get_wrapper_attr(MASKS)):
        env = Masked(env, masks)
    return env


def _wrapped(env: Any, name: str, kwargs: Mapping[str, Any], where: str) -> Any:
    if fault := wrappers.fault(name):
        raise EnvRefused(f"{where}: {fault}")
    try:
        kind = attribute(name) if ":" in name else getattr(gymnasium.wrappers, name, None)
    except EnvRefused as error:
        raise EnvRefused(f"{where}: {error}") from error
    if kind is None:
        raise EnvRefused(f"{where}: Gymnasium {gymnasium.__version__} has no {name}")
    if ":" not in name:
        kwargs = {key: _as_gymnasium_wants(value, arrays=name in _ARRAYS) for key, value in kwargs.items()}
    try:
        made = kind(env, **kwargs)
    except Exception as error:
        if isinstance(error, (ImportError, gymnasium.error.DependencyNotInstalled)):
            raise missing(f"{where}: {name}", error) from error
        raise EnvRefused(f"{where}: cannot wrap by {name}: {type(error).__name__}: {error}") from error
    if not isinstance(made, gymnasium.Env):
        raise EnvRefused(f"{where}: {name} gave a {type(made).__name__}: derive it from gymnasium.Wrapper")
    return made


def _as_gymnasium_wants(value: Any, *, arrays: bool) -> Any:
    """A list of a spec as a tuple, or as an array; other values as they are."""
    if not isinstance(value, list):
        return value
    if arrays:
        return np.array(value, np.float32)
    return tuple(_as_gymnasium_wants(one, arrays=False) for one in value)


class Repeated(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Action repeat: plays each action several times and sums the rewards; stops when the episode ends."""

    def __init__(self, env: Any, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Legal actions by the environment's method `action_masks()`: what it returns is put into `info`, unless that has a
    mask already, or the episode has terminated. One that was cut short has an observation to learn from.
    """

    def __init__(self, env: Any, masks: Callable[[], Any]) -> None:
        super().__init__(env)
        self._masks = masks

    def reset(self, **given: Any) -> Any:
        obs, info = self.env.reset(**given)
        return obs, self._told(info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, info if terminated else self._told(info)

    def _told(self, info: Any) -> Any:
        return {MASK: self._masks(), **info} if isinstance(info, Mapping) else {MASK: self._masks()}


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Episodic life: ends an episode with each lost life. The game goes on; only its end resets it.

    Source: Mnih et al. 2015, doi:10.1038/nature14236, methods, "training details".
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._lives = 0
        self._left: Any = None  # last observation and info of a game that goes on

    def reset(self, **given: Any) -> Any:
        left, self._left = self._left, None
        if left is None or given.get("seed") is not None:
            left = self.env.reset(**given)
            self._lives = self._counted(left[1])
        return left

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._counted(info)
        if 0 < lives < self._lives and not (terminated or truncated):
            self._left, terminated, info = (obs, info), True, {**info, LIFE: True}
        self._lives = lives
        return obs, reward, terminated, truncated, info

    def _counted(self, info: Any) -> int:
        if "lives" not in info:
            raise EnvRefused('env.episodic_life needs info["lives"], which this environment does not tell: remove it')
        return int(info["lives"])


class Entries(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Selected entries of a vector, as a CartPole without its velocities; `env.wrappers` names it by its path.

    Args:
        keep: indices of the entries, from 0, in the order in which they are shown.

    Raises:
        EnvRefused: the observation is not a vector, or has no such entry.
    """

    def __init__(self, env: Any, keep: Sequence[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        length = space.shape[0] if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 else 0
        if not keep or not all(isinstance(one, int) and 0 <= one < length for one in keep):
            raise EnvRefused(f"Entries shows some of the entries of a vector, by numbers below {length}: got {keep}")
        self._keep = list(keep)
        low, high = space.low[self._keep], space.high[self._keep]
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype)

    def observation(self, observation: Any) -> Any:
        return observation[self._keep]


class Screen(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Images in grey, or resized by area interpolation.

    Args:
        grayscale: True for [rows, columns] of luminance in place of three colours.
        resize: rows and columns; None: as they are.

    Raises:
        EnvRefused: the observation is not such an image, or the package that resizes is not installed.
    """

    def __init__(self, env: Any, grayscale: bool, resize: Sequence[int] | None) -> None:
        super().__init__(env)
        fields = " and ".join(["env.grayscale"] * grayscale + ["env.resize"] * (resize is not None))
        try:
            import cv2
        except ImportError as error:
            raise missing(fields, error) from error
        space = env.observation_space
        shape, dtype = getattr(space, "shape", None) or (), getattr(space, "dtype", None)
        if dtype != np.uint8 or len(shape) not in (2, 3) or (grayscale and shape[2:] != (3,)) or shape[2:] > (4,):
            wanted = (
                "rows, columns and 3 colours" if grayscale else "rows and columns, and channels last where it has any"
            )
            raise EnvRefused(f"{fields} needs an image as observation, bytes with {wanted}; got {space}")
        self._cv2, self._grayscale, self._resize = cv2, grayscale, resize
        size = shape[:2] if resize is None else tuple(resize)
        self.observation_space = gymnasium.spaces.Box(0, 255, size if grayscale else (*size, *shape[2:]), np.uint8)

    def observation(self, observation: Any) -> Any:
        image = observation
        if self._grayscale:
            image = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2GRAY)
        if self._resize is not None:
            image = self._cv2.resize(image, tuple(self._resize)[::-1], interpolation=self._cv2.INTER_AREA)
        return image.reshape(self.observation_space.shape)
