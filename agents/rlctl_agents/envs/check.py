"""Checks of environments: of one `Decisions`, and of every step of a random rollout."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.envs.base import Env, EnvError, not_finite
from rlctl_agents.envs.frames import Frames
from rlctl_agents.envs.masks import each_choice_has_one
from rlctl_agents.envs.order import Order
from rlctl_agents.types.experience import Array, Arrays, Decisions
from rlctl_agents.types.spaces import (
    Box,
    Discrete,
    Leaf,
    MultiBinary,
    MultiDiscrete,
    Space,
    Spaces,
    choices,
    leaf_array,
    leaves,
)


def fault(decisions: Decisions, spaces: Spaces, envs: int, *, all_wait: bool = True) -> tuple[str, int] | None:
    """Fault in one answer of an environment, by that answer alone.

    Args:
        all_wait: False for vectors that answer with the new episodes alone where some have ended.

    Returns:
        The fault in words and the number of its environment; None when there is none.
    """
    for name in ("slot", "reward", "terminated", "truncated", "first"):
        if not isinstance(value := getattr(decisions, name), np.ndarray):
            return f"{name} must be a NumPy array, got {type(value).__name__}", 0
    slot = decisions.slot
    if slot.dtype != np.int64 or slot.ndim != 1 or not slot.size or (slot[1:] <= slot[:-1]).any():
        return f"slots must be int64 and ascending, got {slot.dtype} {slot.tolist()}", 0
    if slot[0] < 0 or slot[-1] >= envs * spaces.seats:
        return f"slots must be from 0 to {envs * spaces.seats - 1}, got {slot.tolist()}", 0
    env = slot // spaces.seats
    # they ascend; finding the missing ones takes ten times as long
    if all_wait and 1 + np.count_nonzero(env[1:] != env[:-1]) < envs:
        return "nobody waits for an action", int(np.setdiff1d(np.arange(envs), env)[0])
    count = len(slot)
    if decisions.reward.dtype != np.float32 or decisions.reward.shape != (count,):
        return f"reward must be float32 [{count}], got {_looks(decisions.reward)}", 0
    for name in ("terminated", "truncated", "first"):
        flag: Array = getattr(decisions, name)
        if flag.dtype != np.bool_ or flag.shape != (count,):
            return f"{name} must be bool [{count}], got {_looks(flag)}", 0
    if not np.isfinite(decisions.reward).all():
        index = int((~np.isfinite(decisions.reward)).argmax())
        return f"step returned {not_finite(decisions.reward[index], 'reward')}", int(slot[index]) // spaces.seats
    ended = decisions.terminated | decisions.truncated
    for number in decisions.info or ():
        if number not in slot[ended]:
            return f"info of slot {number}, whose episode does not end here", 0
    if (life := decisions.life) is not None:
        if not isinstance(life, np.ndarray) or life.dtype != np.bool_ or life.shape != (count,):
            got = _looks(life) if isinstance(life, np.ndarray) else type(life).__name__
            return f"life must be bool [{count}], got {got}", 0
        if (life & ~ended).any():
            return "life is true where no episode ends", int(slot[(life & ~ended).argmax()]) // spaces.seats
    return _obs_fault(decisions, spaces) or _legal_fault(decisions, spaces, ended)


def _obs_fault(decisions: Decisions, spaces: Spaces) -> tuple[str, int] | None:
    slot, count = decisions.slot, len(decisions.slot)
    expected = dict(leaves(spaces.obs, "obs"))
    if decisions.obs.keys() != expected.keys():
        return f"observations must be {sorted(expected)}, got {sorted(decisions.obs)}", 0
    for name, leaf in expected.items():
        array: Any = decisions.obs[name]
        dtype, shape = leaf_array(leaf)
        if not isinstance(array, np.ndarray):
            return f"observation {name} must be a NumPy array, got {type(array).__name__}", 0
        if array.dtype != np.dtype(dtype) or array.shape != (count, *shape):
            return f"observation {name} must be {dtype} {[count, *shape]}, got {_looks(array)}", 0
        bad = outside(leaf, array).reshape(count, -1).any(axis=1)
        if bad.any():
            index = int(bad.argmax())
            got = array[index].tolist() if array[index].size <= 8 else "numbers"
            space = leaf.outer() if isinstance(leaf, Box) else leaf  # bounds of single entries would fill the screen
            return f"observation {name} holds {got} outside {space}", int(slot[index]) // spaces.seats
    return None


def _legal_fault(decisions: Decisions, spaces: Spaces, ended: NDArray[np.bool_]) -> tuple[str, int] | None:
    legal = decisions.legal
    if not spaces.legal:
        return None if legal is None else ("a mask of legal actions, but spaces.legal is false", 0)
    sizes = choices(spaces.action)
    if not sizes:
        return f"spaces.legal needs a Discrete or a MultiDiscrete in the action, got {spaces.action}", 0
    shape = (len(decisions.slot), sum(sizes))
    if not isinstance(legal, np.ndarray):
        return f"legal must be bool {list(shape)}, got {type(legal).__name__}", 0
    if legal.dtype != np.bool_ or legal.shape != shape:
        return f"legal must be bool {list(shape)}, got {_looks(legal)}", 0
    stuck = ~each_choice_has_one(legal, sizes) & ~ended
    if stuck.any():
        return "no action is legal", int(decisions.slot[stuck.argmax()]) // spaces.seats
    return None


def outside(leaf: Leaf, array: NDArray[Any]) -> NDArray[np.bool_]:
    """True for entries that are not finite, or not members of a finite set; the shape of `array`."""
    match leaf:
        case Box():
            return np.asarray(~np.isfinite(array))
        case Discrete() | MultiDiscrete():
            return np.asarray((array < 0) | (array >= np.array(leaf.n)))
        case MultiBinary():
            return np.asarray((array < 0) | (array > 1))


def _looks(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def sample(space: Space, rng: np.random.Generator, count: int, legal: NDArray[np.bool_] | None = None) -> Arrays:
    """Random actions: leaf name -> [count, ...]; each entry of a box within its bounds, or within 1 of 0.

    Args:
        legal: [count, options of all choices] bool, where the spaces have masks.
    """
    chosen: Arrays = {}
    at = 0  # first column of a leaf's masks
    for leaf_name, leaf in leaves(space, "action"):
        dtype, shape = leaf_array(leaf)
        value: NDArray[Any]
        match leaf:
            case Box():
                ranges = np.array([_drawn_from(low, high) for low, high in leaf.bounds()])
                value = rng.uniform(ranges[:, 0], ranges[:, 1], (count, len(ranges))).reshape(count, *shape)
            case Discrete() if legal is not None:
                value, at = _drawn(legal[:, at : at + leaf.n], rng), at + leaf.n
            case MultiDiscrete() if legal is not None:
                parts = np.split(legal[:, at : at + sum(leaf.n)], np.cumsum(leaf.n)[:-1], axis=1)
                value, at = np.stack([_drawn(part, rng) for part in parts], axis=1), at + sum(leaf.n)
            case Discrete():
                value = np.asarray(rng.integers(leaf.n, size=count))
            case MultiDiscrete():
                value = rng.integers(np.array(leaf.n), size=(count, *shape))
            case MultiBinary():
                value = rng.integers(2, size=(count, *shape))
        chosen[leaf_name] = value.astype(dtype)
    return chosen


def _drawn(legal: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """One legal action of each row, drawn uniformly; 0 where none is, as may be in a slot that has ended."""
    return np.asarray(np.where(legal, rng.random(legal.shape), -1.0).argmax(axis=1))


def _drawn_from(low: float | None, high: float | None) -> tuple[float, float]:
    """Range of one entry; a missing bound is 1 away from 0, or from the other bound where that lies beyond."""
    return (
        low if low is not None else min(-1.0, high - 1 if high is not None else 0.0),
        high if high is not None else max(1.0, low + 1 if low is not None else 0.0),
    )


@dataclass(frozen=True, slots=True)
class Drive:
    """Outcome of a random rollout of an environment."""

    decisions: int  # of all slots, final observations included
    episodes: int
    returns: tuple[float, ...]  # per finished episode of a slot, in order of their ends
    digest: int  # equal for equal drives


def check_env(env: Env, steps: int = 200, seeds: Sequence[int] | None = None, *, repeatable: bool = True) -> Drive:
    """Step an environment with random actions and check every answer against the protocol `Env`.

    Args:
        env: your own or any other; it is reset and not closed.
        steps: steps of one rollout; enough for a few episodes to end.
        seeds: one per environment; None: 0, 1, 2, ...
        repeatable: roll out twice and compare; False for a simulator that keeps state over a reset.

    Returns:
        The outcome; look at `episodes`: a rollout in which none ended has checked little.

    Raises:
        EnvError: the first fault, in words: shapes, types, flags, order of first and last decisions, stacked
            frames, or equal seeds and actions that lead to different decisions.
    """
    seeds = list(range(env.envs)) if seeds is None else list(seeds)
    once = _drive(env, steps, seeds)
    if repeatable and once != _drive(env, steps, seeds):
        raise EnvError(
            "equal seeds and equal actions led to different decisions: draw every random number from a generator that "
            "reset seeds, such as Gymnasium's self.np_random"
        )
    return once


def _drive(env: Env, steps: int, seeds: Sequence[int]) -> Drive:
    rng = np.random.default_rng(0)
    sums, returns = np.zeros(env.envs * env.spaces.seats), []
    order, frames = Order(env.envs, env.spaces.seats), Frames(env.spaces, env.envs)
    count = episodes = digest = 0
    all_wait = getattr(env, "all_wait", True)
    decisions = env.reset(seeds)
    for step in range(steps + 1):
        found = fault(decisions, env.spaces, env.envs, all_wait=all_wait)
        found = found or order.fault(decisions) or frames.fault(decisions)
        if found is not None:
            raise EnvError.at(found[0], type(env).__name__, seeds[found[1]], step)
        slot, ended = decisions.slot, decisions.terminated | decisions.truncated
        sums[slot] += decisions.reward
        returns += sums[slot[ended]].tolist()
        episodes += int(ended.sum())
        sums[slot[ended]] = 0
        count += len(slot)
        parts: list[Array] = [slot, decisions.reward, decisions.first, *decisions.obs.values()]
        for part in parts:
            digest = zlib.crc32(part.tobytes(), digest)
        if step < steps:
            action = sample(env.spaces.action, rng, len(slot), decisions.legal)
            decisions = env.step(slot.copy(), action)
    return Drive(count, episodes, tuple(returns), digest)
