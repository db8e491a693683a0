"""Every family obeys the protocol, and the check sees one that does not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlctl_agents import envs
from rlctl_agents.envs import EnvError
from rlctl_agents.envs.check import check_env, fault, sample
from rlctl_agents.types.experience import Arrays, Decisions
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Tuple
from tests.envs.tiny import Duel, Turns

FAMILIES: list[tuple[str, dict[str, Any], int]] = [
    ("CartPole-v1", {}, 120),  # registered as a batched simulator
    ("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv", {}, 120),
    ("Acrobot-v1", {"max_episode_steps": 25}, 60),
    ("Pendulum-v1", {"max_episode_steps": 25}, 60),
    ("LunarLander-v3", {"max_episode_steps": 40}, 100),
    ("BipedalWalker-v3", {"max_episode_steps": 40}, 50),
    ("ALE/Pong-v5", {"preset": "atari", "max_episode_steps": 20}, 50),
    ("tests.envs.tiny:Reach", {}, 50),
    ("tests.envs.tiny:Memory", {}, 50),
    ("tests.envs.tiny:Mixed", {}, 50),
    ("tests.envs.tiny:Clock", {}, 50),
    ("tests.envs.tiny:Turns", {}, 100),
    ("tests.envs.tiny:Duel", {}, 50),
]


@pytest.mark.parametrize(("id", "options", "steps"), FAMILIES, ids=[id for id, _, _ in FAMILIES])
def test_every_family_obeys_the_protocol_and_its_seeds(id: str, options: dict[str, Any], steps: int) -> None:
    env = envs.make(id, envs=3, seeds=[5, 6, 7], **options)
    repeatable = id != "BipedalWalker-v3"  # keeps its Box2D world over a reset; a fresh one repeats
    drive = check_env(env, steps, seeds=[1, 2, 3], repeatable=repeatable)
    assert drive.episodes >= 3
    env.close()

    other = envs.make(id, envs=3, seeds=[1, 2, 3], **options)
    assert check_env(other, steps, seeds=[1, 2, 3], repeatable=repeatable) == drive
    if "Clock" not in id and "Duel" not in id and "Pong" not in id:  # those are the same whatever the seed
        assert check_env(other, steps, seeds=[1, 2, 4], repeatable=False) != drive
    other.close()


@pytest.mark.parametrize("id", [id for id, _, _ in FAMILIES])
def test_decisions_around_an_episodes_end_follow_next_step_autoreset(id: str) -> None:
    options = next(options for name, options, _ in FAMILIES if name == id)
    env = envs.make(id, envs=2, seeds=[1, 2], **options)
    rng = np.random.default_rng(0)
    decisions = env.reset()
    assert decisions.first.all()
    ended: set[int] = set()
    seen = 0
    for _ in range(120):
        answered = decisions.slot.tolist()
        decisions = env.step(decisions.slot, sample(env.spaces.action, rng, len(decisions.slot), decisions.legal))
        for index, slot in enumerate(decisions.slot.tolist()):
            if slot in answered and slot in ended:
                assert decisions.first[index]
                assert decisions.reward[index] == 0
                assert not decisions.terminated[index]
                assert not decisions.truncated[index]
                seen += 1
        ended = set(decisions.slot[decisions.terminated | decisions.truncated].tolist())
    assert seen >= 2
    env.close()


class Bent:
    """Another environment, with its answers changed on their way out."""

    def __init__(self, env: Any, bend: Callable[[Decisions, int], Decisions]) -> None:
        self.env, self.bend = env, bend
        self.spaces, self.envs, self.frame_skip = env.spaces, env.envs, env.frame_skip
        self.steps = 0

    def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
        self.steps = 0
        return self.bend(self.env.reset(seeds), 0)

    def step(self, slot: NDArray[np.int64], action: Arrays) -> Decisions:
        self.steps += 1
        return self.bend(self.env.step(slot, action), self.steps)

    def close(self) -> None:
        pass


def nan_reward(decisions: Decisions, step: int) -> Decisions:
    reward = decisions.reward.copy()
    reward[-1] = np.nan if step == 3 else reward[-1]
    return replace(decisions, reward=reward)


def doubled(decisions: Decisions, step: int) -> Decisions:
    reward: Any = decisions.reward.astype(np.float64)
    return replace(decisions, reward=reward)


BENDS: list[tuple[str, Callable[[Decisions, int], Decisions]]] = [
    (r"slots must be int64 and ascending", lambda d, _: replace(d, slot=d.slot[::-1])),
    (r"slots must be from 0 to 3", lambda d, _: replace(d, slot=d.slot + 1)),
    (r"reward must be float32 \[4\], got float64 \[4\]", doubled),
    (r"step returned NaN reward \(Bent, seed 1, step 3\)", nan_reward),
    (r"observations must be \['obs'\], got \['sight'\]", lambda d, _: replace(d, obs={"sight": d.obs["obs"]})),
    (r"observation obs must be float32 \[4, 7\]", lambda d, _: replace(d, obs={"obs": d.obs["obs"][:, :6]})),
    (r"observation obs must be a NumPy array, got list", lambda d, _: replace(d, obs={"obs": d.obs["obs"].tolist()})),
    (r"is not marked as first", lambda d, step: replace(d, first=d.first & (step < 2))),
    (r"is marked as first, but its episode goes on", lambda d, step: replace(d, first=d.first | (step == 2))),
    (r"has a reward or an end", lambda d, step: replace(d, reward=d.reward + (step == 6), first=d.first)),
    (r"slot 1, which had played, does not see", lambda d, _: replace(d, terminated=d.terminated & (d.slot % 2 == 0))),
    (r"life must be bool \[4\], got float64 \[4\]", lambda d, _: replace(d, life=np.zeros(4))),  # type: ignore[arg-type]
    (r"life is true where no episode ends", lambda d, _: replace(d, life=np.ones(4, np.bool_))),
    (r"a mask of legal actions, but", lambda d, _: replace(d, legal=np.ones((4, 3), np.bool_))),
]


@pytest.mark.parametrize(("words", "bend"), BENDS, ids=[words for words, _ in BENDS])
def test_the_check_tells_in_words_what_is_wrong(words: str, bend: Callable[[Decisions, int], Decisions]) -> None:
    with pytest.raises(EnvError, match=words):
        check_env(Bent(Duel(envs=2), bend), 20)


@pytest.mark.parametrize(("slots", "silent"), [([2, 3], 0), ([0, 1, 4], 1), ([0, 3], 2), ([0, 1, 2, 3, 4, 5], None)])
def test_the_check_names_the_environment_in_which_nobody_waits(slots: list[int], silent: int | None) -> None:
    env = Duel(envs=3)
    whole = env.reset([1, 2, 3])
    parts = {name: getattr(whole, name)[slots] for name in ("slot", "reward", "terminated", "truncated", "first")}
    found = fault(replace(whole, **parts, obs={"obs": whole.obs["obs"][slots]}), env.spaces, 3)
    assert found == (None if silent is None else ("nobody waits for an action", silent))


def test_the_check_sees_a_seat_that_never_learns_of_the_end() -> None:
    def forget(decisions: Decisions, step: int) -> Decisions:
        keep = ~(decisions.terminated & (decisions.slot % 2 == 1))
        assert decisions.legal is not None
        return Decisions(
            slot=decisions.slot[keep],
            obs={"obs": decisions.obs["obs"][keep]},
            reward=decisions.reward[keep],
            terminated=decisions.terminated[keep],
            truncated=decisions.truncated[keep],
            first=decisions.first[keep],
            legal=decisions.legal[keep],
        )

    with pytest.raises(EnvError, match=r"the episode ended, but slot 1, which had played, does not see its end"):
        check_env(Bent(Turns(envs=1), forget), 20)


def test_the_check_sees_an_environment_that_ignores_its_seed() -> None:
    class Forgetful(Turns):
        def reset(self, seeds: Sequence[int] | None = None) -> Decisions:
            return super().reset(np.random.default_rng().integers(2**31, size=self.envs).tolist())

    with pytest.raises(EnvError, match="equal seeds and equal actions led to different decisions"):
        check_env(Forgetful(envs=8), 20)


def test_sampled_actions_are_legal() -> None:
    legal = np.array([[True, False, True, False], [False, False, False, True]] * 100)
    chosen = sample(Discrete(4), np.random.default_rng(0), 200, legal)["action"]
    assert legal[np.arange(200), chosen].all()
    assert set(chosen.tolist()) == {0, 2, 3}
    several = sample(
        Tuple((MultiDiscrete((2, 3)), Discrete(2))), np.random.default_rng(0), 50,
        np.tile(np.array([0, 1, 1, 0, 1, 1, 0], np.bool_), (50, 1)),
    )  # fmt: skip
    assert np.unique(several["action.0"], axis=0).tolist() == [[1, 0], [1, 2]]
    assert set(several["action.1"].tolist()) == {0}  # type: ignore[arg-type]


def test_random_actions_lie_within_the_bounds_of_their_entry() -> None:
    box = Box((2, 2), "float32", (-1.0, 100.0, 5.0, None), (1.0, 200.0, None, -5.0))
    drawn = sample(box, np.random.default_rng(0), 1000)["action"].reshape(1000, 4).astype(np.float32)
    assert drawn.min(0).tolist() == pytest.approx([-1, 100, 5, -6], abs=1)
    assert drawn.max(0).tolist() == pytest.approx([1, 200, 6, -5], abs=1)
    assert (drawn[:, 0] >= -1).all()
    assert (drawn[:, 2] >= 5).all()
    assert (drawn[:, 3] <= -5).all()
