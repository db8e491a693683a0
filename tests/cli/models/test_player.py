"""The child process that plays: its answers, its end, and what its environment has started."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest

from rlctl.cli.models import player
from rlctl.errors import BackendUnreachable, RlctlError

CHILD = """
import json, os, subprocess, sys
held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
question = json.loads(sys.stdin.read())
for number in range(question["answers"]):
    print(json.dumps({"number": number, "held": held.pid}), flush=True)
if question["full"]:
    print(json.dumps({"error": "No space left on device", "errno": 28, "file": "policy.onnx"}), flush=True)
if question["error"]:
    print(json.dumps({"error": "no such thing", "environment": question["blamed"]}), flush=True)
os._exit(question["code"])
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks a child that leaves a process behind, which holds its pipe."""
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return real([sys.executable, "-c", CHILD], **options)

    monkeypatch.setattr(player.subprocess, "Popen", popen)

    def ask(
        *, answers: int, given: int, error: bool = False, full: bool = False, blamed: str = "", code: int = 0
    ) -> list[dict[str, Any]]:
        question = {"answers": given, "error": error, "full": full, "blamed": blamed, "code": code}
        return list(player.played("play", question, None, answers=answers))

    return ask


@pytest.mark.processes
def test_answers_are_counted_and_nothing_is_left_running(asked: Any) -> None:
    found = asked(answers=2, given=2)
    assert [one["number"] for one in found] == [0, 1]
    with suppress(ProcessLookupError):  # init may have taken it already
        assert select.select([os.pidfd_open(found[0]["held"])], [], [], 20)[0]


@pytest.mark.processes
def test_a_full_disk_of_the_child_is_one_of_ours(asked: Any) -> None:
    with pytest.raises(BackendUnreachable, match=r"play: policy\.onnx: No space left on device") as told:
        asked(answers=1, given=0, full=True)
    assert told.value.hint.startswith("Free some space")


@pytest.mark.processes
def test_a_child_that_fails_after_its_last_answer_is_told(asked: Any) -> None:
    with pytest.raises(RlctlError, match="play ended with exit code 4"):
        asked(answers=1, given=1, code=4)


@pytest.mark.processes
@pytest.mark.parametrize(("error", "said"), [(True, "no such thing"), (False, "play ended with exit code 3")])
def test_a_child_that_ends_early_is_told_though_its_pipe_is_held(asked: Any, error: bool, said: str) -> None:
    with pytest.raises(RlctlError, match=said):
        asked(answers=3, given=1, error=error, code=3)


@pytest.mark.processes
@pytest.mark.parametrize(("blamed", "code"), [("", 1), ("refused", 3), ("crashed", 7)])
def test_what_the_environment_did_has_an_exit_code_of_its_own(asked: Any, blamed: str, code: int) -> None:
    with pytest.raises(RlctlError, match="no such thing") as told:
        asked(answers=1, given=0, error=True, blamed=blamed)
    assert told.value.exit_code == code
