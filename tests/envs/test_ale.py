"""The preset atari against Gymnasium's reference wrappers, pixel for pixel."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rlctl_agents import envs
from rlctl_agents.envs import EnvRefused
from rlctl_agents.types.spaces import Box, Discrete

SEEDS = [3, 4]


class NoopStart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Plays the no-ops that it is told before each episode."""

    def __init__(self, env: Any, noops: Iterator[int]) -> None:
        super().__init__(env)
        self.noops = noops

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        for _ in range(next(self.noops)):
            obs, _, _, _, info = self.env.step(0)
        return obs, info


def reference(id: str, noops: list[list[int]], frames: int) -> SyncVectorEnv:
    """As in ale_py's own documentation, with the no-ops under our control."""

    def one(index: int) -> Any:
        game = gymnasium.make(
            id, frameskip=1, repeat_action_probability=0.0, max_num_frames_per_episode=frames, disable_env_checker=True
        )
        prepared = AtariPreprocessing(NoopStart(game, iter(noops[index])), noop_max=0)
        return FrameStackObservation(prepared, stack_size=4, padding_type="zero")

    return SyncVectorEnv([partial(one, index) for index in range(len(noops))], autoreset_mode=AutoresetMode.NEXT_STEP)


def played_noops(game: str, native_noop_max: int, actions: list[Any]) -> list[list[int]]:
    """Numbers of no-ops that ALE draws before each episode of each environment, by the frame number after its reset."""
    twin = AtariVectorEnv(
        game,
        len(SEEDS),
        noop_max=native_noop_max,
        use_fire_reset=False,
        reward_clipping=False,
        num_threads=1,
    )
    _, info = twin.reset(seed=np.array(SEEDS))
    noops = [[int(frame)] for frame in info["episode_frame_number"]]
    ended = np.zeros(len(SEEDS), np.bool_)
    for action in actions:
        _, _, terminated, truncated, info = twin.step(action)
        for index in np.flatnonzero(ended):
            noops[index].append(int(info["episode_frame_number"][index]))
        ended = terminated | truncated
    twin.close()
    return noops


@pytest.mark.parametrize(
    ("game", "id", "noop_max", "steps", "max_episode_steps"),
    [
        ("breakout", "ALE/Breakout-v5", 30, 450, None),
        ("pong", "ALE/Pong-v5", 0, 150, 60),
    ],
)
def test_the_preset_equals_the_reference_wrappers_pixel_for_pixel(
    game: str, id: str, noop_max: int, steps: int, max_episode_steps: int | None
) -> None:
    ours = envs.make(
        id, envs=2, seeds=SEEDS, kwargs={"noop_max": noop_max}, preset="atari", max_episode_steps=max_episode_steps
    )
    assert isinstance(ours.spaces.action, Discrete)
    rng = np.random.default_rng(0)
    actions = [rng.integers(ours.spaces.action.n, size=2) for _ in range(steps)]
    native_noop_max = noop_max + 1 if noop_max else 0
    noops = played_noops(game, native_noop_max, actions) if max_episode_steps is None else [[0] * 9, [0] * 9]
    theirs = reference(id, noops, 108_000 if max_episode_steps is None else 4 * max_episode_steps)

    decisions = ours.reset()
    obs, _ = theirs.reset(seed=[*SEEDS])
    np.testing.assert_array_equal(decisions.obs["obs"], obs)
    ends, first = 0, np.ones(2, np.bool_)
    for action in actions:
        np.testing.assert_array_equal(decisions.first, first)
        first = decisions.terminated | decisions.truncated
        decisions = ours.step(decisions.slot, {"action": action})
        obs, reward, terminated, truncated, _ = theirs.step(action)
        np.testing.assert_array_equal(decisions.obs["obs"], obs)
        np.testing.assert_array_equal(decisions.reward, reward)
        np.testing.assert_array_equal(decisions.terminated, terminated)
        np.testing.assert_array_equal(decisions.truncated, truncated)
        ends += int((terminated | truncated).sum())
    assert ends >= 3
    if noop_max:
        assert len({count for of_env in noops for count in of_env}) > 2
    ours.close()
    theirs.close()


def test_the_preset_says_what_it_shows_and_how_many_frames_a_step_takes() -> None:
    env = envs.make("ALE/MsPacman-v5", envs=1, seeds=[0], preset="atari")
    assert env.spaces.obs == Box((4, 84, 84), "uint8", 0.0, 255.0, stack=4)
    assert env.spaces.action == Discrete(9)  # the game's own; all of Atari's would be 18
    assert env.frame_skip == 4
    decisions = env.reset()
    rewards = []
    for _ in range(150):
        decisions = env.step(decisions.slot, {"action": np.array([3])})
        rewards.append(float(decisions.reward[0]))
    env.close()
    assert max(rewards) >= 10  # a pill; rewards are raw


def test_without_the_preset_atari_is_gymnasiums_own_environment() -> None:
    env = envs.make("ALE/Pong-v5", envs=2, seeds=SEEDS)
    assert env.spaces.obs == Box((210, 160, 3), "uint8", 0.0, 255.0)
    assert env.frame_skip == 4
    assert env.reset().obs["obs"].shape == (2, 210, 160, 3)
    env.close()


def test_an_action_that_ale_does_not_know_is_refused_before_its_thread_dies_of_it() -> None:
    env = envs.make("ALE/Pong-v5", envs=2, seeds=SEEDS, preset="atari")
    decisions = env.reset()
    with pytest.raises(ValueError, match=r"actions must be from 0 to 5, got \[0, 6\]"):
        env.step(decisions.slot, {"action": np.array([0, 6])})
    env.close()


def test_the_preset_refuses_other_ids_unknown_games_and_foreign_options() -> None:
    with pytest.raises(EnvRefused, match="preset atari needs an id such as ALE/Pong-v5, got CartPole-v1"):
        envs.make("CartPole-v1", envs=1, seeds=[0], preset="atari")
    with pytest.raises(EnvRefused, match="Pongg"):
        envs.make("ALE/Pongg-v5", envs=1, seeds=[0], preset="atari")
    with pytest.raises(EnvRefused, match=r"env\.kwargs\.obs_type: the preset atari has only frameskip"):
        envs.make("ALE/Pong-v5", envs=1, seeds=[0], preset="atari", kwargs={"obs_type": "ram"})


def test_ale_is_the_version_whose_no_op_draw_we_correct() -> None:
    # a native noop_max of 2 draws 0 or 1; should ALE come to draw up to 2, the preset must not add 1 any longer
    env = AtariVectorEnv("pong", 8, noop_max=2, use_fire_reset=False, num_threads=1)
    _, info = env.reset(seed=0)
    env.close()
    assert set(info["episode_frame_number"].tolist()) == {0, 1}, ale_py.__version__
