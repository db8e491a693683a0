"""Wrapping of environments: wrappers, repeated actions, lives, grey and smaller images, stacks."""

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

from rlctl.spec.wrappers import FIT, UNFIT
from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.envs.base import Env
from rlctl_agents.envs.check import check_env, sample
from rlctl_agents.types.spaces import Box, Discrete

HERE, TINY = __name__, "tests.envs.tiny"


class Film(gymnasium.Env[Any, Any]):
    """Frame t is a colour image of which each pixel is t; three lives, one lost with every third step."""

    observation_space = gymnasium.spaces.Box(0, 255, (12, 8, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 1
        return self._frame(), {"lives": 3}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        lives = 3 - (self.now - 1) // 3
        return self._frame(), 1.0, lives == 0, False, {"lives": lives, "score": self.now}

    def _frame(self) -> Any:
        return np.full((12, 8, 3), self.now, np.uint8)


class Plus(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any, by: int = 1) -> None:
        super().__init__(env)
        self.by = by

    def observation(self, observation: Any) -> Any:
        return observation + np.float32(self.by)


def double(env: Any) -> Any:
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen * np.float32(2), env.observation_space)


def no_wrapper(env: Any) -> Any:
    return "a text"


def made(id: str, envs_: int = 1, *, training: bool = True, **section: Any) -> Env:
    section = {"id": id, "kwargs": {}, "preset": "none", "max_episode_steps": None, **section}
    section["wrappers"] = [
        {"name": one, "kwargs": {}} if isinstance(one, str) else one for one in section.get("wrappers", ())
    ]
    return envs.make_of(section, envs=envs_, seeds=list(range(envs_)), training=training)


def seen(env: Env, steps: int) -> list[list[float]]:
    """First pixel of each frame that is shown, of the first environment."""
    rows = [env.reset()]
    shown = []
    for _ in range(steps):
        obs: Any = rows[-1].obs["obs"]
        shown.append(obs[0].reshape(len(obs[0]), -1)[:, 0].tolist())
        rows.append(env.step(np.arange(env.envs), {"action": np.zeros(env.envs, np.int64)}))
    return shown


def test_wrappers_are_put_around_each_environment_in_their_order() -> None:
    plus = {"name": f"{HERE}:Plus", "kwargs": {"by": 3}}
    act = {"action": np.zeros((2, 2), np.int64)}
    for order, wanted in (([plus, f"{HERE}:double"], 8.0), ([f"{HERE}:double", plus], 5.0)):
        env = made(f"{TINY}:Clock", 2, wrappers=order)
        env.reset()
        assert env.step(np.arange(2), act).obs["obs"].tolist() == [[wanted], [wanted]]  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_gymnasiums_own_are_named_shortly() -> None:
    env = made("CartPole-v1", 2, wrappers=["TimeAwareObservation"], max_episode_steps=9)
    assert isinstance(env.spaces.obs, Box)
    assert env.spaces.obs.shape == (5,)
    env = made("Pendulum-v1", wrappers=[{"name": "RescaleAction", "kwargs": {"min_action": -0.5, "max_action": 0.5}}])
    assert env.spaces.action == Box((1,), "float32", -0.5, 0.5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TimeAwareObservatio", "has no wrapper TimeAwareObservatio; did you mean `TimeAwareObservation`"),
        ("NormalizeObservation", "its moments would stay in each process and in no checkpoint; use model.normalize"),
        (f"{HERE}:Pluss", "has no Pluss; did you mean Plus"),
        (f"{HERE}:no_wrapper", "no_wrapper gave a str: derive it from gymnasium.Wrapper"),
        ("gymnasium.wrappers.vector:ClipReward", "is for vectors"),
        ("ReshapeObservation", "cannot wrap by ReshapeObservation: TypeError.* missing"),
        ("no_such_module:Wrapper", r"env\.wrappers\[0\]: .*no_such_module"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_in_words(name: str, words: str) -> None:
    with pytest.raises(EnvRefused, match=words):
        made("CartPole-v1", wrappers=[name])


@pytest.mark.parametrize(
    ("id", "name", "kwargs", "shape"),
    [
        ("tests.envs.test_wrapping:Colours", "ResizeObservation", {"shape": [8, 6]}, (8, 6, 3)),
        ("CartPole-v1", "ReshapeObservation", {"shape": [2, 2]}, (2, 2)),
        ("CartPole-v1", "StickyAction", {"repeat_action_probability": 0.5, "repeat_action_duration": [1, 4]}, (4,)),
        ("Pendulum-v1", "RescaleAction", {"min_action": [-0.5], "max_action": [0.5]}, (3,)),
    ],
)
def test_sequences_of_a_spec_come_to_gymnasiums_wrappers_as_they_want_them(
    id: str, name: str, kwargs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    env = made(id, wrappers=[{"name": name, "kwargs": kwargs}])
    assert isinstance(env.spaces.obs, Box)
    assert env.spaces.obs.shape == shape
    check_env(env, steps=20)


class Colours(gymnasium.Env[Any, Any]):
    """Frames of 32 x 24 pixels."""

    observation_space = gymnasium.spaces.Box(0, 255, (32, 24, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((32, 24, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((32, 24, 3), np.uint8), 0.0, bool(self.np_random.random() < 0.1), False, {}


PICTURES, POLE, SWING, MIXED = f"{HERE}:Colours", "CartPole-v1", "Pendulum-v1", f"{TINY}:Mixed"
SHORT: dict[str, tuple[str, dict[str, Any]]] = {
    "AddRenderObservation": (POLE, {}),
    "AddWhiteNoise": (PICTURES, {"probability_of_noise_per_pixel": 0.5}),
    "AtariPreprocessing": ("ALE/Breakout-v5", {"noop_max": 1}),
    "ClipAction": (SWING, {}),
    "DelayObservation": (POLE, {"delay": 1}),
    "DiscretizeAction": (SWING, {"bins": 3}),
    "DiscretizeObservation": (SWING, {"bins": 3}),
    "FilterObservation": (MIXED, {"filter_keys": ["camera"]}),
    "FlattenObservation": (MIXED, {}),
    "GrayscaleObservation": (PICTURES, {}),
    "JaxToNumpy": (POLE, {}),
    "MaxAndSkipObservation": (POLE, {"skip": 2}),
    "ObstructView": (PICTURES, {"obstructed_pixels_ratio": 0.1, "obstruction_width": 2}),
    "RepeatAction": (POLE, {"num_repeats": 2}),
    "RescaleAction": (SWING, {"min_action": -0.5, "max_action": 0.5}),
    "RescaleObservation": (SWING, {"min_obs": [-1, -1, -1], "max_obs": [1, 1, 1]}),
    "ReshapeObservation": (POLE, {"shape": [2, 2]}),
    "ResizeObservation": (PICTURES, {"shape": [8, 6]}),
    "StickyAction": (POLE, {"repeat_action_probability": 0.5}),
    "TimeAwareObservation": (POLE, {}),
}


def test_every_wrapper_of_gymnasium_is_named_or_refused_with_its_reason() -> None:
    assert {*FIT, *UNFIT} == {*gymnasium.wrappers.__all__} - {"vector"}
    assert not {*FIT} & {*UNFIT}
    assert SHORT.keys() == {*FIT}


@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("name", SHORT)
def test_every_short_name_wraps_an_environment_that_fits(name: str) -> None:
    id, kwargs = SHORT[name]
    of_env: dict[str, Any] = {
        "AddRenderObservation": {"render_mode": "rgb_array"},
        "AtariPreprocessing": {"frameskip": 1},
    }
    section: dict[str, Any] = {
        "wrappers": [{"name": name, "kwargs": kwargs}],
        "kwargs": of_env.get(name, {}),
        "max_episode_steps": 9,
    }
    if name == "JaxToNumpy" and importlib.util.find_spec("jax") is None:
        with pytest.raises(EnvRefused, match=r"needs the package \w+, which is not installed"):
            made(id, **section)
        return
    env: Any = made(id, **section)
    assert type(env._singles[0]) is getattr(gymnasium.wrappers, name)
    if name != "JaxToNumpy":  # which is for simulators that compute with jax
        env.reset()
        env.step(np.arange(1), sample(env.spaces.action, np.random.default_rng(0), 1))
    env.close()


def test_own_protocol_vectors_and_the_preset_take_no_wrappers() -> None:
    with pytest.raises(EnvRefused, match=r"steps all its environments itself: env.wrappers"):
        made(f"{TINY}:Duel", wrappers=["ClipAction"])
    with pytest.raises(EnvRefused, match=r"is a vector: env.wrappers"):
        made("tests.envs.test_vectors:Next", wrappers=["ClipAction"])
    with pytest.raises(EnvRefused, match=r"the preset atari steps its games together"):
        made("ALE/Pong-v5", preset="atari", wrappers=["ClipAction"])


def test_some_entries_of_a_vector_are_shown_alone() -> None:
    entries = {"name": "rlctl_agents.envs.wrapping:Entries", "kwargs": {"keep": [2, 0]}}
    whole, env = made("CartPole-v1", 2, max_episode_steps=9), made("CartPole-v1", 2, wrappers=[entries])
    assert isinstance(env.spaces.obs, Box)
    assert env.spaces.obs.shape == (2,)
    assert (env.reset([5, 6]).obs["obs"][:, ::-1] >= -0.05).all()
    check_env(env, steps=20)
    whole.close()
    for keep in ([4], [], [0.5]):
        with pytest.raises(EnvRefused, match=r"Entries shows some of the entries of a vector, by numbers below 4"):
            made("CartPole-v1", wrappers=[entries | {"kwargs": {"keep": keep}}])


def test_an_action_is_repeated_until_the_episode_ends_and_rewards_are_summed() -> None:
    env = made(f"{TINY}:Clock", kwargs={"length": 100}, action_repeat=3, max_episode_steps=2)
    act: Any = {"action": np.zeros((1, 2), np.int64)}
    env.reset()
    decisions = [env.step(np.arange(1), act) for _ in range(2)]
    assert env.frame_skip == 3
    assert [one.reward.item() for one in decisions] == [3, 3]
    assert decisions[1].truncated.all(), "max_episode_steps counts decisions"
    short = made(f"{TINY}:Clock", kwargs={"length": 2}, action_repeat=3)
    short.reset()
    assert short.step(np.arange(1), act).reward.item() == 2


def test_images_become_grey_and_smaller_and_stack() -> None:
    env = made(f"{HERE}:Film", 2, grayscale=True, resize=[6, 4], frame_stack=3)
    assert env.spaces.obs == Box((3, 6, 4), "uint8", 0.0, 255.0, stack=3)
    assert seen(env, 5) == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert seen(env, 1) == [[0, 0, 1]], "what was shown before a reset is forgotten"
    assert isinstance(made(f"{HERE}:Film", resize=[6, 4]).spaces.obs, Box)
    check_env(env, steps=40)


def test_colour_images_stack_with_an_axis_for_the_frames() -> None:
    env = made(f"{HERE}:Film", 2, resize=[6, 4], frame_stack=3)
    assert env.spaces.obs == Box((3, 6, 4, 3), "uint8", 0.0, 255.0, stack=3)
    assert seen(env, 4) == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    check_env(env, steps=40)


def test_stacks_equal_those_of_gymnasium_padded_with_zeros() -> None:
    ours = made("CartPole-v1", 1, frame_stack=4, max_episode_steps=6)
    alone = made("CartPole-v1", 1, max_episode_steps=6)
    theirs: Any = FrameStackObservation(gymnasium.make("CartPole-v1"), 4, padding_type="zero")
    assert isinstance(ours.spaces.obs, Box)
    assert ours.spaces.obs.shape == theirs.observation_space.shape
    wanted: list[Any] = []
    one, other = ours.reset([5]), alone.reset([5])
    for step in range(20):
        if one.first.any():
            wanted = [np.zeros(4, np.float32)] * 3
        wanted.append(other.obs["obs"][0].copy())
        np.testing.assert_array_equal(one.obs["obs"][0], np.stack(wanted[-4:]))
        act: Any = {"action": np.array([step % 2])}
        one, other = ours.step(np.arange(1), act), alone.step(np.arange(1), act)


def test_seats_in_turn_are_stacked_each_for_itself() -> None:
    check_env(made(f"{TINY}:Turns", 3, frame_stack=2), steps=60)
    check_env(made(f"{TINY}:Mixed", 2, frame_stack=2), steps=30)


def test_a_stack_that_cannot_be_is_refused() -> None:
    with pytest.raises(EnvRefused, match=r"env.frame_stack needs numbers in the observation"):
        made("FrozenLake-v1", frame_stack=4)
    with pytest.raises(EnvRefused, match=r"env.grayscale and env.resize needs an image as observation.*Box\("):
        made("CartPole-v1", grayscale=True, resize=[84, 84])


def test_each_life_is_an_episode_of_training_and_none_of_evaluation() -> None:
    env = made(f"{HERE}:Film", grayscale=True, frame_stack=2, episodic_life=True)
    decisions, rows = env.reset(), []
    for _ in range(13):
        rows.append((decisions.obs["obs"][0, :, 0, 0].tolist(), decisions.terminated.item(), decisions.first.item()))
        if decisions.terminated.any():
            goes_on = decisions.life is not None and bool(decisions.life.item())
            assert goes_on == (len(rows) != 12)
            assert (decisions.info == {}) == goes_on, "a life has no score"
        decisions = env.step(np.arange(1), {"action": np.zeros(1, np.int64)})
    assert rows[:6] == [
        ([0, 1], False, True), ([1, 2], False, False), ([2, 3], False, False), ([3, 4], True, False),
        ([0, 4], False, True), ([4, 5], False, False),
    ]  # fmt: skip
    assert rows[11:] == [([9, 10], True, False), ([0, 1], False, True)]
    whole = made(f"{HERE}:Film", grayscale=True, episodic_life=True, training=False)
    assert [end for end, at in enumerate(seen(whole, 12)) if at[0] == 10] == [9]
    with pytest.raises(
        EnvError, match=r'env.episodic_life needs info\["lives"\], which this environment does not tell'
    ):
        made("CartPole-v1", episodic_life=True).reset()


def test_the_preset_takes_the_fields_and_its_lives_are_episodes() -> None:
    section = {"frame_stack": 3, "action_repeat": 2, "resize": [42, 40], "episodic_life": True}
    env = made("ALE/Breakout-v5", 2, preset="atari", **section)
    assert env.spaces.obs == Box((3, 42, 40), "uint8", 0.0, 255.0, stack=3)
    assert env.frame_skip == 2
    assert isinstance(env.spaces.action, Discrete)
    check_env(env, steps=250)  # stacks begin with zeros, first decisions bring no reward
    decisions, lives, games, rng = env.reset(), 0, 0, np.random.default_rng(0)
    for _ in range(500):
        assert decisions.life is None or not (decisions.life & ~decisions.terminated).any()
        ended = decisions.terminated | decisions.truncated
        life = np.zeros(2, np.bool_) if decisions.life is None else decisions.life
        lives, games = lives + int(life.sum()), games + int((ended & ~life).sum())
        decisions = env.step(decisions.slot, {"action": rng.integers(4, size=2)})
    env.close()
    assert games >= 1
    assert lives >= 4 * games, "five lives make a game"
