"""Every spec that is worth starting from, run as it stands for a while: it learns, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlctl.spec.algorithms import BUILT
from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.yaml"))
LIMIT_S = 240.0
FEW = ("--set", "evaluation.episodes=2", "--set", "evaluation.envs=2")
"""A hundred episodes of a policy that can do nothing yet show nothing more."""
SOONER = {"ALE/Pong-v5": ["--set", "replay.learning_starts=1500", "--set", "replay.capacity=5000"]}
"""Settings by environment that bring the first update into the time of a test."""


def test_there_is_a_spec_for_each_algorithm() -> None:
    assert {yaml.safe_load(path.read_text())["algorithm"]["name"] for path in SPECS} == set(BUILT)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_that_is_worth_starting_from_runs_and_learns(cli: Cli, path: Path) -> None:
    stated = yaml.safe_load(path.read_text())
    run = stated["run"]
    cli("up", str(path), "-d", *FEW, *(SOONER.get(stated["env"]["id"], []) if "replay" in stated else []))

    def learns() -> bool:
        told = cli.status(run)
        return (told["totals"]["updates"] >= 3 and bool(told["evaluation"])) or told["phase"] == "finished"

    wait_until(learns, timeout_s=LIMIT_S, what=f"an update and an evaluation of {run}")
    told = cli.status(run)
    assert told["policies"]["main"]["ledger"]["balanced"]
    assert not told["problems"], told["problems"]
    cli("down", run)
