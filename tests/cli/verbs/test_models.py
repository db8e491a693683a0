"""`rlctl models`, `pull`, `eval` and `play` on the memory target."""

from __future__ import annotations

import pytest

from rlctl.spec.layout import Layout
from tests.cli.conftest import Rlctl
from tests.cli.models import store
from tests.training.test_stored_policy import KINDS


@pytest.fixture
def layout(rlctl: Rlctl) -> Layout:
    """Of the run pole, which has a best model and a generation."""
    rlctl.up()
    layout = rlctl.backend.files = Layout(rlctl.folder / "files")
    store.best(layout, store.generation(layout, *KINDS[0]), *KINDS[0])
    return layout


def test_models_are_a_table(rlctl: Rlctl, layout: Layout) -> None:
    result = rlctl("models", "--utc")
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["MODEL", "POLICY", "VERSION", "STEPS", "GREEDY", "SAMPLED", "STORED", "SIZE"]
    assert lines[1][:10] == ["best", "main", "17", "1.23k", "212.3", "±", "41.5", "(100)", "187.5", "±"]
    assert lines[2][:6] == ["3", "main", "17", "1.23k", "-", "-"]
    told = rlctl("models", "-o", "json").json["models"]
    assert [(one["name"], one["version"], one["agent_steps"]) for one in told] == [("best", 17, 1234), ("3", 17, 1234)]
    assert told[0]["evaluations"]["sample"]["mean"] == 187.5


def test_a_run_without_models_says_so(rlctl: Rlctl) -> None:
    rlctl.up()
    result = rlctl("models")
    assert (result.code, result.out) == (0, "")
    assert "has stored no model yet" in result.err
    for verb in (["pull", "pole", "there"], ["eval", "pole"], ["play", "pole", "--video", "out"]):
        assert rlctl(*verb).code == 2


def test_a_model_is_pulled_and_the_answer_names_its_files(rlctl: Rlctl, layout: Layout) -> None:
    folder = rlctl.folder / "there"
    result = rlctl("pull", "pole@last", str(folder))
    assert result.code == 0, result.err
    assert result.out.splitlines() == [str(folder / name) for name in ("policy.json", "policy.safetensors", "run.json")]
    assert result.err == "pole@3: version 17, learned from 1,234 agent steps\n"
    assert rlctl("pull", "pole", str(folder)).code == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", "pole", "--episodes", "0"], "--episodes must be from 1 to 1,000,000, got 0"),
        (["eval", "pole", "--seed", "-1"], "--seed must be from 0 to"),
        (["eval", "pole@goal"], "run pole has no model goal"),
        (["eval", "pole@nothing"], "names no model"),
        (["eval", "./nowhere"], "is no folder that `rlctl pull` has made"),
        (["play", "pole", "--episodes", "1001"], "--episodes must be from 1 to 1,000, got 1001"),
        (["play", "pole"], "there is no screen for a window here"),
        (["pull", "other@best", "there"], "there is no run other"),
    ],
)
def test_what_cannot_be_asked_for_is_said(rlctl: Rlctl, layout: Layout, arguments: list[str], said: str) -> None:
    result = rlctl(*arguments)
    assert result.code == 2, result.err
    assert said in result.err
