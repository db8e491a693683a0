"""`rlctl models`, `pull`, `eval`, `play` and `export` on the memory target."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from rlctl.cli.text import rfc3339
from rlctl.cli.verbs import export
from rlctl.spec.layout import Layout
from rlctl_agents.models.weights import unpack_into
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
    assert told[0]["created"] == rfc3339(datetime.fromtimestamp(store.evaluation(17, 212.3).time, UTC))


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
        (["export", "pole", "policy.h5"], "name it .onnx, .pt2 or .safetensors"),
        (["export", "pole@goal", "policy.onnx"], "run pole has no model goal"),
    ],
)
def test_what_cannot_be_asked_for_is_said(rlctl: Rlctl, layout: Layout, arguments: list[str], said: str) -> None:
    result = rlctl(*arguments)
    assert result.code == 2, result.err
    assert said in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["export", "pole", "{}/policy.safetensors"],
        ["pull", "pole", "{}"],
        ["play", "pole", "--video", "{}"],
    ],
)
def test_a_place_that_cannot_be_written_is_the_users_mistake(
    rlctl: Rlctl, layout: Layout, arguments: list[str]
) -> None:
    wrong = rlctl.write("file", "").joinpath("below")
    result = rlctl(*(word.format(wrong) for word in arguments))
    assert result.code == 2
    assert f"error: cannot write {wrong}" in result.err
    assert "name another place" in result.err
    assert "storage.path" not in result.err


@pytest.mark.parametrize("verb", ["export", "pull"])
def test_a_file_system_without_links_gets_a_copy(
    rlctl: Rlctl, layout: Layout, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    monkeypatch.setattr(os, "link", refuse)
    (folder := rlctl.folder / "mounted").mkdir()
    file = folder / "policy.safetensors"
    assert rlctl(verb, "pole", str(file if verb == "export" else folder)).code == 0
    assert file.stat().st_size > 100
    assert {path.name for path in folder.iterdir()} <= {"policy.safetensors", "policy.json", "run.json"}


@pytest.mark.parametrize("which", ["best", "3"])
def test_weights_are_exported_with_their_description(rlctl: Rlctl, layout: Layout, which: str) -> None:
    file = rlctl.folder / "new" / "policy.safetensors"
    result = rlctl("export", f"pole@{which}", str(file), "-o", "json")
    assert result.code == 0, result.err
    assert (result.json["bytes"], result.json["checked"]) == (file.stat().st_size, None)
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with safe_open(file, "np") as opened:
        described = json.loads(opened.metadata()["policy.json"])
    assert (described["steps"], described["origin"]["run"], described["origin"]["model"]) == (1234, "pole", which)
    net = store.generation(Layout(rlctl.folder / "again"), *KINDS[0]).net  # of the same seed
    before = {name: values.clone() for name, values in net.state_dict().items()}
    for values in net.parameters():
        values.data.zero_()
    assert unpack_into(net, file.read_bytes()) == 1234
    assert all(torch.equal(values, net.state_dict()[name]) for name, values in before.items())


def test_an_exported_file_is_not_overwritten_unless_asked(rlctl: Rlctl, layout: Layout) -> None:
    file = rlctl.folder / "policy.safetensors"
    file.write_text("mine")
    result = rlctl("export", "pole", str(file))
    assert result.code == 9
    assert "is there, and is not overwritten" in result.err
    assert file.read_text() == "mine"
    assert rlctl("export", "pole", str(file), "--force").code == 0
    assert file.stat().st_size > 100
    (folder := rlctl.folder / "folder.pt2").mkdir()
    assert rlctl("export", "pole", str(folder), "--force").code == 9


def test_damaged_weights_are_not_exported(rlctl: Rlctl, layout: Layout) -> None:
    folder = rlctl.folder / "model"
    assert rlctl("pull", "pole", str(folder)).code == 0
    store.flip(folder / "policy.safetensors")
    result = rlctl("export", str(folder), str(rlctl.folder / "policy.safetensors"))
    assert (result.code, "its bytes are not those that were stored" in result.err) == (1, True)
    assert not (rlctl.folder / "policy.safetensors").exists()


def test_a_missing_exporter_is_named_with_its_extra(
    rlctl: Rlctl, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else real(name))
    result = rlctl("export", "pole", str(rlctl.folder / "policy.onnx"))
    assert result.code == 2
    assert "onnxscript is not installed here" in result.err
    assert 'pip install "rlctl[export]"' in result.err
    assert not list(rlctl.folder.glob("*policy*"))


@pytest.mark.parametrize("checked", [None, {"by": "onnxruntime 1.32.0", "observations": 68, "difference": 2e-7}])
def test_a_graph_is_shown_with_its_ends_and_whether_it_was_checked(
    rlctl: Rlctl, layout: Layout, monkeypatch: pytest.MonkeyPatch, checked: Any
) -> None:
    asked: list[dict[str, Any]] = []

    def played(program: str, question: dict[str, Any], code: Any, **more: Any) -> Any:
        asked.append({"program": program, "code": code, **question})
        assert rlctl.backend.reading == 0, "a pod that reads a volume would wait for it"
        with open(question["file"], "w") as file:
            file.write("graph")
        yield {
            "inputs": [{"name": "obs", "dtype": "uint8", "shape": ["batch", 84, 84]}],
            "outputs": [{"name": "action", "dtype": "int64", "shape": ["batch"]}], "checked": checked,
        }  # fmt: skip

    monkeypatch.setattr(export, "played", played)
    file = rlctl.folder / "policy.onnx"
    result = rlctl("export", "pole@best", str(file))
    assert result.code == 0, result.err
    assert [line.split() for line in result.out.splitlines()] == [
        ["inputs", "obs", "uint8", "[batch,", "84,", "84]"], ["outputs", "action", "int64", "[batch]"],
    ]  # fmt: skip
    said = "acts as the policy, largest difference 2e-07" if checked else 'pip install "rlctl[export]"'
    assert said in result.err
    assert file.read_text() == "graph"
    assert (asked[0]["program"], asked[0]["code"], asked[0]["origin"]["model"]) == ("export", None, "best")
