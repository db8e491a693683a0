"""Files that `rlctl init` writes: the environment works, and the goal of the spec can be reached."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlctl.spec.schema import Spec
from rlctl_agents import envs
from rlctl_agents.envs import Env
from rlctl_agents.envs.check import check_env

SCAFFOLD = Path(__file__).parents[2] / "templates" / "init" / "environment"
DOWN, UP = 1, 3
RIGHT, LEFT = 0, 2


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    shutil.copytree(SCAFFOLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.syspath_prepend(tmp_path)
    return Spec.model_validate(yaml.safe_load((tmp_path / "spec.yaml").read_text()))


@pytest.fixture
def env(spec: Spec) -> Iterator[Env]:
    made = envs.make(
        spec.env.id,
        envs=20,
        seeds=range(20),
        kwargs=spec.env.kwargs,
        max_episode_steps=spec.env.max_episode_steps,
    )
    yield made
    made.close()


def test_the_environment_of_the_scaffold_obeys_the_protocol(env: Env) -> None:
    drive = check_env(env, 200)
    assert drive.episodes > 100
    assert np.mean(drive.returns) < 0


def test_walking_straight_to_the_treasure_passes_the_goal_of_the_scaffold(env: Env, spec: Spec) -> None:
    decisions = env.reset()
    returns, sums = [], np.zeros(20)
    for _ in range(100):
        obs: Any = decisions.obs["obs"]
        row, column = obs[:, 2] - obs[:, 0], obs[:, 3] - obs[:, 1]
        action = np.select([row > 0, row < 0, column > 0], [DOWN, UP, RIGHT], LEFT)
        decisions = env.step(decisions.slot, {"action": action})
        sums += decisions.reward
        ended = decisions.terminated | decisions.truncated
        returns += sums[ended].tolist()
        sums[ended] = 0
    assert np.mean(returns) == pytest.approx(0.907, abs=0.01)
    assert spec.stop.eval_return is not None
    assert spec.stop.eval_return < 0.9
