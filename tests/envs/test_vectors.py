"""Vectors of Gymnasium's that reset at once, when told to, or at the next step."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.envs.check import check_env
from rlctl_agents.envs.stacking import Stacked
from tests.envs.tiny import Exam, Step

HERE = __name__


class Masked(gymnasium.Env[Any, Any]):
    """Shows the number of steps; action i is legal where i is not the number modulo 3. Ends after `length` steps, or is
    cut short there; `mask` is that of step 2."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def __init__(self, length: int = 4, mask: str = "", cut: bool = False) -> None:
        self.length, self.mask, self.cut = length, mask, cut

    def _info(self) -> dict[str, Any]:
        mask: Any = (np.arange(3) != self.now % 3).astype(np.int8)
        if self.now == 2:
            mask = {"": mask, "none": None, "short": mask[:2], "float": mask * 1.0, "zero": mask * 0}[self.mask]
        return {} if mask is None else {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(1, np.float32), self._info()

    def step(self, action: Any) -> Step:
        assert action - 1 != self.now % 3, "an illegal action"
        self.now += 1
        ended = self.now == self.length
        return np.full(1, self.now, np.float32), 1.0, ended and not self.cut, ended and self.cut, self._info()


class Uneven(Exam):
    """Episodes of 2, 3, 2, 3, ... steps, different ones side by side."""

    def reset(self, **given: Any) -> Any:
        answer = super().reset(**given)
        self.length = 2 + (self.games + self.odd) % 2
        return answer

    def step(self, action: Any) -> Step:
        obs, reward, _, truncated, info = super().step(action)
        return obs + 10 * self.odd, reward + action[0], truncated, False, info


class _Sync(SyncVectorEnv):
    mode = AutoresetMode.NEXT_STEP
    single: Any = Uneven

    def __init__(self, num_envs: int) -> None:
        super().__init__([self.single] * num_envs, autoreset_mode=self.mode)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else list(range(self.num_envs)), options=options)


class Next(_Sync):
    pass


class Same(_Sync):
    mode = AutoresetMode.SAME_STEP


class Told(_Sync):
    mode = AutoresetMode.DISABLED


class Batch(Same):
    """Gives last observations as one array, as vectors that simulate in batches do."""

    def step(self, actions: Any) -> Any:
        *answer, info = super().step(actions)
        if "final_obs" in info:
            whole = [np.zeros(1, np.float32) if one is None else one for one in info["final_obs"]]
            info["final_obs"] = np.stack(whole)
        return *answer, info


class Listed(Next):
    """Observations that are no arrays, or not of the space's shape."""

    def __init__(self, num_envs: int, how: str) -> None:
        super().__init__(num_envs)
        self.how = how

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        return {"list": obs.tolist(), "short": obs[:, :0], "none": None}[self.how], *rest


class Lost(Same):
    def step(self, actions: Any) -> Any:
        *answer, info = super().step(actions)
        info.pop("final_obs", None)
        return *answer, info


class Odd(Same):
    """Flags and last observations that NumPy would convert to something else."""

    def __init__(self, num_envs: int, how: str) -> None:
        super().__init__(num_envs)
        self.how = how

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        if self.how == "flag":
            terminated = np.full(self.num_envs, np.nan)
        elif "final_obs" in info:
            info["final_obs"] = np.zeros((self.num_envs, 2), np.float32)
        return obs, reward, terminated, truncated, info


class SameMasked(Same):
    single = Masked


class ToldMasked(Told):
    single = Masked


class NextMasked(_Sync):
    single = Masked


class Untold(Same):
    """Does not tell the last step's `info`, where the next episode has begun."""

    def step(self, actions: Any) -> Any:
        *answer, info = super().step(actions)
        info.pop("final_info", None)
        return *answer, info


class Blind(Same):
    """Does not tell the mask of an episode that begins."""

    def step(self, actions: Any) -> Any:
        *answer, info = super().step(actions)
        if "final_info" in info:
            del info["action_mask"]
        return *answer, info


def cut(num_envs: int, mode: str, mask: str = "none", cut: bool = True) -> Any:
    """A vector of episodes of two steps, cut short."""
    kind: Any = {"next": Next, "same": Same, "told": Told, "untold": Untold, "blind": Blind}[mode]
    return type("Cut", (kind,), {"single": staticmethod(partial(Masked, length=2, mask=mask, cut=cut))})(num_envs)


def vector_of(num_envs: int, many: int = 0) -> Any:
    return Next(num_envs + many)


def single_of(num_envs: int) -> Any:
    return Uneven()


class Unsaid(Next):
    metadata: Any = {}

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.metadata = {}


def drive(env: Any, steps: int) -> None:
    """Legal actions, the first there is."""
    decisions = env.reset()
    for _ in range(steps):
        any_action = np.zeros((decisions.slot.size, 2), np.int64)
        legal = decisions.legal
        decisions = env.step(decisions.slot, {"action": any_action if legal is None else legal.argmax(axis=1)})


def streams(name: str, steps: int) -> list[list[tuple[Any, ...]]]:
    """Rows of each environment: what it saw, reward, flags, numbers at the end. Actions depend on the row."""
    env = envs.make(f"{HERE}:{name}", envs=3, seeds=[0, 1, 2])
    rows: list[list[tuple[Any, ...]]] = [[], [], []]
    decisions = env.reset()
    for _ in range(steps):
        action = np.zeros((decisions.slot.size, 2), np.int64)
        for row, slot in enumerate(decisions.slot.tolist()):
            told = (decisions.info or {}).get(slot)
            flags = [bool(flag[row]) for flag in (decisions.terminated, decisions.truncated, decisions.first)]
            obs: Any = decisions.obs["obs"]
            rows[slot].append((obs[row].item(), decisions.reward[row].item(), *flags, told))
            action[row, 0] = len(rows[slot]) % 2
        decisions = env.step(decisions.slot, {"action": action})
    env.close()
    return [one[:20] for one in rows]


@pytest.mark.parametrize("name", ["Same", "Told", "Batch"])
def test_a_vector_that_resets_at_once_or_when_told_gives_the_rows_of_one_that_resets_at_the_next_step(
    name: str,
) -> None:
    wanted = streams("Next", 30)
    assert sum(row[2] for row in wanted[0]) >= 5
    assert any(row[5] and row[5]["score"] > 2 for row in wanted[1])
    assert streams(name, 45) == wanted


@pytest.mark.parametrize("name", ["Masked", "NextMasked", "SameMasked", "ToldMasked"])
def test_masks_in_info_are_those_of_the_action_that_is_chosen(name: str) -> None:
    env = envs.make(f"{HERE}:{name}", envs=2, seeds=[0, 1])
    assert env.spaces.legal
    decisions = env.reset()
    for _ in range(30):
        assert decisions.legal is not None
        now: NDArray[Any] = decisions.obs["obs"][:, 0].astype(int)  # at an end that of the episode that ends
        np.testing.assert_array_equal(decisions.legal, np.arange(3) != now[:, None] % 3)
        decisions = env.step(decisions.slot, {"action": decisions.legal.argmax(axis=1)})
    env.close()


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("none", r"step returned info\[.action_mask.\] none, expected bool or int8 \[3\] with every reset and step"),
        ("short", r"step returned info\[.action_mask.\] int8 \[2\]"),
        ("float", r"step returned info\[.action_mask.\] float64 \[3\]"),
        ("zero", "step returned action_mask without any legal action"),
    ],
)
def test_a_mask_that_cannot_be_is_a_fault(mask: str, words: str) -> None:
    env = envs.make(f"{HERE}:Masked", envs=1, seeds=[7], kwargs={"mask": mask})
    env.reset()
    with pytest.raises(EnvError, match=rf"{words}.* \({HERE}:Masked, seed 7, step 2\)"):
        drive(env, 2)
    at_the_end = envs.make(f"{HERE}:Masked", envs=1, seeds=[7], kwargs={"mask": "none", "length": 2})
    at_the_end.reset()
    at_the_end.step(np.arange(1), {"action": np.array([1])})
    assert at_the_end.step(np.arange(1), {"action": np.array([0])}).terminated.all(), "nobody acts there"


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("Masked", {"length": 2, "mask": "none", "cut": True}),
        ("Masked", {"length": 2, "mask": "zero", "cut": True}),
        ("cut", {"mode": "next"}),
        ("cut", {"mode": "told"}),
        ("cut", {"mode": "same"}),
        ("cut", {"mode": "untold", "mask": ""}),
        ("cut", {"mode": "blind", "mask": "", "cut": False}),
    ],
)
def test_a_mask_that_is_learned_from_or_acted_by_has_to_be_told(name: str, kwargs: dict[str, Any]) -> None:
    env = envs.make(f"{HERE}:{name}", envs=2, seeds=[7, 8], kwargs=kwargs)
    words = r"action_mask without any" if kwargs.get("mask") == "zero" else r"info\[.action_mask.\] none, expected bool"
    with pytest.raises(EnvError, match=rf"step returned {words}.*, step 2\)"):
        drive(env, 2)


@pytest.mark.parametrize("mode", ["next", "told", "same"])
def test_that_mask_is_the_last_steps_and_not_of_the_next_episode(mode: str) -> None:
    env = envs.make(f"{HERE}:cut", envs=1, seeds=[7], kwargs={"mode": mode, "mask": ""})
    decisions = env.reset()
    for _ in range(2):
        assert decisions.legal is not None
        decisions = env.step(decisions.slot, {"action": decisions.legal.argmax(axis=1)})
    assert decisions.truncated.all()
    assert decisions.legal is not None
    assert decisions.legal.tolist() == [[True, True, False]]


def test_taxi_tells_its_masks() -> None:
    env = envs.make("Taxi-v4", envs=2, seeds=[0, 1])
    assert env.spaces.legal
    legal = env.reset().legal
    assert legal is not None
    assert 0 < legal.sum() < legal.size


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("list", "step returned observation obs as list, not a NumPy array of shape"),
        ("short", r"step returned observation obs as float32 \[2, 0\], not a NumPy array of shape"),
        ("none", "step returned observation obs as NoneType"),
    ],
)
def test_observations_of_a_vector_are_arrays_of_its_space(how: str, words: str) -> None:
    env = envs.make(f"{HERE}:Listed", envs=2, seeds=[0, 1], kwargs={"how": how})
    env.reset()
    with pytest.raises(EnvError, match=rf"{words}.*seed [0-9]+, step 1"):
        drive(env, 1)


def test_a_function_with_an_argument_num_envs_gives_a_vector() -> None:
    assert streams("vector_of", 20) == streams("Next", 20)
    with pytest.raises(EnvRefused, match=r"asked for a gymnasium\.vector\.VectorEnv of 2 environments, got 3"):
        envs.make(f"{HERE}:vector_of", envs=2, seeds=[0, 1], kwargs={"many": 1})
    with pytest.raises(EnvRefused, match="of 2 environments, got Uneven"):
        envs.make(f"{HERE}:single_of", envs=2, seeds=[0, 1])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("flag", "step returned terminated nan, not a bool"),
        ("last", r'info\["final_obs"\] holds obs as float32 \[2\], and its space float32 \[1\]'),
    ],
)
def test_flags_and_last_observations_of_another_kind_are_refused(how: str, words: str) -> None:
    env = envs.make(f"{HERE}:Odd", envs=2, seeds=[0, 1], kwargs={"how": how})
    env.reset()
    with pytest.raises(EnvError, match=words):
        drive(env, 3)


def test_an_end_without_its_observation_or_a_vector_without_a_mode_is_refused() -> None:
    env = envs.make(f"{HERE}:Lost", envs=2, seeds=[0, 1])
    env.reset()
    with pytest.raises(EnvError, match=r'step ended an episode without its observation in info\["final_obs"\]'):
        drive(env, 3)
    with pytest.raises(EnvRefused, match=r"must be one of gymnasium.vector.AutoresetMode, got None"):
        envs.make(f"{HERE}:Unsaid", envs=2, seeds=[0, 1])


@pytest.mark.parametrize("kind", ["Next", "Same", "Told"])
@pytest.mark.parametrize("frames", [1, 3])
def test_a_vector_of_any_mode_passes_the_check_of_environments(kind: str, frames: int) -> None:
    env: Any = envs.make(f"{HERE}:{kind}", envs=3, seeds=[0, 1, 2])
    found = check_env(env if frames == 1 else Stacked(env, frames), steps=40, repeatable=False)
    assert found.episodes > 6
