"""Findings and refusals of `python -m rlctl_agents probe`."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlctl_agents.roles import probe
from rlctl_agents.types.control import Experience
from rlctl_agents.types.spaces import Box, Discrete


def run_file(folder: Path, **spec: Any) -> Path:
    path = folder / "actor.json"
    path.write_text(json.dumps({"format": 1, "role": "actor", "spec": {"run": "probe", **spec}}))
    return path


def test_the_probe_writes_spaces_schema_and_frame_skip(tmp_path: Path) -> None:
    path = run_file(
        tmp_path,
        env={"id": "CartPole-v1"},
        algorithm={"name": "impala", "unroll_length": 7},
        model={"core": "lstm", "width": 9},
    )
    out = tmp_path / "experience.json"
    assert probe.main(["--run-file", str(path), "--out", str(out)]) == 0
    experience = msgspec.json.decode(out.read_bytes(), type=Experience)
    assert isinstance(experience.spaces.obs, Box)
    assert isinstance(experience.spaces.obs.high, tuple)
    assert list(experience.spaces.obs.high) == [pytest.approx(4.8), None, pytest.approx(0.419, abs=1e-3), None]
    assert experience.spaces.action == Discrete(2)
    assert experience.frame_skip == 1
    assert experience.schema.unroll_length == 7
    shapes = {field.name: (field.shape, field.per) for field in experience.schema.fields}
    assert shapes["obs"] == ((4,), "row+1")
    assert shapes["core.h"] == ((9,), "segment")


def test_without_out_the_probe_prints(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    path = run_file(tmp_path, env={"id": "tests.envs.tiny:Mixed"})
    assert probe.main(["--run-file", str(path)]) == 0
    experience = msgspec.json.decode(capfdbinary.readouterr().out, type=Experience)
    names = {field.name for field in experience.schema.fields}
    assert {"obs.inner.number", "action.0", "action.1"} <= names


def test_a_game_of_several_seats_is_fine_when_it_stops_by_rows(tmp_path: Path) -> None:
    path = run_file(tmp_path, env={"id": "tests.envs.tiny:Duel"}, stop={"agent_steps": 1000})
    assert probe.main(["--run-file", str(path), "--out", str(tmp_path / "out.json")]) == 0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"env": {"id": "NoSuchEnv-v0"}}, "NoSuchEnv"),
        ({"env": {"id": "CartPole-v1"}, "algorithm": {"name": "no_module_here:Mine"}}, "no module no_module_here"),
        ({"env": {"id": "CartPole-v1"}, "model": {"torso": "nature_cnn"}}, "nature_cnn"),
        (
            {"env": {"id": "tests.envs.tiny:Duel"}, "stop": {"eval_return": 0.5}},
            "stop by stop.agent_steps or stop.wall_time",
        ),
    ],
)
def test_the_users_own_fault_is_one_line_and_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], words: str
) -> None:
    assert probe.main(["--run-file", str(run_file(tmp_path, **spec))]) == 3
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_file_that_is_no_run_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.json"
    path.write_text("{}")
    assert probe.main(["--run-file", str(path)]) == 3
    assert f"{path} is no run file: KeyError: 'spec'" in capsys.readouterr().err
