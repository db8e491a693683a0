"""Films of episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rlctl_agents.envs.base import EnvRefused
from rlctl_agents.policies import show


class Screen:
    """Shows a brighter frame each time."""

    frames_per_s = 25.0

    def __init__(self, size: tuple[int, int] = (60, 90), *, window: bool = False) -> None:
        self.size, self.window, self.level = size, window, 0

    def frame(self) -> NDArray[np.uint8] | None:
        self.level += 20
        return None if self.window else np.full((*self.size, 3), self.level, np.uint8)


def test_a_film_has_every_frame_and_the_length_of_the_episode(tmp_path: Path) -> None:
    film = show.EpisodeFrames(Screen())
    for _ in range(5):
        film.look()
    with Image.open(film.save(tmp_path / "a.gif")) as image:
        assert (image.size, image.n_frames, image.info["duration"]) == ((90, 60), 5, 40)  # type: ignore[attr-defined]
        for number in range(5):
            image.seek(number)
            assert image.convert("RGB").getpixel((1, 1)) == (20 * number + 20,) * 3
    with pytest.raises(FileExistsError):
        film.save(tmp_path / "a.gif")


def test_a_film_is_there_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    film = show.EpisodeFrames(Screen())
    film.look()

    def full(path: Path, data: Any) -> int:
        path.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            film.save(tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
    film.save(tmp_path / "a.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_large_frames_are_made_smaller_and_a_long_film_keeps_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "MOST_FRAMES", 3)
    film = show.EpisodeFrames(Screen((960, 240)))
    for _ in range(5):
        film.look()
    assert (film.seen, len(film.frames)) == (5, 3)
    assert film.frames[0].size == (120, 480)


def test_a_window_leaves_no_film(tmp_path: Path) -> None:
    film = show.EpisodeFrames(Screen(window=True))
    film.look()
    assert film.seen == 0
    with pytest.raises(EnvRefused, match="draws no frames"):
        film.save(tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []
