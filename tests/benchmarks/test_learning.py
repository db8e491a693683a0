"""The learning table: what its specs may say, how long a stored seed is valid, and what is said of made-up figures."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import __main__ as command
from benchmarks.learning import report, rows, train
from benchmarks.learning.report import Stored
from benchmarks.learning.rows import Row

NAMES = [row.name for row in rows.rows()]
STATED = {f"pendulum-gamma90-{name}": {"algorithm.gamma"} for name in ("ppo", "appo")}
STATED["cartpole-positions-ppo"] = {"model.core"}
"""What a row sets besides a default, because the table is about that."""


@pytest.mark.parametrize("name", NAMES)
def test_a_row_trains_on_defaults_and_the_table_prints_what_is_none(name: str) -> None:
    row = rows.find(name)
    assert row.values.keys() <= {"run", "env", "algorithm", "model", "roles", "stop"}
    assert row.values["stop"].keys() == {"eval_return", "agent_steps"}
    set_to = {f"{part}.{key}" for part in ("algorithm", "model") for key in row.values.get(part, {})}
    assert set_to - {"algorithm.name"} == STATED.get(name, set())
    assert all(one.partition(".")[2] in row.settings for one in STATED.get(name, ()))
    assert row.name == row.spec.run
    assert row.name.endswith(f"-{row.algorithm}")


def test_the_table_says_what_is_passed_to_an_environment_and_around_it() -> None:
    assert rows.find("cartpole-ppo").environment == "CartPole-v1"
    assert rows.find("cartpole-positions-ppo").environment == "CartPole-v1 (keep [0, 2])"
    assert rows.find("breakout-ppo").environment == "minatar.gym:BaseEnv (game breakout)"


def test_a_row_without_its_simulator_says_what_to_install_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []

    def pretend(row: Row, seed: int) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append(row.name)
        return measured(row, seed, 490.0)

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mujoco" else real(name, *more)
    )
    monkeypatch.setattr(command, "train", pretend)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "write", lambda rows: None)
    assert command.main(["hopper-ppo", "cartpole-ppo", "--seed", "0"]) == 1
    assert trained == ["cartpole-ppo"]
    said = capsys.readouterr().err
    assert "hopper-ppo: NOT TRAINED: Hopper-v5 needs mujoco" in said
    assert 'pip install "rlctl[mujoco]"' in said


def test_every_published_score_has_its_row() -> None:
    assert rows.PUBLISHED.keys() | rows.FEWER.keys() <= set(NAMES)


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that learns, of one line a module."""
    for name in ("algorithms/ppo.py", "algorithms/impala.py", "ops/gae.py", "manager/loop.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(rows, "AGENTS", tmp_path)
    monkeypatch.setattr(rows, "code", rows.code.__wrapped__)  # not of the module before
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "valid"),
    [
        ("ops/gae.py", '"""Text."""\n# said\nx = 1\n', True),
        ("manager/loop.py", "x = 2\n", True),
        ("algorithms/impala.py", "x = 2\n", True),
        ("algorithms/ppo.py", "x = 2\n", False),
        ("ops/gae.py", "x = 2\n", False),
        ("ops/new.py", "", False),
    ],
)
def test_a_seed_is_valid_until_the_code_that_learns_changes(file: str, text: str, valid: bool, agents: Path) -> None:
    row = rows.find("cartpole-ppo")
    before = row.fingerprint(0)
    (agents / file).write_text(text)
    assert (row.fingerprint(0) == before) == valid


def test_an_algorithm_that_imports_another_one_depends_on_its_file(agents: Path) -> None:
    (agents / "algorithms/ppo.py").write_text("from rlctl_agents.algorithms.impala import x\n")
    before = rows.code("ppo")
    (agents / "algorithms/impala.py").write_text("x = 2\n")
    assert rows.code("ppo") != before


def changed(row: Row, **values: Any) -> Row:
    """The row with another spec."""
    return Row(row.name, row.spec.model_validate(row.spec.model_dump() | values), row.values | values)


def test_a_seed_is_valid_until_what_the_learning_roles_read_changes() -> None:
    row = rows.find("cartpole-ppo")
    new_goal = changed(row, stop={"eval_return": 400, "agent_steps": row.agent_steps})
    assert new_goal.fingerprint(0) == row.fingerprint(0), "what is learned is the same"
    assert changed(row, checkpoint={"keep": 9}).fingerprint(0) == row.fingerprint(0)
    for others in (
        changed(row, algorithm={"name": "ppo", "lr": 1e-3}),
        changed(row, roles={"actor": {"envs": 8}}),
        changed(row, stop={"eval_return": 475, "agent_steps": 1000}),
    ):
        assert others.fingerprint(0) != row.fingerprint(0)
    assert row.fingerprint(1) != row.fingerprint(0)


@pytest.mark.parametrize(
    ("returns", "goal", "fallen"),
    [([100, 420, 200, 500], 400, 1), ([100, 420, 211], 400, 0), ([-80, -170, -85], -90, 1), ([-500, -100], -90, 0)],
)
def test_evaluations_below_half_of_the_first_success_are_counted(
    returns: list[float], goal: float, fallen: int
) -> None:
    assert train.fell_back([{"mean_return": value} for value in returns], goal) == fallen


def measured(row: Row, seed: int, mean: float, fingerprint: str = "") -> tuple[dict[str, Any], list[train.Point]]:
    line = {
        "seed": seed, "agent_steps": row.agent_steps, "mean_return": mean, "processor": "P", "commit": "c",
        "fingerprint": fingerprint or row.fingerprint(seed),
    }  # fmt: skip
    half = row.agent_steps // 2
    return line, [
        {"steps": 0, "mean_return": 20.0, "wall_s": 1.0, "cpu_s": 2.0},
        {"steps": half, "mean_return": 480.0, "wall_s": 30.0 + seed, "cpu_s": 60.0},
        {"steps": row.agent_steps, "mean_return": mean, "wall_s": 60.0, "cpu_s": 120.0},
    ]


def test_stale_seeds_count_only_where_there_are_no_others_and_that_is_said(tmp_path: Path) -> None:
    row = rows.find("cartpole-ppo")
    stored = Stored.read(tmp_path, row)
    assert report.line(row, stored)[2:4] == ["0 of 5", ""]
    for seed, mean in ((1, 300.0), (0, 200.0)):
        stored.add(*measured(row, seed, mean, "of before"))
    assert report.line(row, stored)[2:6] == [
        "0 of 5; figures are of 2 stale",
        "250.0 (200.0 to 300.0)",
        "200.0",
        "2 of 2",
    ]
    stored.add(*measured(row, 0, 490.0))
    assert stored.valid(row, 0)
    assert not stored.valid(row, 1)
    told = report.line(row, Stored.read(tmp_path, row))
    assert told[2:] == ["1 of 5; 1 stale", "490.0 ✓", "490.0", "1 of 1", "75k (75k-75k)", "30 s, 60 s", "0", told[-1]]
    assert [line["seed"] for line in stored.seeds] == ["0", "1"]
    assert len(stored.curves) == 6


def test_table_and_plots_are_written_from_what_is_stored_alone(tmp_path: Path) -> None:
    document = tmp_path / "learning.md"
    document.write_text("# Learning\n")
    for row in rows.rows()[:2]:
        Stored.read(tmp_path, row).add(*measured(row, 0, 490.0))
    report.write(rows.rows(), tmp_path, document)
    text, plot = document.read_text(), (tmp_path / "cartpole.svg").read_text()
    assert "| PPO, CartPole-v1 | 475, 150k | 1 of 5 | 490.0 ✓ |" in text
    assert "PPO, Pendulum-v1, gamma 0.9 | -200, 300k | 0 of 5 |" in text
    assert "cartpole.svg" in text
    assert "acrobot.svg" not in text, "nothing of it was measured"
    report.write(rows.rows(), tmp_path, document)
    assert (document.read_text(), (tmp_path / "cartpole.svg").read_text()) == (text, plot)


def test_every_seed_that_is_not_valid_is_trained_once_and_a_failure_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []

    def pretend(row: Row, seed: int) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append((row.name, seed))
        if (row.name, seed) == ("cartpole-ppo", 1):
            raise RuntimeError("ended as failed")
        return measured(row, seed, 490.0)

    monkeypatch.setattr(command, "train", pretend)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "write", lambda rows: None)
    assert command.main(["cartpole-ppo", "--seed", "0"]) == 0
    assert command.main(["cartpole-ppo", "cartpole-impala"]) == 1
    names = ("cartpole-ppo", "cartpole-impala")
    assert trained == [(name, seed) for seed in range(5) for name in names]
    trained.clear()
    assert command.main(["cartpole-ppo", "cartpole-impala"]) == 1
    assert trained == [("cartpole-ppo", 1)]
    with pytest.raises(SystemExit):
        command.main(["cartpole-dqn"])
