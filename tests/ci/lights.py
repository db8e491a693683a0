"""A small training with its environment in a repository on this machine, and the service that hears of its pushes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.ports import free_ports

ENVIRONMENT: Final = '''
import time

import gymnasium
import numpy as np

NOTE = "{note}"


class Guess(gymnasium.Env):
    """Shown one of two lights, press the button below it: 1 for the right one, 20 times an episode. A step takes a
    millisecond, so that a training that goes on while a test waits leaves the processor to others."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def _see(self):
        self.light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.light]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self._see(), {{}}

    def step(self, action):
        time.sleep(0.001)
        {step}
        reward = float(action == self.light)
        self.left -= 1
        return self._see(), reward, self.left == 0, False, {{}}
'''
SPEC: Final[Mapping[str, Any]] = {
    "run": "lights",
    "env": {"id": "lights.guess:Guess"},
    "algorithm": {"name": "impala", "unroll_length": 10, "batch_size": 160, "gamma": 0.0},
    "code": {"path": "."},
    "roles": {"actor": {"envs": 16}},
    "evaluation": {"episodes": 10, "every": "5s"},
    "checkpoint": {"every": "2s"},
}


class Forge:
    """A repository on this machine, and its author."""

    def __init__(self, folder: Path, spec: Mapping[str, Any] = SPEC) -> None:
        self.origin, self.copy, self.spec = folder / "origin.git", folder / "copy", spec
        self._git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        self._git(folder, "clone", "--quiet", str(self.origin), str(self.copy))
        self._git(self.copy, "checkout", "--quiet", "-B", "main")

    def commit(self, note: str, step: str = "pass", **files: str) -> str:
        """Change the environment, and files beside the spec, and push; returns the commit."""
        package = self.copy / "lights"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "guess.py").write_text(ENVIRONMENT.format(note=note, step=step))
        for name, text in {"spec.yaml": yaml.safe_dump(dict(self.spec)), **files}.items():
            (self.copy / name).write_text(text)
        self._git(self.copy, "add", "-A")
        self._git(self.copy, "commit", "--quiet", "-m", note)
        self._git(self.copy, "push", "--quiet", "origin", "main")
        return self._git(self.copy, "rev-parse", "HEAD").strip()

    def _git(self, folder: Path, *arguments: str) -> str:
        who = {
            "GIT_AUTHOR_NAME": "ana",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "ana",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        return subprocess.run(
            ["git", *arguments], cwd=folder, env={**os.environ, **who}, check=True, capture_output=True, text=True
        ).stdout


class Ci:
    """`rlctl ci serve` for one project, and its verbs.

    Args:
        rlctl: runs a command; its answer has `stdout`.
        folder: where commands run.
        env: what they are started with.
        forge: the repository with the pushes to listen for.
        project: what ci.yaml says of it besides.
    """

    def __init__(
        self, rlctl: Callable[..., Any], folder: Path, env: Mapping[str, str], forge: Forge, /, **project: Any
    ) -> None:
        self.rlctl, self.folder, self.env = rlctl, folder, env
        (self.port,) = free_ports(1)
        (folder / "secret").write_text("the secret of this forge\n")
        usual = {
            "forge": "gitea",
            "repository": str(forge.origin),
            "secret_file": "secret",
            "run": "lights",
            "poll_s": 0,
        }
        content = {"listen": f"127.0.0.1:{self.port}", "projects": {"lights": {**usual, **project}}}
        (folder / "ci.yaml").write_text(yaml.safe_dump(content))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.folder / "ci.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl", "ci", "serve"], cwd=self.folder, env=dict(self.env),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self._listens():
            assert self.process.poll() is None, (self.folder / "ci.log").read_text()
            assert time.monotonic() < deadline, "the service does not listen"
            time.sleep(0.1)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(30)

    def hook(self, sha: str) -> int:
        """A signed push; the number of its build."""
        answer = json.loads(self.rlctl("ci", "test-hook", "lights", "--sha", sha, "-o", "json").stdout)
        return int(json.loads(answer["answer"])["build_id"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def build(self, number: int) -> dict[str, Any]:
        """A build with its events and artifacts, as its page knows it."""
        return self._page(f"builds/{number}.json")

    def pins(self) -> dict[str, str]:
        """Branch -> the bad commit that it is pinned at."""
        (project,) = self._page("index.json")["projects"]
        return {pin["branch"]: pin["sha"] for pin in project["pins"]}

    def _page(self, name: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/{name}", timeout=10) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def ended(self, number: int, timeout_s: float = 4000.0) -> dict[str, Any]:
        """The same, once it is over."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.build(number))["terminal"]:
            assert time.monotonic() < deadline, f"build {number} is not over\n{self.log(number)}"
            time.sleep(0.25)
        return found

    def log(self, number: int) -> str:
        return str(self.rlctl("ci", "log", str(number), "--url", self.url).stdout)
