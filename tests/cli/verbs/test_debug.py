"""`rlctl debug`: what it becomes, and what it refuses before."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Sequence

import pytest

from rlctl.cli import main
from rlctl.cli.context import World
from tests.cli.conftest import Rlctl


def asked(rlctl: Rlctl, *arguments: str) -> tuple[int, str, list[Sequence[str]]]:
    """Exit code, stderr, and the program that it became."""
    became: list[Sequence[str]] = []
    chat = io.StringIO()
    world = World(io.StringIO(), chat, environ=rlctl.environ, targets=rlctl.targets, become=became.append)
    return main.run(["debug", *arguments], world), chat.getvalue(), became


def test_it_becomes_the_roles_in_one_process_with_all_that_was_said(rlctl: Rlctl) -> None:
    code, chat, became = asked(rlctl, rlctl.spec, "--set", "seed=3", "--updates", "2", "--pdb", "-o", "json", "-q")
    assert (code, chat) == (0, "")
    assert became == [
        [
            sys.executable, "-m", "rlctl_agents", "debug", rlctl.spec, "--set=seed=3", "--updates=2", "--episodes=1",
            "--json", "--quiet", "--pdb",
        ]
    ]  # fmt: skip


def test_the_run_that_the_environment_names_is_debugged(rlctl: Rlctl) -> None:
    rlctl.environ["RLCTL_RUN"] = "other"
    command = asked(rlctl, rlctl.spec, "--set", "seed=3")[2][0]
    assert [one for one in command if one.startswith("--set")] == ["--set=run=other", "--set=seed=3"]


def test_a_spec_for_a_cluster_is_debugged_on_this_machine(rlctl: Rlctl) -> None:
    rlctl.environ["RLCTL_TARGET"] = "kubernetes"
    assert asked(rlctl, rlctl.spec, "--set", "target=kubernetes")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("--set", "seed=x"), 3, "--set seed=x: seed: must be a whole number"),
        (("--updates", "-1"), 2, "--updates must be from 0 to 1,000,000, got -1"),
        (("--episodes", "2000000"), 2, "--episodes must be from 0 to 1,000,000"),
        (("-",), 2, "standard input is the debugger's: name a spec file"),
    ],
)
def test_a_fault_of_the_spec_or_the_command_line_is_told_before(
    rlctl: Rlctl, arguments: tuple[str, ...], exit_code: int, said: str
) -> None:
    code, chat, became = asked(rlctl, rlctl.spec, *arguments)
    assert code == exit_code
    assert said in chat
    assert became == []


def test_without_torch_the_extra_is_named(rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    code, chat, became = asked(rlctl, rlctl.spec)
    assert (code, became) == (2, [])
    assert 'pip install "rlctl[local]"' in chat
