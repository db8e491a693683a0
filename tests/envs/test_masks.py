"""Masks of legal actions, in the forms that Gymnasium gives them."""

from __future__ import annotations

import bdb
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.envs.base import Rests
from rlctl_agents.envs.check import check_env
from rlctl_agents.envs.convert import to_ours
from rlctl_agents.envs.masks import MaskError, flattened
from tests.envs.tiny import Step

HERE = __name__
I8 = np.int8
SPACES: dict[str, Any] = {
    "multi": MultiDiscrete([2, 3]),
    "flat": MultiDiscrete([2, 3]),
    "grid": MultiDiscrete([[2, 2], [3, 2]]),
    "dict": Dict({"b": Discrete(3, start=1), "a": MultiDiscrete([2, 3]), "aim": Box(-1, 1, (1,))}),
    "tuple": Tuple((Discrete(2), Box(-1, 1, (2,)), Discrete(3))),
}
MASKS: dict[str, Any] = {
    "multi": (np.array([1, 0], I8), np.array([0, 1, 1], I8)),
    "flat": np.array([1, 0, 0, 1, 1], I8),
    "grid": ((np.array([1, 0], I8), np.array([1, 1], I8)), (np.array([0, 0, 1], I8), np.array([0, 1], I8))),
    "dict": {"b": np.array([1, 0, 1], I8), "a": (np.array([0, 1], I8), np.array([1, 1, 0], I8)), "aim": None},
    "tuple": (None, None, np.array([0, 0, 1], I8)),
}
FLAT = {
    "multi": "10 011", "flat": "10 011", "grid": "10 11 001 01", "dict": "01 110 101", "tuple": "11 001",
}  # fmt: skip


class Masked(gymnasium.Env[Any, Any]):
    """Episodes of four steps; refuses what its mask does."""

    observation_space = Box(0, 9, (1,), np.float32)

    def __init__(self, kind: str, mask: Any = ...) -> None:
        self.action_space = SPACES[kind]
        self.kind, self.mask = kind, MASKS[kind] if mask is ... else mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(1, np.float32), {"action_mask": self.mask}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action)
        chosen = {
            "multi": lambda: action[0] == 0 and action[1] in (1, 2),
            "flat": lambda: action[0] == 0 and action[1] in (1, 2),
            "grid": lambda: action[0, 0] == 0 and (action[1] == [2, 1]).all(),
            "dict": lambda: action["b"] in (1, 3) and action["a"][0] == 1 and action["a"][1] < 2,
            "tuple": lambda: action[2] == 2,
        }[self.kind]
        assert chosen(), "an illegal action"
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, self.now == 4, False, {"action_mask": self.mask}


class ByMethod(Masked):
    """Tells its mask as sb3-contrib's environments do; there is none to tell once an episode has ended."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {}

    def step(self, action: Any) -> Step:
        return *super().step(action)[:4], {}

    def action_masks(self) -> Any:
        assert self.now < 4
        return self.mask


def test_a_game_that_is_cut_short_has_a_mask_of_the_observation_that_is_learned_from() -> None:
    env = envs.make(f"{HERE}:ByMethod", envs=1, seeds=[0], kwargs={"kind": "multi"}, max_episode_steps=2)
    slot = env.reset().slot
    action = {"action": np.array([[0, 1]])}
    decisions = env.step(slot, action)
    decisions = env.step(decisions.slot, action)
    assert decisions.truncated.tolist() == [True]
    assert decisions.legal is not None
    assert decisions.legal.tolist() == [[True, False, False, True, True]]


class Left(Masked):
    """One in whose reset a debugger is left."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        raise bdb.BdbQuit


def test_a_debugger_that_is_left_while_masks_are_looked_for_is_left() -> None:
    with pytest.raises(EnvRefused, match="q at a breakpoint ended its reset") as fault:
        envs.make(f"{HERE}:Left", envs=1, seeds=[0], kwargs={"kind": "multi"})
    assert isinstance(fault.value.__cause__, bdb.BdbQuit)


class Pair(SyncVectorEnv):
    """A vector that keeps masks as Gymnasium's vectors do."""

    def __init__(self, num_envs: int, kind: str) -> None:
        super().__init__([lambda: Masked(kind)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else list(range(self.num_envs)), options=options)


class Board(gymnasium.Env[Any, Any]):
    """A game of one step, then of two: at its end nothing is legal."""

    observation_space, action_space = Box(0, 9, (1,), np.float32), Discrete(2)

    def __init__(self) -> None:
        self.games = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.games, self.left = self.games + 1, 1 + (seed or 0) % 2
        return np.zeros(1, np.float32), {"action_mask": np.ones(2, I8)}

    def step(self, action: Any) -> Step:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, not self.left, False, {"action_mask": np.full(2, self.left > 0, I8)}


def test_a_game_that_ended_without_a_legal_action_rests_while_others_go_on() -> None:
    env = envs.make(f"{HERE}:Board", envs=2, seeds=[0, 1])
    assert isinstance(env, Rests)
    slot = env.reset().slot
    decisions = env.step(slot, {"action": np.zeros(2, np.int64)})
    assert decisions.terminated.tolist() == [True, False]
    env.rest(np.array([0]))
    decisions = env.step(slot, {"action": np.zeros(2, np.int64)})
    assert decisions.terminated.tolist() == [False, True]


@pytest.mark.parametrize("name", ["Masked", "ByMethod", "Pair"])
@pytest.mark.parametrize("kind", SPACES)
def test_masks_of_several_choices_are_those_of_the_actions_that_are_chosen(kind: str, name: str) -> None:
    env = envs.make(f"{HERE}:{name}", envs=2, seeds=[0, 1], kwargs={"kind": kind})
    assert env.spaces.legal
    legal = env.reset().legal
    assert legal is not None
    wanted = [digit == "1" for digit in FLAT[kind] if digit != " "]
    assert legal.tolist() == [wanted, wanted]
    assert check_env(env, 30).episodes > 4, "random legal actions, which the environment itself looks at"
    env.close()


@pytest.mark.parametrize(
    ("kind", "mask", "words"),
    [
        ("multi", np.ones(4, I8), r"int8 \[4\], expected bool or int8 \[5\]"),
        ("multi", (np.ones(3, I8), np.ones(2, I8)), r"int8 \[3\], expected bool or int8 \[2\] for action\[0\]"),
        ("multi", (np.ones(2, I8),) * 3, r"3 masks, expected a tuple of 2 or one array \[5\]"),
        ("multi", 0.5, r"a float, expected bool or int8 \[5\]"),
        ("dict", np.ones(8, I8), r"int8 \[8\], expected a dict with keys of \['a', 'aim', 'b'\]"),
        ("dict", {"c": np.ones(3, I8)}, r"a dict with \['c'\], expected a dict with keys of"),
        ("dict", {"b": np.ones(2, I8)}, r"int8 \[2\], expected bool or int8 \[3\] for action.b"),
        ("dict", {"aim": np.ones(1, I8)}, r"int8 \[1\] of action.aim, which cannot be masked: give None, or no key"),
        ("tuple", (None, None), r"a tuple of 2, expected a tuple of 3"),
    ],
)
def test_a_mask_of_another_form_is_refused_in_words(kind: str, mask: Any, words: str) -> None:
    with pytest.raises(MaskError, match=words):
        flattened(to_ours(SPACES[kind], "action"), mask)
    env = envs.make(f"{HERE}:Masked", envs=1, seeds=[7], kwargs={"kind": kind, "mask": mask})
    with pytest.raises(EnvError, match=rf"reset returned info\[.action_mask.\] {words}.* with every reset and step"):
        env.reset()


def test_an_entry_without_a_legal_option_is_a_fault() -> None:
    mask = (np.ones(2, I8), np.zeros(3, I8))
    env = envs.make(f"{HERE}:Masked", envs=1, seeds=[7], kwargs={"kind": "multi", "mask": mask})
    with pytest.raises(EnvError, match="reset returned action_mask without any legal action"):
        env.reset()


class Continuous(gymnasium.Env[Any, Any]):
    observation_space = Box(0, 9, (1,), np.float32)

    def __init__(self, bits: bool = False) -> None:
        self.action_space: Any = MultiBinary(3) if bits else Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {"action_mask": np.ones(2, I8)}


@pytest.mark.parametrize("bits", [False, True])
def test_a_mask_of_what_cannot_be_masked_is_refused_and_not_forgotten(bits: bool) -> None:
    env = envs.make(f"{HERE}:Continuous", envs=1, seeds=[0], kwargs={"bits": bits})
    with pytest.raises(
        EnvRefused,
        match=r'tells info\["action_mask"\], or has action_masks\(\), but its action, .*, cannot be masked: only',
    ):
        env.reset()
