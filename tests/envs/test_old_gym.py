"""Environments written for the old Gym, or with answers that are no numbers, are told what Gymnasium wants."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TransformObservation

from rlctl_agents import envs
from rlctl_agents.envs import Env, EnvError, EnvRefused

HERE = __name__
BOX = spaces.Box(-1, 1, (2,), np.float32)
WANTED_STEP = "Gymnasium wants 5 (obs, reward, terminated, truncated, info): where the old Gym had done, return "
WANTED_RESET = "Gymnasium wants 2 (obs, info): return obs, {} where the old Gym had obs"
REWARDS: dict[str, Any] = {"none": None, "word": "win", "list": [1.0, 2.0], "pair": np.array([1.0, 2.0]), "dict": {}}


class Old(gymnasium.Env[Any, Any]):
    """Two numbers to see, two buttons; `old` names the method that answers as in the old Gym."""

    observation_space: spaces.Space[Any] = BOX
    action_space = spaces.Discrete(2)
    zeros: Any = np.zeros(2, np.float32)

    def __init__(self, old: str = "", reward: str = "") -> None:
        self.old = old
        self.reward = REWARDS[reward] if reward else 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.zeros if self.old == "reset" else (self.zeros, {})

    def step(self, action: Any) -> Any:
        if self.old == "step":
            return self.zeros, self.reward, False, {}
        if self.old == "flags":
            return self.zeros, self.reward, np.array([True, False]), False, {}
        return self.zeros, self.reward, False, False, {}


class OldNamed(Old):
    observation_space = spaces.Dict({"a": BOX, "b": BOX})
    zeros = {"a": Old.zeros, "b": Old.zeros}


class OldPair(Old):
    observation_space = spaces.Tuple((BOX, BOX))
    zeros = (Old.zeros, Old.zeros)


class Wide(Old):
    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    zeros = np.zeros(4, np.float32)


class Seedless(Old):
    def reset(self) -> Any:  # type: ignore[override]
        return self.zeros


class Stumbles(Old):
    """Fails by itself, with an error of the kind that a wrong call has."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return len(seed), {}  # type: ignore[arg-type]


class Uneven(Old):
    def step(self, action: Any) -> Any:
        one, two = [action]
        return one, two


class Foreign:
    """As if derived from `gym.Env`."""

    observation_space = BOX
    action_space = spaces.Discrete(2)


def seen_through(kind: str = "Old", **kwargs: Any) -> Any:
    """An environment in a wrapper that unpacks both answers."""
    env = {"Old": Old, "Wide": Wide, "Seedless": Seedless}[kind](**kwargs)
    return TransformObservation(env, lambda obs: obs, env.observation_space)


class OldVector(VectorEnv[Any, Any, Any]):
    """Simulates all environments at once; `wrong` names what it answers wrongly."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space = BOX
    single_action_space = spaces.Discrete(2)

    def __init__(self, num_envs: int, wrong: str = "") -> None:
        self.num_envs = num_envs
        self.wrong = wrong

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        obs = np.zeros((self.num_envs, 2), np.float32)
        return obs if self.wrong == "reset" else (obs, {})

    def step(self, actions: Any) -> Any:
        obs, no = np.zeros((self.num_envs, 2), np.float32), np.zeros(self.num_envs, np.bool_)
        reward: Any = {
            "none": [None] * self.num_envs,
            "one": 1.0,
            "list": [1] * self.num_envs,
        }.get(self.wrong, np.ones(self.num_envs))
        if self.wrong == "step":
            return obs, reward, no, {}
        return obs, reward, "no" if self.wrong == "flags" else no, no, {}


def used(env: Env) -> None:
    """Reset and step it once."""
    env.step(env.reset().slot, {"action": np.zeros(env.envs, np.int64)})


def told(name: str, *, kwargs: dict[str, Any] | None = None, limit: int | None = None) -> str:
    """Messages about two environments while they are used."""
    env = envs.make(f"{HERE}:{name}", envs=2, seeds=[7, 8], kwargs=kwargs, max_episode_steps=limit)
    with pytest.raises(EnvError) as caught:
        used(env)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "limit"), [("Old", None), ("Old", 5), ("seen_through", None), ("seen_through", 5), ("OldNamed", None)]
)
def test_a_step_of_four_values_is_named_also_below_wrappers(name: str, limit: int | None) -> None:
    said = told(name, kwargs={"old": "step"}, limit=limit)
    assert said.startswith(f"step returned 4 values; {WANTED_STEP}terminated")
    assert said.endswith(f"({HERE}:{name}, seed 7, step 1)")


def test_a_step_of_four_values_is_named_for_a_registered_environment() -> None:
    gymnasium.register("TinyOld-v0", entry_point=f"{HERE}:Old", max_episode_steps=3, kwargs={"old": "step"})
    try:
        said = told("TinyOld-v0")
    finally:
        gymnasium.registry.pop("TinyOld-v0")
    assert said.startswith(f"step returned 4 values; {WANTED_STEP}")


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("Old", "a ndarray"),  # of two numbers, that could be taken for obs and info
        ("Wide", "a ndarray"),
        ("OldNamed", "a dict"),
        ("OldPair", "2 values of which the second is no dict but a ndarray"),
    ],
)
@pytest.mark.parametrize("limit", [None, 5])
def test_a_reset_that_returns_only_the_observation_is_named(name: str, got: str, limit: int | None) -> None:
    said = told(name, kwargs={"old": "reset"}, limit=limit)
    assert said == f"reset returned {got}; {WANTED_RESET} ({HERE}:{name}, seed 7, step 0)"


def test_a_reset_that_returns_only_the_observation_is_named_below_a_wrapper_that_unpacks_it() -> None:
    said = told("seen_through", kwargs={"kind": "Wide", "old": "reset"})
    assert said == f"reset returned a ndarray; {WANTED_RESET} ({HERE}:seen_through, seed 7, step 0)"
    said = told("seen_through", kwargs={"kind": "Old", "old": "reset"})  # unpacked without complaint
    assert said.startswith("reset returned 2 values of which the second is no dict but a float32")


@pytest.mark.parametrize(("name", "kwargs"), [("Seedless", {}), ("seen_through", {"kind": "Seedless"})])
def test_a_reset_without_seed_is_named(name: str, kwargs: dict[str, Any]) -> None:
    assert told(name, kwargs=kwargs).startswith(
        "reset takes no seed and options; Gymnasium calls reset(seed=..., options=...): "
        "write def reset(self, *, seed=None, options=None), "
    )


def test_errors_of_the_environments_own_are_not_taken_for_the_old_gym() -> None:
    assert told("Stumbles").startswith("reset raised TypeError: object of type 'int' has no len()")
    for limit in (None, 5):
        assert told("Uneven", limit=limit).startswith("step raised ValueError: not enough values to unpack")


@pytest.mark.parametrize("reward", REWARDS)
def test_a_reward_that_is_no_number_is_named(reward: str) -> None:
    said = told("Old", kwargs={"reward": reward})
    shown = re.escape(repr(REWARDS[reward]))
    assert re.match(rf"step returned reward {shown}; Gymnasium wants one number: return a float \(.*seed 7, ste", said)


def test_flags_that_are_more_than_one_truth_are_named() -> None:
    said = told("Old", kwargs={"old": "flags"})
    assert said.startswith("step returned terminated array([ True, False]) and truncated False; Gymnasium wants one ")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("reset", f"reset returned a ndarray; {WANTED_RESET} ({HERE}:OldVector, seed 2754129475, step 0)"),
        ("step", f"step returned 4 values; {WANTED_STEP}"),
        ("none", "step returned reward object [2]; a vector of environments gives one number per environment: return "),
        ("one", "step returned reward float64 []; a vector"),
        ("flags", "step returned terminated <U2 []; a vector"),
    ],
)
def test_a_vector_of_environments_of_the_old_kind_is_named(wrong: str, words: str) -> None:
    assert told("OldVector", kwargs={"wrong": wrong}).startswith(words)


def test_a_vector_of_environments_may_give_lists() -> None:
    env = envs.make(f"{HERE}:OldVector", envs=2, seeds=[7, 8], kwargs={"wrong": "list"})
    decisions = env.step(env.reset().slot, {"action": np.zeros(2, np.int64)})
    assert decisions.reward.tolist() == [1, 1]
    assert decisions.reward.dtype == np.float32


def test_what_is_no_environment_of_gymnasiums_is_told_to_become_one() -> None:
    with pytest.raises(EnvRefused, match=r"gave a Foreign, not a gymnasium.Env: derive it from that class"):
        envs.make(f"{HERE}:Foreign", envs=1, seeds=[0])
