"""A run that release 0.1 has left behind: it is shown, its logs are read, it is ended; going on with it is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STORED = Path(__file__).parent / "release_0_1"
"""The state folder of 0.1.0 after `rlctl up` and `rlctl down` of CartPole; @STATE@ stands for its own path."""
SPEC = "run: old\nenv: {id: CartPole-v1}\nalgorithm: {name: impala, lr: 1e-3}\nstop: {agent_steps: 20000000}\n"

pytestmark = pytest.mark.processes


def rlctl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "rlctl", *arguments], cwd=folder, env=environ, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    state = tmp_path / "rlctl"
    shutil.copytree(STORED, state)
    for path in state.rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace("@STATE@", str(state)))
            path.chmod(0o600)
    for path in [state, *state.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


def test_it_is_listed_shown_and_its_logs_are_read(folder: Path) -> None:
    assert "old" in rlctl(folder, "status").stdout
    told = rlctl(folder, "status", "old")
    assert told.returncode == 0, told.stderr
    assert "632,657 consumed steps" in told.stdout
    assert "return" in told.stdout
    said = json.loads(rlctl(folder, "status", "old", "-o", "json").stdout)
    assert (
        said["totals"]["consumed_steps"] == said["policies"]["main"]["steps"] == said["checkpoint"]["steps"] == 632657
    )
    assert said["evaluation"]["steps"] == 514149
    assert said["stop"]["conditions"] == {"agent_steps": 20000000}
    logs = rlctl(folder, "logs", "--run", "old")
    assert logs.returncode == 0, logs.stderr
    assert "generation 2 saved at version 993" in logs.stdout
    assert rlctl(folder, "history", "old").returncode == 0


def test_up_names_the_release_that_started_it_and_the_way_out(folder: Path) -> None:
    refused = rlctl(folder, "up", "spec.yaml", "-d")
    assert refused.returncode == 5, refused.stderr
    assert "run old was started by rlctl 0.1.0, whose spec this release cannot read" in refused.stderr
    assert "use that release, or give the spec another `run:` name" in refused.stderr


def test_down_ends_it_and_removes_its_data_only_when_asked_to(folder: Path) -> None:
    run = next((folder / "rlctl" / "runs").iterdir())
    assert rlctl(folder, "down", "old").returncode == 0
    assert run.is_dir()
    assert rlctl(folder, "down", "old", "--volumes", "--yes").returncode == 0
    assert not run.exists()
