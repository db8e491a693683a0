"""Environments by name. Only the modules of a family import its simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlctl_agents.envs.base import Env, EnvError, EnvRefused, RenderMode, Wrapping
from rlctl_agents.envs.names import attribute, family, takes_envs
from rlctl_agents.envs.stacking import Stacked

__all__ = ["Env", "EnvError", "EnvRefused", "Wrapping", "make", "make_of"]

PLAIN = Wrapping()


def make(
    id: str,
    *,
    envs: int,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any] | None = None,
    preset: Literal["none", "atari"] = "none",
    max_episode_steps: int | None = None,
    frame_stack: int | None = None,
    wrapping: Wrapping = PLAIN,
    threads: int | None = None,
    render_mode: RenderMode | None = None,
) -> Env:
    """A vector of `envs` environments of one kind, not reset yet.

    Args:
        id: a Gymnasium id (`CartPole-v1`, `ALE/Pong-v5`, `module:Id-v0`), or `module:attribute`: a class or a function
            that makes an `Env` if it takes an argument `envs`, a Gymnasium vector if it takes `num_envs`, else one
            Gymnasium environment.
        envs: number of environments side by side, at least 1.
        seeds: one per environment, from 0 to 2**31 - 1; `reset` may be given others.
        kwargs: passed to the environment's constructor unchanged.
        preset: `atari` is the standard preprocessing of an `ALE/` id.
        max_episode_steps: steps after which episodes are truncated; None: as the environment is registered.
        frame_stack: number of last frames to show; None: as the environment or the preset has it.
        wrapping: applied to each copy of a Gymnasium environment; a preset takes its fields as options.
        threads: threads of the simulator, where it has any; None: OMP_NUM_THREADS, else 1.
        render_mode: renders the first environment: the vector is a `base.Renders`, and slower.

    Raises:
        EnvRefused: it cannot be made as asked: unknown id, failing import, missing package, unsupported space.
        ValueError: envs or seeds out of range.
    """
    if envs < 1 or len(seeds) != envs:
        raise ValueError(f"one seed per environment and at least one environment, got envs={envs}, {len(seeds)} seeds")
    if any(not 0 <= seed < 2**31 for seed in seeds):
        raise ValueError(f"seeds must be from 0 to 2**31 - 1, got {list(seeds)}")
    arguments = dict(kwargs or {})
    if preset == "atari" and not id.startswith("ALE/"):
        raise EnvRefused(f"preset atari needs an id such as ALE/Pong-v5, got {id}")
    ale = family("ale") if id.startswith("ALE/") else None  # importing it registers the ids
    found = attribute(id)
    env: Env
    if ale is not None and preset == "atari":
        if render_mode is not None:
            return _stacked(
                *ale.make_shown(id, seeds, arguments, max_episode_steps, frame_stack, wrapping, render_mode)
            )
        env = ale.make(id, envs, seeds, arguments, max_episode_steps, threads, frame_stack, wrapping)
        return env
    if found is None:
        env = family("gymnasium").make(id, envs, seeds, arguments, max_episode_steps, wrapping, render_mode)
    elif takes_envs(found):
        if wrapping != PLAIN:
            raise EnvRefused(
                f"{id} steps all its environments itself: env.wrappers, action_repeat, episodic_life, grayscale and "
                "resize are for Gymnasium's; let it show what it shall show"
            )
        if render_mode is not None:
            raise EnvRefused(f"{id} steps all its environments itself, and shows none of them")
        env = family("own").make(id, found, envs, seeds, arguments, max_episode_steps)
    else:
        make_from = family("gymnasium").make_from
        env = make_from(id, found, envs, seeds, arguments, max_episode_steps, wrapping, render_mode)
    return _stacked(env, frame_stack)


def _stacked(env: Env, frames: int | None) -> Env:
    return env if frames in (None, 1) else Stacked(env, frames)


def make_of(
    section: Mapping[str, Any],
    *,
    envs: int,
    seeds: Sequence[int],
    training: bool = True,
    render_mode: RenderMode | None = None,
) -> Env:
    """Make the environments of the section `env` of a spec, given as plain data; see `make`.

    Args:
        training: False for whole games, as in evaluation.
        render_mode: see `make`.
    """
    fields = ("id", "kwargs", "preset", "max_episode_steps", "frame_stack")
    named = {key: section[key] for key in fields if key in section}
    wrapping = Wrapping(**{key: section[key] for key in Wrapping._fields if key in section})
    wrapping = wrapping._replace(episodic_life=wrapping.episodic_life and training, wrappers=tuple(wrapping.wrappers))
    return make(**named, wrapping=wrapping, envs=envs, seeds=seeds, render_mode=render_mode)
