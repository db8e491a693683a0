"""The program that `rlctl debug` becomes: what it tells of updates, and of faults."""

from __future__ import annotations

import bdb
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.debugging.program import DebugAnswer, failed, main, run
from rlctl_agents.runtime.process import UserFault
from tests.debugging.test_session import spec_of
from tests.envs.tiny import Mixed


def told(capsys: pytest.CaptureFixture[str], *, as_json: bool = True, **changes: Any) -> tuple[list[str], str]:
    """Lines of two updates, and what was said beside them."""
    out = io.StringIO()
    assert run(spec_of(**changes), DebugAnswer(out, as_json, quiet=False), updates=2, episodes=2) == 0
    return out.getvalue().splitlines(), capsys.readouterr().err


def test_every_update_the_evaluation_and_the_sum_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines, chat = told(capsys, as_json=False)
    assert chat == "all roles in one process and one thread; no run is started, nothing is stored\n"
    heads = ["update 1  steps 40  loss ", "update 2  steps 72  loss ", "evaluation  mean return ", "2 updates from 72 "]
    assert [line[: len(head)] for line, head in zip(lines, heads, strict=True)] == heads
    assert "  entropy " in lines[0]
    assert "  return " in lines[1]
    assert "of 2 whole episodes (greedy)" in lines[2]
    assert lines[3].endswith("nothing was stored")


def test_json_has_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = told(capsys)
    first, second, evaluation, summary = map(json.loads, lines)
    assert {line["apiVersion"] for line in (first, second, evaluation, summary)} == {"rlctl/v1"}
    assert (second["update"], second["version"], second["steps"]) == (2, 2, 72)
    assert {"total", "entropy", "grad_norm"} <= first["stats"].keys()
    assert len(evaluation["evaluation"]["returns"]) == 2
    assert summary["summary"]["updates"] == 2


def test_it_ends_with_the_update_that_reaches_the_steps_of_the_stop_condition(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines, _ = told(capsys, stop={"agent_steps": 30})
    assert [json.loads(line).get("update") for line in lines] == [1, None, None]


def test_seats_that_act_in_turn_are_begun_again_without_lock_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines, chat = told(capsys, env={"id": "tests.envs.tiny:Turns"})
    assert [json.loads(line).get("update") for line in lines] == [1, 2, None, None]
    assert "note: not in lock-step: seats of the environment act in turn" in chat


def test_seats_that_act_in_turn_are_refused_where_the_spec_wants_lock_step(capsys: pytest.CaptureFixture[str]) -> None:
    algorithm = {"name": "impala", "unroll_length": 5, "batch_size": 80}
    with pytest.raises(UserFault, match="sync: true needs an environment whose seats all act in every step"):
        told(capsys, sync=True, env={"id": "tests.envs.tiny:Turns"}, algorithm=algorithm)


def test_a_spec_with_faults_is_told_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text("run: x\nenv: {id: CartPole-v1}\nsedd: 1\nsync: 7\n")
    assert main([str(tmp_path / "spec.yaml")]) == 3
    problems = capsys.readouterr().err
    assert f"{tmp_path}/spec.yaml:3:1: sedd: unknown key" in problems
    assert f"{tmp_path}/spec.yaml:4:1: sync: must be true or false" in problems


def test_a_fault_without_code_of_the_users_own_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    assert failed(UserFault("there is no such thing"), DebugAnswer(out, True, quiet=False), tmp_path, stay=True) == 3
    assert capsys.readouterr().err == "error: there is no such thing\n"
    assert json.loads(out.getvalue())["error"]["reason"] == "invalid_spec"


def test_a_failure_without_standard_input_is_told_whole_and_opens_no_debugger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    out = io.StringIO()
    assert failed(ValueError("no light"), DebugAnswer(out, True, quiet=False), tmp_path, stay=True) == 7
    assert json.loads(out.getvalue())["error"]["message"] == "ValueError: no light"
    assert "standard input is closed" in capsys.readouterr().err


class Quits(Mixed):
    """The debugger is left in its reset."""

    def reset(self, **_: Any) -> Any:
        raise bdb.BdbQuit


def test_quit_of_the_debugger_in_a_reset_ends_it_with_130_and_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "spec.yaml").write_text(f"run: x\nenv: {{id: {__name__}:Quits}}\n")
    assert main([str(tmp_path / "spec.yaml")]) == 130
    out, chat = capsys.readouterr()
    assert out == ""
    assert chat.endswith("ended from the debugger\n")
    assert "Traceback" not in chat
