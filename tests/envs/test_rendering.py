"""Environments that can be looked at: those that are trained with, one by one, with the simulator's frames."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.envs.base import Renders


class Drawn(gymnasium.Env[Any, Any]):
    """Draws what it is told to."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata: Any = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, drawn: Any = None, render_mode: str | None = None) -> None:
        self.drawn, self.render_mode = drawn, render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def render(self) -> Any:
        if isinstance(self.drawn, str):
            raise RuntimeError(self.drawn)
        return np.array(self.drawn) if isinstance(self.drawn, list) else self.drawn


class Windowless(Drawn):
    metadata = {"render_modes": ["rgb_array"]}


class Unstated(Drawn):
    metadata = {}


class Undrawn(Drawn):
    """Has never heard of it."""

    def __init__(self) -> None:
        super().__init__()


NAME = f"{__name__}:Drawn"


@pytest.mark.parametrize(
    ("section", "size", "per_s"),
    [
        ({"id": "CartPole-v1"}, (400, 600, 3), 50.0),
        ({"id": "CartPole-v1", "frame_stack": 3}, (400, 600, 3), 50.0),
        ({"id": "ALE/Breakout-v5", "preset": "atari"}, (210, 160, 3), 30.0),
        ({"id": "ALE/Breakout-v5", "preset": "atari", "frame_stack": 1, "resize": [60, 72]}, (210, 160, 3), 30.0),
    ],
)
def test_frames_are_the_simulators_and_spaces_those_of_training(
    section: dict[str, Any], size: tuple[int, ...], per_s: float
) -> None:
    shown = envs.make_of(section, envs=1, seeds=[3], render_mode="rgb_array", training=False)
    trained = envs.make_of(section, envs=1, seeds=[3])
    assert isinstance(shown, Renders)
    assert (shown.spaces, shown.frame_skip, shown.frames_per_s) == (trained.spaces, trained.frame_skip, per_s)
    decisions = shown.reset()
    before = shown.frame()
    for _ in range(12):
        decisions = shown.step(decisions.slot, {"action": np.ones(1, np.int64)})
    after = shown.frame()
    assert before is not None
    assert after is not None
    assert (after.shape, after.dtype) == (size, np.uint8)
    assert (before != after).any()
    shown.close()
    trained.close()


@pytest.mark.parametrize(
    ("drawn", "why"),
    [
        ("no screen", "RuntimeError: no screen"),
        ([[1.0]], "render returned float64"),
        (np.zeros((2, 2, 4), np.uint8), "4"),
    ],
)
def test_what_is_no_frame_is_told(drawn: Any, why: str) -> None:
    env = envs.make_of({"id": NAME, "kwargs": {"drawn": drawn}}, envs=1, seeds=[3], render_mode="rgb_array")
    assert isinstance(env, Renders)
    env.reset()
    with pytest.raises(EnvError, match=why):
        env.frame()


@pytest.mark.parametrize("kwargs", [{}, {"drawn": [[1.0]]}, {"render_mode": "rgb_array"}])
def test_a_window_has_no_frames(kwargs: dict[str, Any]) -> None:
    env = envs.make_of({"id": NAME, "kwargs": kwargs}, envs=1, seeds=[3], render_mode="human")
    assert isinstance(env, Renders)
    env.reset()
    assert env.frame() is None
    assert env.frames_per_s == 30.0


def test_a_window_that_would_not_open_is_refused_and_frames_are_not() -> None:
    section = {"id": f"{__name__}:Windowless", "kwargs": {"drawn": np.zeros((2, 2, 3), np.uint8)}}
    with pytest.raises(
        EnvRefused, match=r"Windowless has no render mode human, only rgb_array: .*--video DIR makes GIFs"
    ):
        envs.make_of(section, envs=1, seeds=[3], render_mode="human")
    shown = envs.make_of(section, envs=1, seeds=[3], render_mode="rgb_array")
    assert isinstance(shown, Renders)
    assert shown.frame() is not None
    assert isinstance(envs.make_of({"id": f"{__name__}:Unstated"}, envs=1, seeds=[3], render_mode="human"), Renders)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"id": f"{__name__}:Undrawn"}, "render_mode"),
        ({"id": "tests.envs.test_frames:Stacked"}, "steps all its environments itself"),
        ({"id": "ALE/Breakout-v5", "preset": "atari", "kwargs": {"use_fire_reset": True}}, "cannot be looked at"),
        ({"id": "ALE/Breakout-v5", "preset": "atari", "kwargs": {"maxpool": False}}, "maxpool: false cannot be looked"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(section: dict[str, Any], why: str) -> None:
    with pytest.raises(EnvRefused, match=why):
        envs.make_of(section, envs=1, seeds=[3], render_mode="rgb_array")
