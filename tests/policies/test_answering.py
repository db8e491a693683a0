"""Messages of programs with a stored model about an environment that has changed, and about a disk that is full."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast

import pytest

from rlctl_agents.checkpoint.policy import PolicyFile
from rlctl_agents.envs.base import Env, EnvError, EnvRefused
from rlctl_agents.policies import answering, show
from rlctl_agents.types.spaces import Box, Dict, Discrete, Spaces

CAMERA = Box((8, 8, 3), "uint8", 0, 255)
THEN = Spaces(Dict({"camera": CAMERA, "speed": Box((2,), "float32")}), Discrete(3))


def required(now: Spaces) -> None:
    env, described = SimpleNamespace(spaces=now), SimpleNamespace(spaces=THEN)
    answering.require_spaces(cast(Env, env), cast(PolicyFile, described))


def test_spaces_that_differ_are_told_leaf_by_leaf() -> None:
    required(THEN)
    with pytest.raises(EnvRefused) as told:
        required(Spaces(Dict({"camera": CAMERA, "heading": Box((1,), "float32")}), Discrete(4)))
    said = str(told.value)
    assert "`action` is Discrete(n=4), and was Discrete(n=3)" in said
    assert "`obs.heading` is Box(shape=(1,), dtype='float32'" in said
    assert "`obs.speed` is not there, and was Box(shape=(2,)" in said
    assert "obs.camera" not in said
    assert "--code DIR" in said


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Mapping[str, Any], TextIO], None]], Any]:
    """The one answer of a program."""

    def ask(work: Callable[[Mapping[str, Any], TextIO], None]) -> Any:
        out, into = os.pipe()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"{}")))
        monkeypatch.setattr(answering.os, "dup", lambda _: into)
        monkeypatch.setattr(answering.os, "dup2", lambda *_: None)
        monkeypatch.setattr(answering.torch, "set_num_threads", lambda _: None)
        assert answering.answering(work) == 1
        with os.fdopen(out) as answers:
            return json.loads(answers.readline())

    return ask


def test_what_cannot_be_written_is_named(answered: Any, tmp_path: Path) -> None:
    def work(question: Mapping[str, Any], answers: TextIO) -> None:
        with answering.writing(tmp_path / "policy.pt2"):
            Path("/dev/full").write_bytes(b"x")

    file = str(tmp_path / "policy.pt2")
    assert answered(work) == {"error": "No space left on device", "errno": errno.ENOSPC, "file": file}


def test_an_environment_that_fails_is_blamed_with_its_traceback(
    answered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(question: Mapping[str, Any], answers: TextIO) -> None:
        try:
            raise ZeroDivisionError("tired")
        except ZeroDivisionError as error:
            raise EnvError("step raised ZeroDivisionError: tired") from error

    assert answered(work) == {"error": "step raised ZeroDivisionError: tired", "environment": "crashed"}
    assert f'File "{__file__}"' in capsys.readouterr().err


def test_an_environment_that_cannot_be_made_is_blamed_without(answered: Any, capsys: Any) -> None:
    def work(question: Mapping[str, Any], answers: TextIO) -> None:
        raise EnvRefused("no module garden")

    assert answered(work) == {"error": "no module garden", "environment": "refused"}
    assert capsys.readouterr().err == ""


def test_an_environment_that_takes_no_render_mode_is_told_how_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "stored_model", lambda question: (None, None))
    question = {"env": {"id": "tests.envs.test_rendering:Undrawn"}, "video": "film", "folder": "", "mode": "greedy"}
    with pytest.raises(EnvRefused, match="takes render_mode as an argument of its constructor"):
        show._show(question, io.StringIO())
    question = {**question, "env": {"id": "tests.envs.test_rendering:Windowless"}, "video": None}
    with pytest.raises(EnvRefused, match=r"--video DIR makes GIFs$"):
        show._show(question, io.StringIO())
