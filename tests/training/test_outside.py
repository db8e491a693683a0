"""An algorithm from outside that brings its own replay, schedule and target network, and touches no file of ours."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlctl_agents.checkpoint.state import unpack_state
from tests.end_to_end.conftest import Cli, cli, wait_until

__all__ = ["cli"]
SOLVED = 475
"""Gymnasium's threshold for CartPole-v1; a random policy has 22. A run of seed 2 reached it after 16,917
agent steps and 3,995 updates, in 21 CPU seconds of all roles."""
COPY_EVERY = 20
FILE = Path(__file__).parent / "outside" / "double_dqn.py"
DOUBLE_DQN: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "algorithm": {
        "name": "mine.double_dqn:DoubleDqn", "unroll_length": 16, "batch_size": 256, "publish_every_updates": 10,
        "params": {"copy_every": COPY_EVERY},
    },
    "model": {"hidden": [128, 128]},
    "code": {"path": "."},
    "roles": {"actor": {"envs": 16}},
    "evaluation": {"episodes": 20, "every": "5s"},
    "checkpoint": {"every": "3s"},
}  # fmt: skip

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture
def mine(cli: Cli) -> Cli:
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "__init__.py").touch()
    shutil.copy(FILE, cli.folder / "mine" / "double_dqn.py")
    return cli


def newest_generation(cli: Cli, run: str) -> tuple[int, dict[str, np.ndarray]]:
    """Its version, that is the batches that were learned from, and its arrays."""
    manifest = sorted((cli.root(run) / "checkpoints").glob("generation-*.json"))[-1]
    generation = json.loads(manifest.read_text())["generation"]
    part = cli.root(run) / "checkpoints" / generation["parts"]["learner"]
    return generation["ref"]["version"], unpack_state(part.read_bytes())[0]


def test_the_proof_is_short_and_imports_nothing_private() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) < 120
    assert not re.search(r"rlctl_agents\S* import _|(?<!self)\._(?!replace)[a-z]", text)


@pytest.mark.learning
def test_double_dqn_from_outside_learns_cartpole_and_goes_on_with_its_target_network_after_down_and_up(
    mine: Cli,
) -> None:
    spec = mine.spec("dqn", **DOUBLE_DQN, stop={"wall_time": "5m"})
    mine("up", spec, "-d")
    mine("wait", "dqn", "--for", "updates=250", "--timeout", "240s")
    mine("down", "dqn")
    version, stored = newest_generation(mine, "dqn")
    target = stored["modules/target/0.weight"]
    assert target.shape == stored["weights/0.weight"].shape
    lags = not np.array_equal(target, stored["weights/0.weight"])
    assert lags == (version % COPY_EVERY != 0), "a target lags behind until it is copied"

    def said() -> list[list[float]]:
        lines = mine("logs", "learner", "--run", "dqn", "--grep", "the target begins with").stdout.splitlines()
        return [json.loads(found[0]) for line in lines if (found := re.findall(r"\[[^\[\]]+\]$", line.strip()))]

    mine("up", spec, "-d")
    wait_until(lambda: len(said()) == 2, timeout_s=120, what="an update by the learner that came back")
    mine("up", mine.spec("dqn", **DOUBLE_DQN, stop={"eval_return": SOLVED, "wall_time": "5m"}), timeout_s=390)
    status = mine.status("dqn")
    assert status["evaluation"]["mean"] >= SOLVED
    assert status["policies"]["main"]["ledger"]["balanced"]
    assert status["resumed"] is not None
    first, second = said()
    np.testing.assert_allclose(second, target.flatten()[:4], rtol=1e-5)
    assert first != second
