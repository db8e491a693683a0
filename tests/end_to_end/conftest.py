"""Runs the real command line, the real supervisor and the real roles in a state folder of the test's own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from rlctl.cli import main
from rlctl.cli.context import World

PACED = """import time

import gymnasium


class CartPole(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        time.sleep(0.001)
        return super().step(action)
"""


@dataclass(frozen=True)
class Cli:
    """`rlctl` as a user on a machine of their own would run it."""

    folder: Path
    env: dict[str, str]

    def __call__(
        self, *arguments: str, exit_code: int = 0, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "rlctl", *arguments],
            cwd=self.folder, env=self.env, timeout=timeout_s, text=True, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == exit_code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def status(self, run: str) -> dict[str, Any]:
        """As `rlctl status -o json` prints it; in this process, since tests ask until something has happened."""
        said, chat = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
                patch.setenv(name, self.env[name])
            code = main.run(["status", run, "-o", "json"], World(said, chat, environ=self.env))
        assert code == 0, f"status {run}: exit {code}\n{said.getvalue()}\n{chat.getvalue()}"
        return json.loads(said.getvalue())  # type: ignore[no-any-return]

    def spec(self, name: str, **fields: Any) -> str:
        """Write a spec file; returns its name."""
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump({"run": name, **fields}))
        return f"{name}.yaml"

    def paced(self) -> dict[str, Any]:
        """Fields of a spec: CartPole with steps of a millisecond. Its run leaves the processor to others."""
        (self.folder / "paced.py").write_text(PACED)
        return {"env": {"id": "paced:CartPole"}, "code": {"path": "."}}

    def root(self, run: str) -> Path:
        """The folder of the run."""
        (root,) = (Path(self.env["XDG_STATE_HOME"]) / "rlctl" / "runs").glob(f"{run}-*")
        return root

    def pids(self, run: str, role: str) -> list[int]:
        """Live role processes of the run, by index."""
        found: list[tuple[str, int]] = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "rlctl_agents" in line and role in line and any(str(self.root(run)) in word for word in line):
                found.append((line[line.index("--name") + 1], process.pid))
        return [pid for _, pid in sorted(found)]


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.25)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with tempfile.TemporaryDirectory(prefix="rlctl-test-", dir="/tmp") as short:
        state = Path(short) / "state"
        runtime = Path(short) / "run"
        runtime.mkdir(mode=0o700)
        env = {key: value for key, value in os.environ.items() if not key.startswith("RLCTL_")}
        env |= {"XDG_STATE_HOME": str(state), "XDG_RUNTIME_DIR": str(runtime), "NO_COLOR": "1"}
        program = Cli(tmp_path, env)
        try:
            yield program
        finally:
            for index in (state / "rlctl" / "index").glob("*.json"):
                subprocess.run(
                    [sys.executable, "-m", "rlctl", "down", index.stem],
                    env=env, cwd=tmp_path, timeout=240, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                )  # fmt: skip
