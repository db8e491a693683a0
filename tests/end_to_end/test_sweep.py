"""A sweep of real runs with its command killed in the middle, and the comparison of what they learned."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

SPEC: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "impala"},
    "roles": {"actor": {"envs": 8}},
    "evaluation": {"episodes": 10, "every": "2s", "envs": 10},
    "stop": {"agent_steps": 4000},
}
SWEEP = ("--set", "algorithm.lr=1e-3,1e-4", "--seeds", "2")


def test_a_sweep_killed_in_the_middle_goes_on_and_trains_no_run_twice(cli: Cli) -> None:
    spec = cli.spec("pole", **SPEC)

    def trials() -> dict[str, str]:
        listed = subprocess.run(
            [sys.executable, "-m", "rlctl", "sweep", "list", "pole", "-o", "json"],
            cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return {one["run"]: one["state"] for one in json.loads(listed.stdout).get("trials", ())}

    command = [sys.executable, "-m", "rlctl", "sweep", spec, *SWEEP]
    with subprocess.Popen(
        command, cwd=cli.folder, env=cli.env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        begun = Path(cli.env["XDG_STATE_HOME"]) / "rlctl" / "index" / "pole-2.json"
        wait_until(begun.exists, timeout_s=240, what="the second trial")  # cheap: what runs needs the processor
        wait_until(lambda: trials().get("pole-2") == "running", timeout_s=60, what="the second trial to run")
        first.kill()
    assert trials()["pole-1"] == "finished"
    before = {run: cli.status(run)["uid"] for run in ("pole-1", "pole-2")}

    done = cli("sweep", spec, *SWEEP, "--parallel", "2", "-o", "json", timeout_s=500)
    told = json.loads(done.stdout)
    assert [one["state"] for one in told["trials"]] == ["finished"] * 4
    for run in ("pole-1", "pole-2", "pole-3", "pole-4"):
        status = cli.status(run)
        assert status["term"] == 1, f"the manager of {run} was started once"
        assert 4000 <= status["totals"]["consumed_steps"] < 4000 + 320
        assert status["revision"] == 1
    assert before == {run: cli.status(run)["uid"] for run in before}
    assert [len(group["runs"]) for group in told["comparison"]["groups"]] == [2, 2]

    again = cli("sweep", spec, *SWEEP)
    assert "4 finished" in again.stderr
    cli("compare", "pole", "--plot", "plot.svg")
    assert (cli.folder / "plot.svg").read_text().count("algorithm.lr=") >= 2
    assert json.loads(cli("models", "pole-3", "-o", "json").stdout)["models"]
    cli("sweep", "clean", "pole", "--yes")
    cli("status", "pole-1", exit_code=2)
