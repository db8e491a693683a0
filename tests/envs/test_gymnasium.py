"""Gymnasium environments through our door."""

import sys
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from numpy.typing import NDArray

from rlctl_agents import envs
from rlctl_agents.envs import EnvError, EnvRefused
from rlctl_agents.envs.convert import to_ours
from rlctl_agents.envs.gymnasium import Batched, Singles
from rlctl_agents.types.experience import Arrays
from rlctl_agents.types.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

TINY = "tests.envs.tiny"
HERE = __name__


class Faulty(gymnasium.Env[Any, Any]):
    """Does what its arguments say at its third step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: float = 0.0, seen: Any = (0.0, 0.0), error: str = "", only_seed: int = 8) -> None:
        self.reward, self.seen, self.error, self.only_seed = float(reward), seen, error, only_seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        self.mine = seed == self.only_seed
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        if self.now < 3 or not self.mine:
            return np.zeros(2, np.float32), 0.0, False, False, {}
        if self.error:
            raise ArithmeticError(self.error)
        seen = {"a": 1} if self.seen == "dict" else np.array(self.seen, np.float32)
        return seen, self.reward, False, False, {}


class Worded(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Dict(
        {"text": gymnasium.spaces.Text(5), "x": gymnasium.spaces.Box(0, 1, (1,), np.float32)}
    )
    action_space = gymnasium.spaces.Discrete(2)


def integers() -> Any:
    env: Any = Faulty()
    env.action_space = gymnasium.spaces.Box(0, 5, (2,), np.int64)
    return env


def alone() -> Any:
    env: Any = Worded()
    env.observation_space = gymnasium.spaces.Text(5)
    return env


def nothing() -> Any:
    return None


def silent() -> Any:
    raise ValueError


NOT_CALLABLE = 3


def drive(env: Any, steps: int, action: Any = 0) -> Any:
    decisions = env.reset()
    for _ in range(steps):
        decisions = env.step(decisions.slot, {"action": np.full(env.envs, action)})
    return decisions


def test_cartpole_runs_on_its_batched_simulator_and_equals_the_single_one() -> None:
    batched = envs.make("CartPole-v1", envs=8, seeds=range(8))
    assert isinstance(batched, Batched)
    single: Any = CartPoleEnv()
    rng = np.random.default_rng(0)
    decisions = batched.reset()
    single.reset(seed=0)
    single.state = decisions.obs["obs"][3].astype(np.float64)
    for step in range(500):
        action = rng.integers(2, size=8)
        decisions = batched.step(decisions.slot, {"action": action})
        obs, reward, terminated, _, _ = single.step(int(action[3]))
        np.testing.assert_allclose(decisions.obs["obs"][3], obs, atol=2e-5)
        assert decisions.reward[3] == reward == 1
        assert decisions.terminated[3] == terminated
        if terminated:
            assert step > 5
            return
    raise AssertionError("random actions never dropped the pole")


def test_cartpole_is_cut_at_500_steps_or_where_the_spec_says() -> None:
    env = envs.make("CartPole-v1", envs=1, seeds=[0], max_episode_steps=7)
    decisions = env.reset()
    flags = []
    for step in range(9):
        decisions = env.step(decisions.slot, {"action": np.array([step % 2])})
        flags.append((bool(decisions.truncated[0]), bool(decisions.first[0]), float(decisions.reward[0])))
    assert flags == [(False, False, 1.0)] * 6 + [(True, False, 1.0), (False, True, 0.0), (False, False, 1.0)]
    assert gymnasium.spec("CartPole-v1").max_episode_steps == 500


def test_kwargs_reach_single_and_batched_environments_alike() -> None:
    env = envs.make("CartPole-v1", envs=2, seeds=[0, 1], kwargs={"sutton_barto_reward": True})
    assert isinstance(env, Batched)
    assert drive(env, 3).reward.tolist() == [0, 0]
    clock = envs.make(f"{TINY}:Clock", envs=2, seeds=[0, 1], kwargs={"length": 2})
    clock.reset()
    answered: Arrays = {"action": np.zeros((2, 2), np.int64)}
    assert [bool(clock.step(np.arange(2), answered).truncated[0]) for _ in range(4)] == [False, True, False, False]


def test_a_truncated_episode_shows_its_own_last_observation_and_then_starts_again() -> None:
    env = envs.make(f"{TINY}:Clock", envs=1, seeds=[0], kwargs={"length": 100}, max_episode_steps=3)
    decisions = env.reset()
    rows = []
    for _ in range(6):
        decisions = env.step(decisions.slot, {"action": np.zeros((1, 2), np.int64)})
        rows.append((decisions.obs["obs"].item(), bool(decisions.truncated[0]), bool(decisions.first[0])))
    assert rows == [
        (1, False, False), (2, False, False), (3, True, False), (0, False, True), (1, False, False), (2, False, False),
    ]  # fmt: skip
    assert not decisions.terminated.any()


def test_nested_spaces_become_dotted_leaves_and_starts_stay_outside() -> None:
    env = envs.make(f"{TINY}:Mixed", envs=2, seeds=[1, 2])
    assert isinstance(env, Singles)
    assert env.spaces.obs == Dict(
        {
            "camera": Box((2, 2), "uint8", 0.0, 255.0),
            "inner": Dict({"bits": MultiBinary(4), "number": Discrete(3)}),
            "position": Box((2,), "float32", -1.0, 1.0),
        }
    )
    assert env.spaces.action == Tuple((Discrete(3), Box((2,), "float32", -2.0, 2.0)))
    decisions = env.reset()
    looks = {name: (array.dtype.name, array.shape) for name, array in decisions.obs.items()}
    assert looks == {
        "obs.camera": ("uint8", (2, 2, 2)),
        "obs.inner.bits": ("int8", (2, 4)),
        "obs.inner.number": ("int64", (2,)),
        "obs.position": ("float32", (2, 2)),
    }
    number = decisions.obs["obs.inner.number"].copy()
    np.testing.assert_array_equal(decisions.obs["obs.camera"][:, 0, 0], number + 1)
    push = np.sign(decisions.obs["obs.position"]) * 9  # beyond the bounds: the environment asserts that it is clipped
    decisions = env.step(decisions.slot, {"action.0": number, "action.1": push.astype(np.float32)})
    assert decisions.reward.tolist() == [2, 2]


def test_a_continuous_action_is_clipped_to_the_bounds_of_its_entry() -> None:
    env = envs.make(f"{TINY}:Reach", envs=2, seeds=[1, 2])
    assert env.spaces.obs == Box((1,), "float32", -2.0, 2.0)
    before: NDArray[Any] = env.reset().obs["obs"].copy()
    after: NDArray[Any] = env.step(np.arange(2), {"action": np.array([[50.0], [-0.5]], np.float32)}).obs["obs"]
    assert (after - before).ravel().tolist() == pytest.approx([0.5, -0.25], abs=1e-6)


def test_multi_discrete_actions_and_infinite_bounds() -> None:
    env = envs.make(f"{TINY}:Clock", envs=1, seeds=[0])
    assert env.spaces.action == MultiDiscrete((2, 3))
    assert env.spaces.obs == Box((1,), "float32", 0.0, None)


def test_bounds_are_kept_for_each_entry_where_they_differ() -> None:
    low, high = np.array([[-1, 0], [-np.inf, 2]], np.float32), np.array([[1, 1000], [np.inf, np.inf]], np.float32)
    space = gymnasium.spaces.Box(low, high)
    assert to_ours(space, "action") == Box((2, 2), "float32", (-1.0, 0.0, None, 2.0), (1.0, 1000.0, None, None))
    shared = gymnasium.spaces.Box(low[:, :1], np.float32(5), (2, 1))
    assert to_ours(shared, "action") == Box((2, 1), "float32", (-1.0, None), 5.0)


def test_a_large_observation_keeps_the_smallest_and_the_largest_bound() -> None:
    low = np.zeros(5000, np.float32)
    low[7] = -3
    space = gymnasium.spaces.Box(low, np.full(5000, np.inf, np.float32))
    assert to_ours(space, "obs") == Box((5000,), "float32", -3.0, None)
    assert to_ours(space, "action") == Box((5000,), "float32", tuple(low.tolist()), None)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"reward": "nan"}, "step returned NaN reward"),
        (
            {"reward": "inf"},
            r"step returned infinite reward; larger ones than 3.4e\+38, the most of float32, count as infinite",
        ),
        ({"seen": (0.0, float("nan"))}, "step returned NaN in observation obs"),
        ({"seen": (0.0, 0.0, 0.0)}, r"step returned observation obs of shape \(3,\), its space says \(2,\)"),
        ({"error": "lost a wheel"}, "step raised ArithmeticError: lost a wheel"),
    ],
)
def test_a_fault_while_running_names_environment_seed_and_step(kwargs: dict[str, Any], words: str) -> None:
    env = envs.make(f"{HERE}:Faulty", envs=3, seeds=[7, 8, 9], kwargs=kwargs)
    with pytest.raises(EnvError, match=rf"^{words} \({HERE}:Faulty, seed 8, step 3\)$"):
        drive(env, 5)


class Chest(gymnasium.Env[Any, Any]):
    """Sees whole numbers: as its space says, but for what its arguments say at its third step."""

    observation_space = gymnasium.spaces.Dict(
        {
            "bits": gymnasium.spaces.MultiBinary(2),
            "coins": gymnasium.spaces.MultiDiscrete([3, 2]),
            "level": gymnasium.spaces.Discrete(5, start=2),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **odd: Any) -> None:
        self.odd = odd

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now, self.mine = 0, seed == 8
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now += 1
        return self._seen(), 0.0, False, False, {}

    def _seen(self) -> dict[str, Any]:
        seen = {"bits": (1, 0), "coins": (2, 1), "level": 6} | (self.odd if self.mine and self.now == 3 else {})
        return {name: np.array(value, np.int8 if name == "bits" else np.int64) for name, value in seen.items()}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"bits": (0, 2)}, r"\[0, 2\] in observation obs.bits, outside MultiBinary\(2\)"),
        ({"coins": (0, 2)}, r"\[0, 2\] in observation obs.coins, outside MultiDiscrete\(.*\)"),
        ({"level": 7}, r"7 in observation obs.level, outside Discrete\(5, start=2\)"),
        ({"level": 1}, r"1 in observation obs.level, outside Discrete\(5, start=2\)"),
    ],
)
def test_whole_numbers_outside_their_space_are_a_fault(odd: dict[str, Any], words: str) -> None:
    env = envs.make(f"{HERE}:Chest", envs=2, seeds=[7, 8], kwargs=odd)
    assert drive(env, 2).obs["obs.level"].tolist() == [4, 4]
    with pytest.raises(EnvError, match=rf"^step returned {words} \({HERE}:Chest, seed 8, step 3\)$"):
        drive(env, 3)


def test_large_finite_numbers_are_no_fault() -> None:
    env = envs.make(f"{HERE}:Faulty", envs=1, seeds=[8], kwargs={"reward": "1e30", "seen": (1e30, -1e30)})
    assert drive(env, 4).reward.tolist() == [np.float32(1e30)]


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("CartPol-v1", "CartPol"),
        ("no_such_module_here:Env", "there is no module no_such_module_here; is its folder named by code.path?"),
        (f"{HERE}:Fault", f"{HERE} has no Fault; did you mean Faulty?"),
        (f"{HERE}:NOT_CALLABLE", "is a int; it must be a class or a function that makes environments"),
        (f"{HERE}:silent", r"ValueError: raise ValueError .*test_gymnasium.py, line \d+\)"),
        (f"{HERE}:nothing", "gave a NoneType, not a gymnasium.Env"),
        (
            f"{HERE}:Worded",
            r"obs.text: the space Text\(1, 5.*is not supported; leave it out by the wrapper Filter.* but text",
        ),
        (f"{HERE}:alone", r"obs: the space Text\(1, 5.*is not supported; wrap the environment"),
        (f"{HERE}:integers", "action: Box.*is a Box of int64; use Discrete or MultiDiscrete for such actions"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(id: str, words: str) -> None:
    with pytest.raises(EnvRefused, match=words):
        envs.make(id, envs=1, seeds=[0])


def test_wrong_kwargs_are_refused_in_words() -> None:
    with pytest.raises(EnvRefused, match=r"cannot make CartPole-v1: TypeError: .*gravitation"):
        envs.make("CartPole-v1", envs=1, seeds=[0], kwargs={"gravitation": 1})
    with pytest.raises(EnvRefused, match=f"cannot make {HERE}:Faulty: ValueError: could not convert string to float"):
        envs.make(f"{HERE}:Faulty", envs=1, seeds=[0], kwargs={"reward": "much"})


def test_a_missing_simulator_is_told_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as Python sees a package that is not installed
    with pytest.raises(EnvRefused, match=r'^LunarLander-v3 needs the package Box2D: pip install "rlctl\[box2d\]"$'):
        envs.make("LunarLander-v3", envs=1, seeds=[0])


def test_seeds_must_be_one_per_environment() -> None:
    with pytest.raises(ValueError, match="one seed per environment"):
        envs.make("CartPole-v1", envs=2, seeds=[0])
    env = envs.make("CartPole-v1", envs=2, seeds=[0, 1])
    with pytest.raises(ValueError, match="seeds must be one per environment, 2, got 1"):
        env.reset([3])


def test_a_registered_id_of_a_module_of_ones_own() -> None:
    gymnasium.register("TinyClock-v0", entry_point=f"{TINY}:Clock", max_episode_steps=3)
    env = envs.make(f"{TINY}:TinyClock-v0", envs=1, seeds=[0])
    env.reset()
    answered: Arrays = {"action": np.zeros((1, 2), np.int64)}
    assert [bool(env.step(np.arange(1), answered).truncated[0]) for _ in range(3)] == [False, False, True]
    gymnasium.registry.pop("TinyClock-v0")


class Leaves(Faulty):
    """Ends the process of the actor, as some simulators do, and fails when it is closed."""

    closed: ClassVar[list[int]] = []

    def step(self, action: Any) -> Any:
        sys.exit("no licence")

    def close(self) -> None:
        self.closed.append(id(self))
        raise RuntimeError("it hangs")


def test_an_environment_that_leaves_is_told_as_one_that_raises_and_all_are_closed() -> None:
    env = envs.make(f"{HERE}:Leaves", envs=2, seeds=[0, 1])
    decisions = env.reset()
    with pytest.raises(EnvError, match="step raised SystemExit: no licence"):
        env.step(decisions.slot, {"action": np.zeros(2, np.int64)})
    Leaves.closed.clear()
    with pytest.raises(RuntimeError, match="it hangs"):
        env.close()
    assert len(Leaves.closed) == 2
