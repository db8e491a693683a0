"""Atari with the standard preprocessing, on ALE's own vector of environments.

The preset is what Gymnasium's `AtariPreprocessing` and `FrameStackObservation` compute (a test holds them equal, pixel
for pixel): four frames a step, the larger of the last two, grey, 84x84 by area, four of them stacked with zeros before
the first. No sticky actions, the game's own actions, whole games, raw rewards, no FIRE at reset, at most 108,000 frames
an episode. At reset 0 to 30 no-ops are played. Fields of the spec beside it replace these values: `frame_stack`,
`action_repeat`, `resize`, `episodic_life`.

Source: Mnih et al. 2015 (doi:10.1038/nature14236), methods; Machado et al. 2018, arXiv:1709.06009, on whole games.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from numpy.typing import NDArray

from rlctl_agents.envs.base import Env, EnvError, EnvRefused, RenderMode, Wrapping, chosen_seeds
from rlctl_agents.envs.gymnasium import Singles
from rlctl_agents.envs.registered import unknown
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Box, Discrete, Spaces

gymnasium.register_envs(ale_py)

STANDARD: dict[str, Any] = {
    "frameskip": 4,
    "stack_num": 4,
    "img_height": 84,
    "img_width": 84,
    "maxpool": True,
    "noop_max": 30,
    "repeat_action_probability": 0.0,
    "full_action_space": False,
    "use_fire_reset": False,
}
"""Options of the preset; `env.kwargs` may override them."""
EPISODE_FRAMES = 108_000  # half an hour of play at 60 frames a second


def make(
    id: str,
    envs: int,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    threads: int | None,
    frame_stack: int | None = None,
    wrapping: Wrapping = Wrapping(),  # noqa: B008, it is frozen
) -> Env:
    """Make the environments of an `ALE/` id with the preset atari.

    Raises:
        EnvRefused: no such game, or an option that the preset does not have.
    """
    game, options, frames = _options(id, kwargs, max_episode_steps, frame_stack, wrapping)
    try:
        threads = threads or int(os.environ.get("OMP_NUM_THREADS", "1"))
        return Atari(id, game, options, seeds, frames, threads, lives=wrapping.episodic_life)
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        raise EnvRefused(f"cannot make {id}: {error}") from error


def make_shown(
    id: str,
    seeds: Sequence[int],
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    frame_stack: int | None,
    wrapping: Wrapping,
    render_mode: RenderMode,
) -> tuple[Env, int]:
    """Make the same games by Gymnasium's `AtariPreprocessing`, one by one, for rendering: ALE's vector renders none.

    Returns:
        The environments, and the number of frames to stack.

    Raises:
        EnvRefused: as `make`; or FIRE at reset, or frames that are not pooled, which the wrapper does not have.
    """
    _, options, frames = _options(id, kwargs, max_episode_steps, frame_stack, wrapping)
    for name in ("use_fire_reset", "maxpool"):
        if options[name] != STANDARD[name]:
            raise EnvRefused(f"env.kwargs.{name}: {json.dumps(options[name])} cannot be looked at")

    def one() -> Any:
        made = gymnasium.make(
            id, frameskip=1, repeat_action_probability=options["repeat_action_probability"],
            full_action_space=options["full_action_space"], max_num_frames_per_episode=frames,
            disable_env_checker=True, render_mode=render_mode,
        )  # fmt: skip
        size = int(options["img_width"]), int(options["img_height"])
        one_by_one: Any = AtariPreprocessing(
            made, noop_max=int(options["noop_max"]), frame_skip=int(options["frameskip"]), screen_size=size
        )
        return one_by_one if options["stack_num"] > 1 else FrameStackObservation(one_by_one, 1)

    try:
        games = [one() for _ in seeds]
    except (TypeError, ValueError, gymnasium.error.Error) as error:
        raise EnvRefused(f"cannot make {id}: {error}") from error
    return Singles(id, games, seeds, frame_skip=int(options["frameskip"])), int(options["stack_num"])


def _options(
    id: str,
    kwargs: Mapping[str, Any],
    max_episode_steps: int | None,
    frame_stack: int | None,
    wrapping: Wrapping,
) -> tuple[str, dict[str, Any], int]:
    """Name of the game, the preset with the spec's overrides, and the frames of an episode.

    Raises:
        EnvRefused: as `make`.
    """
    try:
        game = gymnasium.spec(id).kwargs["game"]
    except gymnasium.error.UnregisteredEnv as error:
        raise EnvRefused(unknown(id)) from error
    except gymnasium.error.Error as error:
        raise EnvRefused(str(error)) from error
    odd = sorted(kwargs.keys() - STANDARD.keys())
    if odd:
        raise EnvRefused(f"env.kwargs.{odd[0]}: the preset atari has only {', '.join(sorted(STANDARD))}")
    if wrapping.wrappers:
        raise EnvRefused("env.wrappers: the preset atari steps its games together and takes none")
    height, width = wrapping.resize or (None, None)
    fields = {"frameskip": wrapping.action_repeat, "stack_num": frame_stack, "img_height": height, "img_width": width}
    options = {**STANDARD, **kwargs, **{name: value for name, value in fields.items() if value is not None}}
    frames = EPISODE_FRAMES if max_episode_steps is None else max_episode_steps * int(options["frameskip"])
    return game, options, frames


class Atari:
    """Vector of one game, stepped by ALE's own threads.

    Args:
        frames: most simulator frames of an episode.
        lives: True if each life is an episode. It begins with a no-op, as in DQN, and its stack shows no frame of the
            life before.
    """

    def __init__(
        self,
        name: str,
        game: str,
        options: dict[str, Any],
        seeds: Sequence[int],
        frames: int,
        threads: int,
        *,
        lives: bool = False,
    ) -> None:
        self._name = name
        self._seeds = list(seeds)
        # ALE draws from 0 to noop_max - 1
        noops = int(options["noop_max"])
        self._vector = AtariVectorEnv(
            game,
            len(self._seeds),
            **{**options, "noop_max": noops + 1 if noops > 0 else 0},
            max_num_frames_per_episode=frames,
            num_threads=threads,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            reward_clipping=False,
            episodic_life=False,  # ALE's own begins another game where a life is lost
            life_loss_info=lives,  # this one ends an episode there, and the game goes on
        )
        self._lives = lives
        self._late = np.zeros(len(self._seeds), np.bool_)  # ended with the first step of an episode
        self._shown = np.zeros(len(self._seeds), np.int64)  # frames of the present episode
        self._actions = len(self._vector.ale.get_action_set())
        self._slot = np.arange(len(self._seeds))
        self._ended = np.zeros(len(self._seeds), np.bool_)
        shape = tuple(int(options[name]) for name in ("stack_num", "img_height", "img_width"))
        self.spaces = Spaces(
            Box(shape, "uint8", 0.0, 255.0, stack=shape[0] if shape[0] > 1 else 0), Discrete(self._actions)
        )
        self.envs = len(self._seeds)
        self.frame_skip = int(options["frameskip"])

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self._seeds = chosen_seeds(seeds, self._seeds)
        obs, _ = self._vector.reset(seed=np.array(self._seeds, np.int32))
        no = self._ended = self._late = np.zeros(self.envs, np.bool_)
        self._shown[:] = 1
        return Decisions(self._slot, {"obs": obs}, np.zeros(self.envs, np.float32), no, no, ~no)

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        chosen: NDArray[Any] = action["action"]
        if chosen.min() < 0 or chosen.max() >= self._actions:
            # ALE's thread would crash, and the next receive would wait for ever
            raise ValueError(f"actions must be from 0 to {self._actions - 1}, got {chosen.tolist()}")
        try:
            if self._lives:
                chosen = np.where(self._ended, 0, chosen)
            obs, reward, terminated, truncated, info = self._vector.step(chosen)
        except RuntimeError as error:
            raise EnvError(f"step raised {error} ({self._name})") from error
        reward = reward.astype(np.float32)
        if self._lives:
            return self._of_lives(obs, reward, terminated, truncated, info["lives"])
        first, self._ended = self._ended, terminated | truncated
        return Decisions(self._slot, {"obs": obs}, reward, terminated, truncated, first)

    def _of_lives(self, obs: Any, reward: Any, terminated: Any, truncated: Any, lives: Any) -> Decisions:
        """Decisions where each life is an episode. One that ends with its first step does so with its next decision."""
        first, late = self._ended, self._late
        self._late = first & (terminated | truncated)
        life = terminated & ~first & ~late & (lives > 0)
        terminated, truncated = (terminated & ~first) | late, truncated & ~first
        self._ended = terminated | truncated
        self._shown = np.where(first, 1, self._shown + 1)
        for index in np.flatnonzero(self._shown < obs.shape[1]).tolist():
            obs[index, : obs.shape[1] - self._shown[index]] = 0
        reward = np.where(first, np.float32(0), reward)
        return Decisions(self._slot, {"obs": obs}, reward, terminated, truncated, first, life=life)

    def close(self) -> None:
        self._vector.close()
