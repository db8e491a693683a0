"""`python -m rlctl_agents play`: episodes with a stored model, one after the other, in a window or as animated GIFs.

The request comes on stdin, one JSON object:

    {"folder": "model", "env": {...}, "episodes": 3, "mode": "greedy", "seed": 7, "video": "out/name" or null}

A reply is a line of JSON for each episode: `{"episode": 1, "seed": 7, "return": ..., "length": ..., "file": ...}`.
Frames are the simulator's own, whatever the policy observes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rlctl_agents import envs
from rlctl_agents.envs.base import EnvRefused, RenderMode, Renders
from rlctl_agents.policies.answering import NoModel, answer, answering, require_spaces, stored_model, writing
from rlctl_agents.policies.evaluate import played
from rlctl_agents.runtime.closing import closed

MOST_PIXELS = 480
"""Most pixels of the longer side of a GIF: larger frames are made smaller."""
MOST_FRAMES = 5000
"""Most frames of a GIF, which is made in memory; a longer episode keeps the first ones."""
SHORTEST_MS = 20
"""Shortest time between two frames; viewers show shorter ones slower."""


def main(_: Sequence[str] = ()) -> int:
    """Run the command; returns its exit code."""
    return answering(_show)


def _show(question: Mapping[str, Any], answers: TextIO) -> None:
    described, algorithm = stored_model(question)
    video, mode = question["video"], question["mode"]
    render_mode: RenderMode = "human" if video is None else "rgb_array"
    try:
        env = envs.make_of(question["env"], envs=1, seeds=[0], training=False, render_mode=render_mode)
    except EnvRefused as error:
        if "render_mode" not in str(error):
            raise
        told = "; to be looked at, a class of your own takes render_mode as an argument of its constructor"
        raise EnvRefused(f"{error}{told}") from error
    with closed(env):
        require_spaces(env, described)
        if not isinstance(env, Renders):
            raise EnvRefused("the environment cannot be looked at")
        for number in range(int(question["episodes"])):
            seed = int(question["seed"]) + number
            to = None if video is None else Path(f"{video}-{seed}.gif")
            if to is not None and to.exists():
                raise NoModel(f"{to} is there, and is not overwritten")
            film = EpisodeFrames(env)
            games = played(
                env, algorithm, 1, seed=seed, greedy=mode == "greedy", progress=described.steps, watch=film.look
            )
            film.look()
            file = "" if to is None else str(film.save(to))
            found = {"episode": number + 1, "seed": seed, "return": games.returns[0], "length": games.lengths[0]}
            answer(answers, {**found, "file": file, "frames": film.seen, "kept_frames": len(film.frames)})


class EpisodeFrames:
    """Frames of one episode."""

    def __init__(self, env: Renders) -> None:
        self._env = env
        self.frames: list[Image.Image] = []
        self.seen = 0

    def look(self) -> None:
        """Take the present frame; there is none to take from a window."""
        frame = self._env.frame()
        if frame is None:
            return
        self.seen += 1
        if len(self.frames) < MOST_FRAMES:
            self.frames.append(smaller(frame))

    def save(self, file: Path) -> Path:
        """Write them as a GIF, which lasts as long as the episode.

        Raises:
            EnvRefused: the simulator drew nothing.
            FileExistsError: the file is there.
            OSError: it cannot be written.
        """
        if not self.frames:
            raise EnvRefused("the environment draws no frames for render_mode rgb_array")
        data = gif(self.frames, 1.0 / self._env.frames_per_s)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            with writing(file):
                unfinished.write_bytes(data)  # as a whole: a file that is cut short would stand in the way of the next
            os.link(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
        return file


def gif(frames: Sequence[Image.Image], frame_s: float) -> bytes:
    """Encode frames as an animated GIF that loops.

    Args:
        frames: at least one.
        frame_s: seconds that each frame is shown, at least `SHORTEST_MS`.
    """
    data = io.BytesIO()
    duration_ms = max(SHORTEST_MS, round(1000 * frame_s))
    frames[0].save(
        data, "GIF", save_all=True, append_images=frames[1:], duration=duration_ms, loop=0, optimize=False
    )  # fmt: skip
    return data.getvalue()


def smaller(frame: NDArray[np.uint8], most: int = MOST_PIXELS) -> Image.Image:
    """Scale a frame down to at most `most` pixels on its longer side, and to 256 colours."""
    image = Image.fromarray(frame)
    image.thumbnail((most, most))
    return image.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
