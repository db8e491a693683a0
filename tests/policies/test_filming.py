"""Films of episodes: whole, of bounded size, at the speed of the episode unless it is long."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rlctl_agents.envs.base import EnvRefused
from rlctl_agents.policies import filming
from rlctl_agents.policies.filming import LONGEST_S, MOST_FRAMES, MOST_PIXELS, FilmRecorder
from rlctl_agents.types.control import MAX_FILM_BYTES


class Noise:
    """Draws what cannot be made small: each frame is another."""

    def __init__(self, frames_per_s: float = 10.0, size: tuple[int, int] = (40, 60), *, draws: bool = True) -> None:
        self.frames_per_s, self.size, self.draws = frames_per_s, size, draws
        self.drawn = 0
        self._random = np.random.default_rng(0)

    def frame(self) -> NDArray[np.uint8] | None:
        self.drawn += 1
        return self._random.integers(0, 256, (*self.size, 3), np.uint8) if self.draws else None


def film(env: Noise, decisions: int) -> tuple[Any, float]:
    """GIF of an episode, and the seconds that are told."""
    recorder = FilmRecorder(env)
    for _ in range(decisions):
        recorder.look()
    data, seconds = recorder.end()
    assert len(data) <= MAX_FILM_BYTES
    return Image.open(io.BytesIO(data)), seconds


def test_a_short_episode_is_recorded_whole_and_as_fast_as_it_was() -> None:
    image, seconds = film(Noise(), 20)
    assert (image.n_frames, image.info["duration"], image.size) == (21, 100, (60, 40))
    assert seconds == pytest.approx(2.1)


def test_frames_that_are_not_taken_are_not_drawn() -> None:
    env = Noise(60.0)
    image, seconds = film(env, 240)
    assert env.drawn == image.n_frames == 61
    assert seconds == pytest.approx(4.0, abs=0.1)


def test_a_long_episode_is_shown_whole_within_a_minute() -> None:
    env = Noise(10.0, (4, 4))
    image, seconds = film(env, 10_000)
    assert MOST_FRAMES / 2 < image.n_frames <= MOST_FRAMES + 1
    assert seconds == pytest.approx(LONGEST_S)
    assert env.drawn < 4 * MOST_FRAMES, "of an episode that becomes longer, fewer frames are drawn"


def test_large_frames_are_made_smaller_and_too_large_a_film_has_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filming, "MAX_FILM_BYTES", 300_000)
    image, seconds = film(Noise(10.0, (400, 640)), 20)
    assert image.size == (MOST_PIXELS, MOST_PIXELS * 400 // 640)
    assert 1 < image.n_frames < 15
    assert seconds == pytest.approx(2.1, abs=0.5), "it lasts as long"


def test_what_draws_nothing_or_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvRefused, match="draws no frames"):
        film(Noise(draws=False), 5)
    monkeypatch.setattr(filming, "MAX_FILM_BYTES", 1000)
    with pytest.raises(EnvRefused, match="too large"):
        film(Noise(), 5)
