"""Every scaffold of `rlctl init` trains, and one is redeployed by a push.

tests/end_to_end/test_outside_project.py trains the environment of the default one to its goal.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rlctl.cli.verbs.init import scaffolds
from tests.ci.lights import Ci
from tests.end_to_end.conftest import Cli

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.mark.parametrize("kind", ["network", "algorithm"])
def test_a_network_and_an_algorithm_of_ones_own_learn(cli: Cli, kind: str) -> None:
    cli("init", "project", "--kind", kind)
    project = Cli(cli.folder / "project", cli.env)
    short = ("--set", "stop.agent_steps=16000", "--set", "stop.eval_return=null", "--set", "evaluation.episodes=20")
    project("up", "spec.yaml", *short)
    status = cli.status(f"own-{kind}")
    assert status["phase"] == "finished"
    assert status["totals"]["consumed_steps"] >= 16_000
    assert status["evaluation"]["mean"] >= 40.0, "a random policy has 22"


@pytest.mark.parametrize(("kind", "agent_steps"), [("atari", 480), ("continuous", 2048)])
def test_a_scaffold_without_code_of_its_own_trains(cli: Cli, kind: str, agent_steps: int) -> None:
    """By `rlctl debug`, a third of the CPU of `rlctl up`: what is new here is the spec."""
    cli("init", "project", "--kind", kind)
    project = Cli(cli.folder / "project", cli.env)
    ended = project("debug", "spec.yaml", "--set", f"stop.agent_steps={agent_steps}", "--episodes", "0", "-o", "json")
    updates = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(one["finite"] for one in updates[:-1])
    assert updates[-1]["summary"]["steps"] >= agent_steps


class Forge(NamedTuple):
    """A bare repository in place of the one of ci.yaml."""

    origin: Path
    copy: Path

    def git(self, *arguments: str) -> str:
        who = {f"GIT_{role}_{key}": "ana@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
        return subprocess.run(
            ["git", *arguments], cwd=self.copy, env={**os.environ, **who}, check=True, capture_output=True, text=True
        ).stdout.strip()

    def push(self, note: str) -> str:
        """Commit all there is and push it; returns the commit."""
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", note)
        self.git("push", "--quiet", str(self.origin), "main")
        return self.git("rev-parse", "HEAD")


def test_the_project_with_ci_is_redeployed_by_a_push(cli: Cli) -> None:
    cli("init", "project", "--kind", "ci")
    folder = cli.folder / "project"
    forge = Forge(cli.folder / "origin.git", folder / "repository")
    forge.git("init", "--quiet", "--bare", "--initial-branch=main", str(forge.origin))
    forge.git("init", "--quiet", "--initial-branch=main")
    forge.push("lights")
    repository = Cli(forge.copy, cli.env)
    repository("up", "spec.yaml", "-d")
    (project,) = yaml.safe_load((folder / "service/ci.yaml").read_text())["projects"].values()
    project |= {"repository": str(forge.origin), "verify": {"watch_s": 3, "min_throughput": 0.01}}
    ci = Ci(Cli(folder / "service", cli.env), folder / "service", cli.env, forge, **project)
    try:
        ci.start()
        repository("wait", "lights", "--for", "consumed_steps=3000", "--timeout", "120s")
        code = forge.copy / "code" / "lights.py"
        code.write_text(code.read_text().replace("self.left = 20", "self.left = 10"))
        build = ci.hook(forge.push("shorter episodes"))
        assert ci.ended(build, timeout_s=240)["state"] == "succeeded", ci.log(build)
    finally:
        ci.stop()
    assert cli.status("lights")["revision"] == 2


def test_every_scaffold_is_trained_by_a_test() -> None:
    assert {"environment", "network", "algorithm", "atari", "continuous", "ci"} == set(scaffolds())
