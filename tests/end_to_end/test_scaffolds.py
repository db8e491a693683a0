"""Every scaffold of `rlctl init` trains, and one is redeployed by a push."""

from __future__ import annotations

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


class Short(NamedTuple):
    """A short training of a scaffold."""

    agent_steps: int
    sets: tuple[str, ...] = ()
    least: float = float("-inf")  # mean return of the last evaluation


SHORT = {
    "environment": Short(20_000, least=0.0),  # a random walk has -0.34
    "network": Short(16_000, least=40.0),  # a random policy has 22
    "algorithm": Short(16_000, least=40.0),
    "atari": Short(1_000, ("env.max_episode_steps=100", "evaluation.episodes=2", "evaluation.every=null")),
    "continuous": Short(3_000),
}


@pytest.mark.parametrize("kind", SHORT)
def test_a_scaffold_trains(cli: Cli, kind: str) -> None:
    if kind == "atari":
        pytest.importorskip("ale_py")
    short = SHORT[kind]
    cli("init", "project", "--kind", kind)
    project = Cli(cli.folder / "project", cli.env)
    sets = (f"stop.agent_steps={short.agent_steps}", "evaluation.episodes=20", "stop.eval_return=null", *short.sets)
    project("up", "spec.yaml", *(word for one in sets for word in ("--set", one)), timeout_s=200)
    status = cli.status(yaml.safe_load((project.folder / "spec.yaml").read_text())["run"])
    assert status["phase"] == "finished"
    assert status["totals"]["consumed_steps"] >= short.agent_steps
    assert status["evaluation"]["mean"] >= short.least


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
    local = {"repository": str(forge.origin), "poll_s": 0, "verify": {"watch_s": 1, "min_throughput": 0.01}}
    ci = Ci(cli, folder / "service", cli.env, forge, **{**project, **local})
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
    assert {*SHORT, "ci"} == set(scaffolds())
