"""Start-up: a command imports what it needs, and nothing of the agents."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.clusters import CLUSTER_SPEC
from tests.support.samples import sample

pytestmark = pytest.mark.processes

HEAVY = ("torch", "zmq", "numpy", "kubernetes", "msgspec", "gymnasium", "rlctl_agents", "optuna", "matplotlib")
NOT_TO_PARSE = (*HEAVY, "jinja2", "rich", "yaml", "supervisor", "psutil")
NOT_FOR_HELP = (*NOT_TO_PARSE, "pydantic")  # typer reads the options of a command with it
COMPLETION = {"_RLCTL_COMPLETE": "complete_bash", "COMP_WORDS": "rlctl status ", "COMP_CWORD": "2"}


def run(tmp_path: Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The program, and what it imported, from `-X importtime`."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **variables}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rlctl", *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done, {line.rpartition("|")[2].strip().split(".")[0] for line in lines}


SPEC = "run: light\nenv: {id: CartPole-v1}\nstop: {agent_steps: 10}\n"


VERBS: list[tuple[list[str], int | None]] = [
    (["status"], 2),
    (["logs"], 2),
    (["down"], 0),
    (["lint", "spec.yaml"], None),
    (["render", "spec.yaml"], 0),
    (["diff", "spec.yaml"], 1),
    (["history"], 2),
    (["open", "status"], 2),
    (["doctor"], None),
    (["profile", "learner"], 2),
    (["debug", "none.yaml"], 3),
    (["sweep", "list"], 0),
    (["compare", "pole"], 2),
    (["render", "cluster.yaml"], 0),
    (["up", "cluster.yaml", "--dry-run", "client"], 0),
    (["render", "--admin", "-n", "team", "--user", "ann"], 0),
]
"""With the exit code; None: depends on the machine."""


@pytest.mark.parametrize(("arguments", "code"), sample("light verbs", VERBS, 6))
def test_no_verb_imports_what_only_the_agents_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int | None
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "cluster.yaml").write_text(CLUSTER_SPEC)
    monkeypatch.chdir(tmp_path)
    done, imported = run(tmp_path, *arguments)
    assert code is None or done.returncode == code, done.stderr[-2000:]
    assert imported.isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-h"]])
def test_help_and_version_import_almost_nothing(tmp_path: Path, arguments: list[str]) -> None:
    done, imported = run(tmp_path, *arguments)
    assert done.returncode == 0
    assert imported.isdisjoint(NOT_FOR_HELP)


def test_completion_knows_the_recorded_runs_and_stays_light(tmp_path: Path) -> None:
    index = tmp_path / "state" / "rlctl" / "index"
    index.mkdir(parents=True)
    for name in ("pole", "pong"):
        (index / f"{name}.json").write_text("{}")
    done, imported = run(tmp_path, **COMPLETION)
    assert done.stdout.split() == ["pole", "pong"]
    assert imported.isdisjoint(NOT_TO_PARSE)


def test_completion_knows_roles_and_commands(tmp_path: Path) -> None:
    words = {**COMPLETION, "COMP_WORDS": "rlctl restart l"}
    assert run(tmp_path, **words)[0].stdout.split() == ["learner"]
    words = {**COMPLETION, "COMP_WORDS": "rlctl st", "COMP_CWORD": "1"}
    assert run(tmp_path, **words)[0].stdout.split() == ["status"]
