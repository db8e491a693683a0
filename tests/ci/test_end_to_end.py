"""A push: from a signed hook to a training that goes on learning with the new code, and back from a bad one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import Cli, cli, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(3000)]
__all__ = ["cli"]

ENVIRONMENT = '''
import gymnasium
import numpy as np

NOTE = "{note}"


class Guess(gymnasium.Env):
    """Shown one of two lights, press the button below it: 1 for the right one, 20 times an episode."""

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
        {step}
        reward = float(action == self.light)
        self.left -= 1
        return self._see(), reward, self.left == 0, False, {{}}
'''
SPEC: dict[str, Any] = {
    "run": "lights",
    "env": {"id": "lights.guess:Guess"},
    "algorithm": {"name": "impala", "segment_steps": 10, "batch_rows": 160, "discount": 0.0},
    "code": {"path": "."},
    "roles": {"actor": {"envs": 16}},
    "evaluation": {"episodes": 10, "every": "5s"},
    "checkpoint": {"every": "2s"},
}


class Forge:
    """A repository on this machine, and somebody who works on it."""

    def __init__(self, folder: Path) -> None:
        self.origin, self.copy = folder / "origin.git", folder / "copy"
        self._git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        self._git(folder, "clone", "--quiet", str(self.origin), str(self.copy))
        self._git(self.copy, "checkout", "--quiet", "-B", "main")

    def commit(self, note: str, step: str = "pass") -> str:
        """Change the environment and push it; returns the commit."""
        package = self.copy / "lights"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "guess.py").write_text(ENVIRONMENT.format(note=note, step=step))
        (self.copy / "spec.yaml").write_text(yaml.safe_dump(SPEC))
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
    """`rlctl ci serve`, and its verbs."""

    def __init__(self, cli: Cli, forge: Forge) -> None:
        self.cli = cli
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (cli.folder / "secret").write_text("the secret of this forge\n")
        project = {
            "forge": "gitea", "repository": str(forge.origin), "secret_file": "secret", "run": "lights", "poll_s": 0,
            "verify": {"watch_s": 5, "ready_within_s": 500, "min_throughput": 0.01},
        }  # fmt: skip
        content = {"listen": f"127.0.0.1:{self.port}", "projects": {"lights": project}}
        (cli.folder / "ci.yaml").write_text(yaml.safe_dump(content))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.cli.folder / "ci.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl", "ci", "serve"], cwd=self.cli.folder, env=self.cli.env,
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        wait_until(self._listens, timeout_s=60, what="the service")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, *, kill: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if kill else self.process.terminate()
            self.process.wait(30)

    def hook(self, sha: str) -> int:
        answer = json.loads(self.cli("ci", "test-hook", "lights", "--sha", sha, "-o", "json").stdout)
        return int(json.loads(answer["answer"])["build_id"])

    def build(self, number: int) -> dict[str, Any]:
        listed = json.loads(self.cli("ci", "builds", *self.url, "-o", "json").stdout)
        return next(one for one in listed["builds"] if one["id"] == number)

    def ended(self, number: int) -> dict[str, Any]:
        wait_until(lambda: self.build(number)["terminal"], timeout_s=4000, what=f"build {number}")
        return self.build(number)

    @property
    def url(self) -> tuple[str, str]:
        return "--url", f"http://127.0.0.1:{self.port}"

    def log(self, number: int) -> str:
        return self.cli("ci", "log", str(number), *self.url).stdout

    def seconds(self, number: int) -> dict[str, Any]:
        """Until redeployed and verified, and by stage."""
        import urllib.request

        with urllib.request.urlopen(f"{self.url[1]}/builds/{number}.json", timeout=10) as answer:
            return json.loads(answer.read())["seconds"]  # type: ignore[no-any-return]


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    return Forge(tmp_path)


@pytest.fixture
def ci(cli: Cli, forge: Forge) -> Iterator[Ci]:
    found = Ci(cli, forge)
    try:
        yield found
    finally:
        found.stop()


def learned(cli: Cli) -> float:
    return float(cli.status("lights")["totals"]["consumed_rows"])


def test_a_push_redeploys_a_training_that_goes_on_learning_and_a_bad_one_is_rolled_back(
    cli: Cli, forge: Forge, ci: Ci
) -> None:
    forge.commit("first")
    cli("up", str(forge.copy / "spec.yaml"), "-d")
    cli("wait", "lights", "--for", "rows=20000", "--timeout", "500s", timeout_s=520)
    uid, before = cli.status("lights")["uid"], learned(cli)
    stayed = cli.pids("lights", "manager") + cli.pids("lights", "modelpool")
    ci.start()

    good = ci.hook(forge.commit("second"))
    assert ci.ended(good)["state"] == "succeeded", ci.log(good)
    print("push:", seconds := ci.seconds(good))
    assert 0 < seconds["redeployed"] < seconds["verified"]
    assert f"redeployed {seconds['redeployed']:.1f} s after the push" in ci.log(good)
    status = cli.status("lights")
    assert status["uid"] == uid
    assert status["revision"] == 2
    assert cli.pids("lights", "manager") + cli.pids("lights", "modelpool") == stayed, "code is nothing to them"
    assert status["resumed"]["rows"] > 0, "the learner went on from its generation"
    wait_until(lambda: learned(cli) > before, timeout_s=400, what="more to be learned")
    state = json.loads((cli.root("lights") / "run" / "state.json").read_text())
    code = Path(state["spec"]["code"]["path"])
    assert 'NOTE = "second"' in (code / "lights" / "guess.py").read_text()
    assert code.with_name(f"{code.name}.provenance.json").is_file()

    bad = ci.hook(forge.commit("third", step='raise RuntimeError("a bad commit")'))
    ended = ci.ended(bad)
    assert ended["state"] == "rolled_back", ci.log(bad)
    assert "a bad commit" in ci.log(bad)
    print("bad push:", ci.seconds(bad))
    status = cli.status("lights")
    assert status["phase"] == "running"
    state = json.loads((cli.root("lights") / "run" / "state.json").read_text())
    assert Path(state["spec"]["code"]["path"]) == code
    rows = learned(cli)
    wait_until(lambda: learned(cli) > rows, timeout_s=400, what="the run of before to learn")

    again = ci.hook(forge.commit("fourth"))
    assert ci.ended(again)["state"] == "succeeded", ci.log(again)


def test_a_service_that_is_killed_while_it_deploys_finishes_in_its_next_life(cli: Cli, forge: Forge, ci: Ci) -> None:
    forge.commit("first")
    cli("up", str(forge.copy / "spec.yaml"), "-d")
    cli("wait", "lights", "--for", "rows=5000", "--timeout", "500s", timeout_s=520)
    ci.start()
    build = ci.hook(forge.commit("second"))
    wait_until(lambda: ci.build(build)["state"] in ("deploying", "verifying"), timeout_s=400, what="a deployment")
    ci.stop(kill=True)
    time.sleep(0.5)
    ci.start()
    assert ci.ended(build)["state"] == "succeeded", ci.log(build)
    assert cli.status("lights")["revision"] == 2, "it was deployed once"
