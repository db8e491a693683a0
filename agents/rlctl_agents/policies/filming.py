"""Films: single episodes as animated GIFs of bounded size, for the status page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from rlctl_agents import envs
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.envs.base import Env, EnvRefused, Renders
from rlctl_agents.policies.evaluate import played
from rlctl_agents.policies.show import gif, smaller
from rlctl_agents.runtime.closing import closed
from rlctl_agents.runtime.gauges import ENDLESS
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import MAX_FILM_BYTES, Film

MOST_FRAMES, MOST_PIXELS, MOST_PER_S = 300, 320, 15.0
"""Most frames, most pixels of the longer side, most frames per second."""
LONGEST_S = 60.0
"""Longest time of a film; a longer episode is shown faster."""


class Unwanted(Exception):
    """The episode is not wanted any more."""


class FilmRecorder:
    """Collects frames of an episode at equal distances: when there are too many, every second one is dropped."""

    def __init__(self, env: Renders) -> None:
        self._env = env
        self._every = max(1, math.ceil(env.frames_per_s / MOST_PER_S))
        self._steps = 0
        self._frames: list[Image.Image] = []

    def look(self) -> None:
        """Take the present frame, if one is due; called before each decision."""
        if self._steps % self._every == 0:
            self._take()
            if len(self._frames) > MOST_FRAMES:
                del self._frames[1::2]
                self._every *= 2
        self._steps += 1

    def end(self) -> tuple[bytes, float]:
        """Take the last frame; returns the film, and the seconds that it lasts.

        Raises:
            EnvRefused: the environment draws nothing, or two of its frames are already too large for a film.
        """
        self._take()
        frames, seconds = self._frames, min((self._steps + 1) / self._env.frames_per_s, LONGEST_S)
        while len(frames) > 1:
            film = gif(frames, seconds / len(frames))
            if len(film) <= MAX_FILM_BYTES:
                return film, seconds
            frames = [*frames[:-1:2], frames[-1]] if len(frames) > 2 else frames[:1]
        raise EnvRefused("its frames are too large" if frames else "it draws no frames for render_mode rgb_array")

    def _take(self) -> None:
        frame = self._env.frame()
        if frame is not None:
            self._frames.append(smaller(frame, MOST_PIXELS))


def drawing_env(section: Mapping[str, Any]) -> Env:
    """One environment that renders frames.

    Args:
        section: `env` of the spec, plain data.

    Raises:
        EnvRefused: it cannot be made so, or draws nothing.
    """
    env = envs.make_of(section, envs=1, seeds=[0], training=False, render_mode="rgb_array")
    if not isinstance(env, Renders):
        env.close()
        raise EnvRefused("the environment cannot be looked at")
    return env


def recorded(
    section: Mapping[str, Any],
    algorithm: Algorithm,
    *,
    seed: int,
    greedy: bool,
    progress: int,
    keep_going: Callable[[], bool],
    metrics: Metrics,
) -> Film:
    """Play an episode and film it.

    Args:
        section: `env` of the spec, plain data.
        seed: of environment and noise.
        progress: agent steps that the weights were learned from.
        keep_going: called before each decision; False ends the episode.
        metrics: counters of the process, by which the manager sees that it plays.

    Raises:
        EnvError: the environment failed.
        Unwanted: `keep_going` returned False.
    """
    env = drawing_env(section)
    with closed(env):
        try:
            assert isinstance(env, Renders)
            recorder = FilmRecorder(env)

            def watch() -> None:
                if not keep_going():
                    raise Unwanted
                recorder.look()

            games = played(env, algorithm, 1, seed=seed, greedy=greedy, progress=progress, watch=watch, metrics=metrics)
            film, seconds = recorder.end()
        finally:
            metrics.set(ENDLESS, 0.0)  # whether it has ended or not
    return Film(film, games.returns[0], games.lengths[0], round(seconds, 2))
