"""Numbers that environments tell in `info` at the end of an episode."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlctl_agents import envs
from rlctl_agents.envs import EnvError
from rlctl_agents.envs.base import Env
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.figures import MAX_INFO, info_numbers
from tests.envs.tiny import Exam, Turns

HERE = __name__
ANY: Arrays = {"action": np.zeros((2, 2), np.int64)}


class Vector(SyncVectorEnv):
    def __init__(self, num_envs: int) -> None:
        super().__init__([partial(Exam, 2)] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


class Teller(Turns):
    """Tells something at each end, or where nothing ends."""

    def __init__(self, envs: int, hasty: bool = False) -> None:
        super().__init__(envs, stones=2)
        self.hasty = hasty

    def step(self, slot: Any, action: Arrays) -> Decisions:
        decisions = super().step(slot, action)
        ended = decisions.slot[decisions.terminated | decisions.truncated]
        told = decisions.slot if self.hasty else ended
        decisions.info = {number: {"score": float("nan"), "won": 1.0} for number in told.tolist()}
        return decisions


def ends(env: Env, steps: int) -> list[dict[int, dict[str, float]] | None]:
    env.reset([4, 5])
    return [env.step(np.arange(2), ANY).info for _ in range(steps)]


@pytest.mark.parametrize("made", [f"{HERE}:Vector", "tests.envs.tiny:Exam"])
def test_an_episode_tells_its_numbers_with_its_last_step_alone(made: str) -> None:
    env = envs.make(made, envs=2, seeds=[4, 5], kwargs={} if "Vector" in made else {"length": 2})
    first, second = {"is_success": 0.0, "score": 1.0}, {"is_success": 1.0, "score": 3.0}
    if "Vector" in made:  # seeded as a whole
        told = ends(env, 5)
        assert [one is None for one in told] == [True, False, True, True, False]
        assert told[1] is not None
        assert told[1].keys() == {0, 1}
        assert told[1][0].keys() == {"is_success", "score"}
    else:
        assert ends(env, 3) == [None, {0: first, 1: second}, None]


def test_numbers_are_finite_scalars_under_plain_names_and_few() -> None:
    info = {
        "truth": np.True_, "whole": 2, "small": np.int8(3), "array": np.array(4.0), "vector": np.ones(1), "text": "5",
        "none": None, "nan": float("nan"), "endless": float("inf"), "huge": 10**400, "complex": 1j, "with space": 1,
        "largest": sys.float_info.max, "": 1, "x" * 65: 1, 7: 1, "line\n": 1, "a/b.c-d_e": 6,
    }  # fmt: skip
    assert info_numbers(info) == {"truth": 1, "whole": 2, "small": 3, "array": 4, "a/b.c-d_e": 6}
    assert len(info_numbers({f"n{number}": number for number in range(1000)})) == MAX_INFO
    assert info_numbers(None) == info_numbers([1]) == {}


def test_an_environment_of_the_own_protocol_tells_numbers_of_slots_that_ended() -> None:
    env = envs.make(f"{HERE}:Teller", envs=1, seeds=[0])
    decisions = env.reset()
    while not decisions.info:
        decisions = env.step(decisions.slot, {"action": np.zeros(decisions.slot.size, np.int64)})
    assert decisions.info == {0: {"won": 1.0}, 1: {"won": 1.0}}
    hasty = envs.make(f"{HERE}:Teller", envs=1, seeds=[0], kwargs={"hasty": True})
    hasty.reset()
    with pytest.raises(EnvError, match="info of slot 1, whose episode does not end here"):
        hasty.step(np.arange(1), {"action": np.zeros(1, np.int64)})
