"""Stacked frames that do not look as their Box promises."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl_agents import envs
from rlctl_agents.envs import Env, EnvError
from rlctl_agents.envs.check import check_env
from rlctl_agents.envs.frames import SELDOM
from rlctl_agents.envs.own import STACKS_CHECKED
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Box, Discrete, Spaces

PADDED = "observation obs of slot 1 begins an episode with older frames that are not zeros; pad with zeros"
STALE = "observation obs of slot 1 does not show the frames of its last decision moved on by one"


class Stacked:
    """Numbered frames, three at a time; environment 1 is wrong from some answer on. Episodes have 5 decisions."""

    frame_skip = 1
    spaces = Spaces(Box((3, 2), "float32", stack=3), Discrete(2))

    def __init__(self, envs: int, wrong: str = "", since: int = 0) -> None:
        self.envs, self.wrong, self.since = envs, wrong, since

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self.answers, self.obs = 0, np.zeros((self.envs, 3, 2), np.float32)
        return self._decisions()

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        self.answers += 1
        return self._decisions()

    def close(self) -> None:
        pass

    def _decisions(self) -> Decisions:
        now, wrong = self.answers % 5, self.wrong if self.answers >= self.since else ""
        stays = self.obs[1].copy()
        self.obs[:, :-1] = 0 if now == 0 else self.obs[:, 1:]
        if wrong == "padded" and now == 0:
            self.obs[1, :-1] = self.answers + 1
        elif wrong == "stale" and now == 3:
            self.obs[1] = stays
        self.obs[:, -1] = self.answers + 1
        no = np.zeros(self.envs, np.bool_)
        return Decisions(
            np.arange(self.envs), {"obs": self.obs.copy()}, np.zeros(self.envs, np.float32), no | (now == 4), no,
            no | (now == 0),
        )  # fmt: skip


def made(wrong: str, since: int) -> Env:
    return envs.make(f"{__name__}:Stacked", envs=2, seeds=[8, 9], kwargs={"wrong": wrong, "since": since})


def drive(env: Env, answers: int) -> None:
    decisions = env.reset()
    for _ in range(answers):
        decisions = env.step(decisions.slot, {"action": np.zeros(2, np.int64)})


def test_frames_as_promised_are_fine() -> None:
    check_env(Stacked(2), 20)
    drive(made("", 0), STACKS_CHECKED + 20 * SELDOM)


@pytest.mark.parametrize(("wrong", "words"), [("padded", PADDED), ("stale", STALE)])
def test_the_check_sees_frames_that_are_not_as_promised(wrong: str, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        check_env(Stacked(2, wrong, since=400), 420)


@pytest.mark.parametrize(("wrong", "words"), [("padded", PADDED + ".*seed 9, step 0"), ("stale", STALE + ".*step 3")])
def test_so_does_a_training_in_its_first_steps(wrong: str, words: str) -> None:
    with pytest.raises(EnvError, match=words):
        drive(made(wrong, 0), 20)


def test_a_training_looks_at_the_beginning_of_episodes_for_ever() -> None:
    with pytest.raises(EnvError, match=PADDED):
        drive(made("padded", STACKS_CHECKED + 50), STACKS_CHECKED + 100)


def test_a_training_looks_into_episodes_for_ever_at_samples() -> None:
    with pytest.raises(EnvError, match=STALE):  # a tenth of all pairs is wrong: found but for one time in 10^20
        drive(made("stale", STACKS_CHECKED + 50), STACKS_CHECKED + 450 * SELDOM)
