"""Environments of the user's own that speak our protocol: several seats."""

from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest

from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiDiscrete, Spaces, Tuple
from tests.envs.tiny import Duel, Turns

HERE = __name__
TINY = "tests.envs.tiny"


class Wobbly(Duel):
    """Breaks in environment 1, or as a whole, at step 2."""

    def __init__(self, envs: int, how: str) -> None:
        super().__init__(envs)
        self.how, self.steps = how, 0

    def step(self, slot: Any, action: Any) -> Any:
        self.steps += 1
        decisions = super().step(slot, action)
        if self.steps == 2 and self.how == "reward":
            decisions.reward[3] = np.inf
        elif self.steps == 2 and self.how == "obs":
            decisions.obs["obs"][2] = np.nan
        elif self.steps == 2:
            raise OSError(self.how)
        return decisions


class Bare:
    def __init__(self, envs: int) -> None:
        self.envs = envs


def fewer(envs: int) -> Turns:
    return Turns(envs - 1)


def strange_spaces(envs: int) -> Any:
    env: Any = Turns(envs)
    env.spaces = {"obs": 3}
    return env


def short_of_bounds(envs: int) -> Any:
    env: Any = Turns(envs)
    env.spaces = Spaces(env.spaces.obs, Box((3,), "float32", (-1.0, 0.0), 1.0))
    return env


def foreign_space(envs: int) -> Any:
    env: Any = Turns(envs)
    env.spaces = Spaces(gymnasium.spaces.Discrete(2), env.spaces.action)  # type: ignore[arg-type]
    return env


def numpys_spaces(envs: int) -> Any:
    env: Any = Turns(envs)
    obs, action = env.spaces.obs, gymnasium.spaces.Discrete(4)
    env.spaces = Spaces(obs, MultiDiscrete([action.n, np.int32(2)]), seats=np.int64(2), legal=False)  # type: ignore[arg-type]
    return env


def odd_dtype(envs: int) -> Any:
    env: Any = Turns(envs)
    env.spaces = Spaces(Box([4], np.float32), Box((1,), object()))  # type: ignore[arg-type]
    return env


def wrong_size(envs: int) -> Any:
    env: Any = Turns(envs)
    env.spaces = Spaces(env.spaces.obs, Discrete("2"))  # type: ignore[arg-type]
    return env


class Reach(Duel):
    """Keeps the actions that it is given; the second number has no upper bound."""

    def __init__(self, envs: int, answers: str = "") -> None:
        super().__init__(envs)
        self.spaces = msgspec.structs.replace(self.spaces, action=Box((2,), "float32", -1.0, (1.0, None)))
        self.answers, self.given = answers, np.zeros(0)

    def step(self, slot: Any, action: Any) -> Any:
        self.given = action["action"]
        decisions = super().step(slot, {"action": np.zeros(len(slot), np.int64)})
        if self.answers == "tuple":
            return 0.0, False
        if self.answers:
            setattr(decisions, self.answers, getattr(decisions, self.answers).tolist())
        return decisions


def test_numbers_of_an_action_lie_within_their_bounds() -> None:
    env: Any = envs.make(f"{HERE}:Reach", envs=1, seeds=[0])
    decisions = env.reset()
    sampled = np.array([[-3.0, 7.0], [0.5, -1.5]], np.float32)
    env.step(decisions.slot, {"action": sampled})
    assert env._env.given.tolist() == [[-1.0, 7.0], [0.5, -1.0]]
    assert env._env.given.dtype == np.float32
    assert sampled[0, 0] == -3.0, "what is recorded is the sample"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("tuple", "step returned tuple, not rlctl_agents.types.experience.Decisions"),
        ("slot", "slot must be a NumPy array, got list"),
        ("reward", "reward must be a NumPy array, got list"),
        ("first", "first must be a NumPy array, got list"),
    ],
)
def test_answers_of_another_kind_are_refused_with_seed_and_step(answers: str, words: str) -> None:
    env = envs.make(f"{HERE}:Reach", envs=1, seeds=[5], kwargs={"answers": answers})
    decisions = env.reset()
    with pytest.raises(EnvError, match=rf"{words} .*seed 5, step 1"):
        env.step(decisions.slot, {"action": np.zeros((2, 2), np.float32)})


def test_bounds_that_do_not_fit_the_shape_are_refused() -> None:
    with pytest.raises(EnvRefused, match="low of a Box must be one number or one per entry, got 2 for 3"):
        envs.make(f"{HERE}:short_of_bounds", envs=1, seeds=[0])


@pytest.mark.parametrize("high", [np.inf, np.nan, [1.0, 1.0], (1.0, np.inf)])
def test_a_bound_is_a_finite_number_or_nothing(high: Any) -> None:
    with pytest.raises(ValueError, match="high of a Box must be a finite number"):
        Box((2,), "float32", 0.0, high)


@pytest.mark.parametrize("encoding", [msgspec.json, msgspec.msgpack])
def test_bounds_of_single_entries_survive_the_wire(encoding: Any) -> None:
    box = Box((2, 2), "float32", (-1.0, 0.0, None, 2.0), (1.0, 1000.0, None, None))
    spaces = Spaces(Dict({"a": box, "b": Box((2,), "float32", -1.0, (2.0, None))}), Tuple((box, Box((3,), "float32"))))
    assert encoding.decode(encoding.encode(spaces), type=Spaces) == spaces
    with pytest.raises(msgspec.ValidationError, match="one number or one per entry"):
        encoding.decode(encoding.encode({"type": "box", "shape": [3], "dtype": "float32", "low": [1.0]}), type=Box)


def test_spaces_in_numbers_of_numpy_are_plain_ones() -> None:
    spaces = envs.make(f"{HERE}:numpys_spaces", envs=2, seeds=[0, 1]).spaces
    assert msgspec.json.decode(msgspec.json.encode(spaces), type=Spaces) == spaces
    assert (spaces.action, spaces.seats) == (MultiDiscrete((4, 2)), 2)


def test_two_seats_in_turn_see_their_own_rewards_and_legal_moves() -> None:
    env = envs.make(f"{TINY}:Turns", envs=1, seeds=[0], kwargs={"stones": 2})  # always 2 stones
    assert env.spaces.seats == 2
    decisions = env.reset()
    assert decisions.slot.tolist() == [0]
    decisions = env.step(decisions.slot, {"action": np.array([0])})  # seat 0 takes one of two
    assert decisions.slot.tolist() == [1]
    assert decisions.first.tolist() == [True]
    assert decisions.legal is not None
    assert decisions.legal.tolist() == [[True, False]]
    decisions = env.step(decisions.slot, {"action": np.array([0])})  # seat 1 takes the last one
    assert decisions.slot.tolist() == [0, 1]
    assert decisions.reward.tolist() == [-1, 1]
    assert decisions.terminated.tolist() == [True, True]
    decisions = env.step(decisions.slot, {"action": np.array([0, 0])})
    assert decisions.slot.tolist() == [0]
    assert decisions.first.tolist() == [True]
    decisions = env.step(decisions.slot, {"action": np.array([1])})  # takes both: seat 1 never played, so is not told
    assert decisions.slot.tolist() == [0]
    assert decisions.reward.tolist() == [1]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("reward", "step returned infinite reward; .*seed 12, step 2"),
        ("obs", r"observation obs holds \[nan.*seed 12, step 2"),
        ("no disk", "step raised OSError: no disk .*seed 11, step 2"),
    ],
)
def test_a_fault_of_ones_own_environment_names_seed_and_step(how: str, words: str) -> None:
    env = envs.make(f"{HERE}:Wobbly", envs=2, seeds=[11, 12], kwargs={"how": how})
    decisions = env.reset()
    answered: dict[str, Any] = {"action": np.zeros(4, np.int64)}
    env.step(decisions.slot, answered)
    with pytest.raises(EnvError, match=rf"{words}\)$"):
        env.step(decisions.slot, answered)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Bare", {}, "Bare has no spaces, frame_skip, reset, step, close; see rlctl_agents.envs.base.Env"),
        ("fewer", {}, "asked for 2 environments, its envs says 1"),
        ("strange_spaces", {}, "spaces must be rlctl_agents.types.spaces.Spaces, got dict"),
        ("foreign_space", {}, r"spaces.obs must be one of rlctl_agents.types.spaces, got gymnasium.spaces.discrete"),
        ("odd_dtype", {}, "spaces: Cannot interpret"),
        ("wrong_size", {}, "spaces: Expected `int`, got `str`"),
        ("Wobbly", {}, "TypeError: .*missing 1 required positional argument: 'how'"),
        ("fewer", {"max_episode_steps": 9}, "cuts its own episodes: give it their length in env.kwargs"),
    ],
)
def test_what_is_no_environment_of_the_protocol_is_refused_in_words(
    name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(EnvRefused, match=words):
        envs.make(f"{HERE}:{name}", envs=2, seeds=[0, 1], **options)
