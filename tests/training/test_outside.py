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
SOLVED = 195
"""Gymnasium's threshold for CartPole-v0; a random policy has 22."""
FILE = Path(__file__).parent / "outside" / "double_dqn.py"
COPY_EVERY = 197
"""Updates from one copy of the target to the next: seldom a multiple of those between two publications, which a
checkpoint follows."""
DOUBLE_DQN: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "algorithm": {
        "name": "mine.double_dqn:DoubleDqn", "unroll_length": 8, "batch_size": 64, "publish_every_updates": 10,
        "params": {"copy_every": COPY_EVERY},
    },
    "model": {"hidden": [128, 128]},
    "code": {"path": "."},
    "roles": {"actor": {"envs": 8}},
    "evaluation": {"episodes": 20, "every": "5s"},
    "checkpoint": {"every": "3s"},
}  # fmt: skip

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1500)]


@pytest.fixture
def mine(cli: Cli) -> Cli:
    (cli.folder / "mine").mkdir()
    (cli.folder / "mine" / "__init__.py").touch()
    shutil.copy(FILE, cli.folder / "mine" / "double_dqn.py")
    return cli


def newest_part(cli: Cli, run: str) -> tuple[dict[str, np.ndarray], int]:
    """Arrays of the newest generation, and the updates that it has seen."""
    manifest = sorted((cli.root(run) / "checkpoints").glob("generation-*.json"))[-1]
    part = json.loads(manifest.read_text())["generation"]["parts"]["learner"]
    arrays, plain = unpack_state((cli.root(run) / "checkpoints" / part).read_bytes())
    return arrays, int(plain["counters"]["version"])


def test_the_proof_is_short_and_imports_nothing_private() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) < 120
    assert not re.search(r"rlctl_agents\S* import _|(?<!self)\._(?!replace)[a-z]", text)


@pytest.mark.learning
def test_double_dqn_from_outside_learns_cartpole_and_goes_on_with_its_target_network_after_down_and_up(
    mine: Cli,
) -> None:
    spec = mine.spec("dqn", **DOUBLE_DQN, stop={"wall_time": "15m"})
    mine("up", spec, "-d")
    mine("wait", "dqn", "--for", "updates=250", "--timeout", "240s")
    mine("down", "dqn")
    stored, updates = newest_part(mine, "dqn")
    target = stored["modules/target/0.weight"]
    assert target.shape == stored["weights/0.weight"].shape
    copied = updates % COPY_EVERY == 0
    assert np.array_equal(target, stored["weights/0.weight"]) is copied, f"a target lags behind, after {updates}"

    def said() -> list[list[float]]:
        lines = mine("logs", "learner", "--run", "dqn", "--grep", "the target begins with").stdout.splitlines()
        return [json.loads(found[0]) for line in lines if (found := re.findall(r"\[[^\[\]]+\]$", line.strip()))]

    mine("up", spec, "-d")
    wait_until(lambda: len(said()) == 2, timeout_s=120, what="an update by the learner that came back")
    mine("up", mine.spec("dqn", **DOUBLE_DQN, stop={"eval_return": SOLVED, "wall_time": "15m"}), timeout_s=960)
    status = mine.status("dqn")
    assert status["evaluation"]["mean"] >= SOLVED
    assert status["policies"]["main"]["ledger"]["balanced"]
    assert status["resumed"] is not None
    first, second = said()
    np.testing.assert_allclose(second, target.flatten()[:4], rtol=1e-5)
    assert first != second
