"""The learning table: what its specs may say, how long a stored seed is valid, and what is said of made-up figures."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import __main__ as command
from benchmarks.learning import claims, comparisons, report, rows, train
from benchmarks.learning.rows import Row
from benchmarks.learning.stored import Stored
from benchmarks.shared import product, store
from benchmarks.shared.host import REPOSITORY
from rlctl.plan import make
from rlctl.spec import fields
from rlctl.spec.problems.findings import simulator_missing
from rlctl_agents.acting.bootstrap import make_env
from rlctl_agents.algorithms.base import hyperparameters
from rlctl_agents.models import precision
from rlctl_agents.types import by_name

NAMES = [row.name for row in rows.rows()]
ALL = (*rows.rows(), *rows.arms())
STATED = {f"pendulum-gamma90-{name}": {"algorithm.gamma"} for name in ("ppo", "appo")}
STATED["cartpole-positions-ppo"] = {"model.core"}
STATED["breakout-dqn"] = {"algorithm.minibatch_size"}
STATED["breakout-ppo"] = {"algorithm.lr"}
"""What a row sets besides a default, because the table is about that."""


@pytest.mark.parametrize("name", NAMES)
def test_a_row_trains_on_defaults_and_the_table_prints_what_is_none(name: str) -> None:
    row = rows.find(name)
    own = {"code"} if row.spec.env.id.startswith("benchmarks.") else set()
    assert row.values.keys() <= {"run", "env", "algorithm", "model", "replay", "roles", "stop"} | own
    assert row.values["stop"].keys() == {"eval_return", "agent_steps"}
    set_to = {f"{part}.{key}" for part in ("algorithm", "model", "replay") for key in row.values.get(part, {})}
    assert set_to - {"algorithm.name"} == STATED.get(name, set())
    assert all(one.partition(".")[2] in row.settings for one in STATED.get(name, ()))
    assert row.name.replace("_", "-") == row.spec.run
    assert row.name.endswith(f"-{row.algorithm}")


def test_the_table_says_what_is_passed_to_an_environment_and_around_it() -> None:
    assert rows.find("cartpole-ppo").environment == "CartPole-v1"
    assert rows.find("cartpole-positions-ppo").environment == "CartPole-v1 (keep [0, 2])"
    assert rows.find("breakout-ppo").environment == "minatar.gym:BaseEnv (game breakout)"
    assert rows.find("tmaze-r2d2").environment == "benchmarks.learning.t_maze:TMaze"


def test_a_row_without_its_simulator_says_what_to_install_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[str] = []

    def pretend(row: Row, seed: int, tell: object, gpu: str, keep: object) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append(row.name)
        return measured(row, seed, 490.0)

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "mujoco" else real(name, *more)
    )
    monkeypatch.setattr(command, "train", pretend)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "write", lambda *_: None)
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
    imports = {"algorithms/ppo.py": "ops.gae", "algorithms/impala.py": "ops.vtrace", "roles/actor.py": "ops.shared"}
    for name in (
        *imports,
        "ops/gae.py",
        "ops/vtrace.py",
        "ops/shared.py",
        "experience/replay/tree.py",
        "manager/loop.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"from rlctl_agents.{imports[name]} import x\n" if name in imports else "x = 1\n")
    (tmp_path / "algorithms/impala.py").write_text(
        "from rlctl_agents.ops.vtrace import x\nfrom rlctl_agents.ops import shared\n"
    )
    monkeypatch.setattr(rows, "AGENTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "valid"),
    [
        ("ops/gae.py", '"""Text."""\n# said\nx = 1\n', True),
        ("manager/loop.py", "x = 2\n", True),
        ("algorithms/impala.py", "from rlctl_agents.ops.vtrace import x\nx = 2\n", True),
        ("ops/vtrace.py", "x = 2\n", True),
        ("experience/replay/tree.py", "x = 2\n", True),
        ("ops/shared.py", "x = 2\n", False),
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


def test_what_computes_in_bf16_counts_for_rows_that_may(agents: Path) -> None:
    (agents / "models").mkdir()
    (agents / rows.PRECISION).write_text("x = 1\n")
    image, vector = rows.find("pong-ppo"), rows.find("cartpole-ppo")
    before = image.fingerprint(0), vector.fingerprint(0)
    (agents / rows.PRECISION).write_text("x = 2\n")
    assert (image.fingerprint(0) == before[0], vector.fingerprint(0) == before[1]) == (False, True)


def test_a_seed_outlives_the_very_change_that_is_listed_with_its_reason(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, file = rows.find("cartpole-ppo"), agents / "ops/gae.py"
    digests = [rows.file_digest(file)]
    before = row.fingerprint(0)
    for text in ("x = 2\n", "x = 3\n"):
        file.write_text(text)
        digests.append(rows.file_digest(file))
    listed = tmp_path / "carried.toml"
    listed.write_text(
        "".join(
            f'[[change]]\nfile = "ops/gae.py"\nbefore = "{old}"\nafter = "{new}"\nwhy = "a message"\n'
            for old, new in itertools.pairwise(digests)
        )
    )
    monkeypatch.setattr(rows, "CARRIED", listed)
    assert row.fingerprint(0) == before
    file.write_text("x = 4\n")
    assert row.fingerprint(0) != before
    listed.write_text(
        listed.read_text()
        + f'[[change]]\nfile = "ops/gae.py"\nbefore = "{digests[-1]}"\nafter = "{rows.file_digest(file)}"\nwhy = "b"\n'
    )
    assert row.fingerprint(0) == before, "what is carried while a seed is trained is no other code"


def test_every_listed_change_leads_to_the_code_as_it_is_and_says_why() -> None:
    changes = rows.carried()
    for (file, after), change in changes.items():
        assert after != change["before"]
        assert change["why"]
        now = rows.file_digest(rows.AGENTS / file)
        later = {one["before"] for (name, _), one in changes.items() if name == file}
        assert after == now or after in later, f"{file} has changed since: nothing is carried by this entry any more"


FP32 = {(row.environment, row.spec.policy().model.torso): row.name for row in ALL if not row.may_be_bf16}
"""Rows that cannot compute in bf16: one of each environment and torso."""


@pytest.mark.parametrize("name", sorted(FP32.values()))
def test_a_row_for_which_it_does_not_count_computes_in_fp32_on_every_processor(name: str) -> None:
    row = rows.find(name)
    if lacking := simulator_missing(row.spec.env.id):
        pytest.skip(f"{'; '.join(lacking)}: `make .venv/.learn` brings it")
    with closing(make_env(row.spec, 1)) as env:
        network = row.spec.policy().model
        assert precision.choose(network, env.spaces.obs, sync=False, gpu=False, flag="amx_bf16").name == "fp32"


def test_how_a_replay_draws_counts_and_how_it_is_saved_does_not_as_no_row_saves_it(agents: Path) -> None:
    row = rows.find("cartpole-dqn")
    (agents / "algorithms/dqn.py").write_text("x = 1\n")
    before = row.fingerprint(0)
    (agents / rows.SAVES[0]).write_text("x = 2\n")
    assert row.fingerprint(0) == before
    (agents / "experience/replay/tree.py").write_text("x = 2\n")
    assert row.fingerprint(0) != before
    replays = [fields.normal(one.spec).replay for one in (*rows.rows(), *rows.arms())]
    assert {one.checkpoint for one in replays if one is not None} == {"none"}
    assert all((REPOSITORY / "agents/rlctl_agents" / file).exists() for file in rows.SAVES)


@pytest.mark.parametrize("base", ["ppo", "dqn"])
def test_an_own_algorithm_depends_on_the_replay_if_the_one_that_it_is_made_of_does(base: str, agents: Path) -> None:
    (agents / "algorithms/dqn.py").write_text("x = 1\n")
    own = agents / "own.py"
    own.write_text(f"from rlctl_agents.algorithms.{base} import x\n")
    before = rows.code("own:Own", frozenset({own}))
    (agents / "experience/replay/tree.py").write_text("x = 2\n")
    assert (rows.code("own:Own", frozenset({own})) == before) == (base == "ppo")


def test_an_algorithm_that_imports_another_one_depends_on_its_file(agents: Path) -> None:
    (agents / "algorithms/ppo.py").write_text("from rlctl_agents.algorithms.impala import x\n")
    before = rows.code("ppo")
    (agents / "algorithms/impala.py").write_text("x = 2\n")
    assert rows.code("ppo") != before


def test_a_class_of_the_repository_that_a_row_names_counts_with_the_algorithm_that_it_imports(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "REPOSITORY", tmp_path)
    (tmp_path / "mine.py").write_text("from rlctl_agents.algorithms import impala\n")
    row = changed(rows.find("cartpole-ppo"), algorithm={"name": "mine:Own"})
    before = row.fingerprint(0)
    ppo, impala = agents / "algorithms/ppo.py", agents / "algorithms/impala.py"
    ppo.write_text(ppo.read_text() + "x = 2\n")
    assert row.fingerprint(0) == before
    impala.write_text(impala.read_text() + "x = 2\n")
    after = row.fingerprint(0)
    assert after != before
    (tmp_path / "mine.py").write_text("from rlctl_agents.algorithms import impala\nx = 1\n")
    assert row.fingerprint(0) != after


def test_an_algorithm_of_ours_that_is_named_by_its_class_counts() -> None:
    named = rows._named({"name": "rlctl_agents.algorithms.ppo:Ppo"})
    assert [path.relative_to(REPOSITORY).as_posix() for path in named] == ["agents/rlctl_agents/algorithms/ppo.py"]


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
        changed(row, init={"run": "other@best"}),
        changed(row, env={"id": "Acrobot-v1"}),
    ):
        assert others.fingerprint(0) != row.fingerprint(0)
    assert row.fingerprint(1) != row.fingerprint(0)
    planned = make(row.spec, uid="0" * 32, base=rows.SPECS)
    assert not any("init" in role.run_file["spec"] for role in planned.roles), "seeds of before the field stay valid"


@pytest.mark.parametrize(
    ("returns", "goal", "fallen"),
    [([100, 420, 200, 500], 400, 1), ([100, 420, 211], 400, 0), ([-80, -170, -85], -90, 1), ([-500, -100], -90, 0)],
)
def test_evaluations_below_half_of_the_first_success_are_counted(
    returns: list[float], goal: float, fallen: int
) -> None:
    assert train.fell_back([{"mean_return": value} for value in returns], goal) == fallen


TIMES = itertools.count(1_700_000_000)


def measured(row: Row, seed: int, mean: float, fingerprint: str = "") -> tuple[dict[str, Any], list[train.Point]]:
    line = {
        "seed": seed, "agent_steps": row.agent_steps, "mean_return": mean, "processor": "P", "commit": "c",
        "fingerprint": fingerprint or row.fingerprint(seed), "unix_time": next(TIMES),
    }  # fmt: skip
    half = row.agent_steps // 2
    return line, [
        {"steps": 0, "mean_return": 20.0, "wall_s": 1.0, "cpu_s": 2.0},
        {"steps": half, "mean_return": 480.0, "wall_s": 30.0 + seed, "cpu_s": 60.0},
        {"steps": row.agent_steps, "mean_return": mean, "wall_s": 60.0, "cpu_s": 120.0},
    ]


SEEDS = """seed,agent_steps,mean_return,wall_s,fingerprint,unix_time
0,150100,500,90,{0},11
1,150200,350,90,{1},12
2,150300,490,90,{2},13
3,150400,470,90,{3},14
4,150500,480,90,{4},15
"""
CURVES = """seed,unix_time,steps,mean_return,wall_s,cpu_s
0,11,0,20,1,2
0,11,50000,475,30,40
0,11,100000,237,60,80
0,11,150100,500,90,120
1,12,150200,350,90,120
2,13,40000,500,20,30
2,13,80000,249,40,60
2,13,120000,251,60,90
2,13,150300,490,90,120
3,14,75000,470,45,70
3,14,150400,470,90,120
4,15,60000,480,36,50
4,15,150500,480,90,120
4,9,10,1,1,1
"""


def test_every_figure_of_a_row_is_what_one_computes_by_hand_from_the_raw_csv(tmp_path: Path) -> None:
    row = rows.find("cartpole-ppo")
    folder = tmp_path / row.name
    folder.mkdir()
    (folder / "seeds.csv").write_text(SEEDS.format(*map(row.fingerprint, range(5))))
    (folder / "evaluations.csv").write_text(CURVES)
    cells = report.line(row, Stored.read(tmp_path, row))
    assert cells[2] == "5 of 5"
    # sorted 350 470 480 490 500; the middle half is 2.5 of the five: 0.75 x 470 + 480 + 0.75 x 490 over 2.5
    assert cells[3].startswith("480.0 (")
    assert cells[3].endswith(") ✓")
    assert cells[4] == "350.0"
    assert cells[5] == "3 of 5", "seeds 1 and 3 never had 475"
    assert cells[6] == "50k (40k-60k)", "at 50,000, 40,000 and 60,000"
    assert cells[7] == "30 s, 40 s", "of 30, 20, 36 and 40, 30, 50"
    assert cells[8] == "2", "237 is below half of 475, 249 below half of 500, 251 is not"
    assert cells[9] == "2", "of 4, 1, 4, 2 and 2"


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_stored_seeds_are_those_of_the_raw_csv(name: str) -> None:
    """With loops that share no code with the report."""
    row, folder = rows.find(name), report.RESULTS / name
    cells = report.line(row, Stored.read(report.RESULTS, row))
    if not (folder / "seeds.csv").exists():
        assert cells[3:9] == [""] * 6
        return
    head, *seeds = [line.split(",") for line in (folder / "seeds.csv").read_text().splitlines()]
    _, *points = [line.split(",") for line in (folder / "evaluations.csv").read_text().splitlines()]
    lines = [dict(zip(head, one, strict=True)) for one in seeds]
    counted = [one for one in lines if one["fingerprint"] == row.fingerprint(int(one["seed"]))] or lines
    worst, fallen, reached = float("inf"), 0, 0
    for one in counted:
        worst = min(worst, float(one["mean_return"]))
        first = None
        for seed, unix_time, _, mean_return, *_ in points:
            if (seed, unix_time) != (one["seed"], one["unix_time"]):
                continue
            value = float(mean_return)
            if first is None and value >= row.goal:
                first = value
                reached += 1
            elif first is not None and value < (first / 2 if first > 0 else first * 2):
                fallen += 1
    assert cells[4:6] == [f"{worst:.1f}", f"{reached} of {len(counted)}"]
    assert cells[8] == (str(fallen) if reached else "")


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
    assert told[2:5] == ["1 of 5; 1 stale", "490.0 ✓", "490.0"]
    assert told[5:-1] == ["1 of 1", "75k (75k-75k)", "30 s, 60 s", "0", "3"]
    assert [line["seed"] for line in stored.seeds] == ["0", "1"]
    assert len(stored.curves) == 6


def test_readme_says_of_how_many_seeds_a_figure_is(tmp_path: Path) -> None:
    row = rows.find("lunarlander-ppo")

    def told() -> str:
        return report.start("ppo", {row.name: row}, {row.name: Stored.read(tmp_path, row)})[4]

    assert told() == "not measured yet"
    Stored.read(tmp_path, row).add(*measured(row, 0, 200.0, "of before"))
    assert told() == "200.0 on LunarLander-v3 after 1M (1 seed of an older version of the code)"
    Stored.read(tmp_path, row).add(*measured(row, 1, 210.0, "of before"))
    assert told() == "205.0 on LunarLander-v3 after 1M (2 seeds of an older version of the code)"
    for seed in range(row.seeds):
        Stored.read(tmp_path, row).add(*measured(row, seed, 220.0))
        counted = "5 seeds" if seed == 4 else f"{seed + 1} of 5 seeds"
        assert told() == f"220.0 on LunarLander-v3 after 1M ({counted})"


def test_table_and_plots_are_written_from_what_is_stored_alone(tmp_path: Path) -> None:
    document = tmp_path / "learning.md"
    document.write_text("# Learning\n")
    for row in rows.rows()[:2]:
        Stored.read(tmp_path, row).add(*measured(row, 0, 490.0))
    report.write(rows.rows(), rows.arms(), tmp_path, document)
    text, plot = document.read_text(), (tmp_path / "cartpole.svg").read_text()
    assert "| PPO, CartPole-v1 | 475, 150k | 1 of 5 | 490.0 ✓ |" in text
    assert "PPO, Pendulum-v1, gamma 0.9 | -200, 300k | 0 of 5 |" in text
    assert "cartpole.svg" in text
    assert "acrobot.svg" not in text, "nothing of it was measured"
    report.write(rows.rows(), rows.arms(), tmp_path, document)
    assert (document.read_text(), (tmp_path / "cartpole.svg").read_text()) == (text, plot)


Trained = Callable[[Row, int, Callable[[Path], None]], tuple[dict[str, Any], list[train.Point]]]


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results and a document, for one test."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "DOCUMENT", tmp_path / "learning.md")
    return tmp_path


def test_every_seed_that_is_not_valid_is_trained_once_and_a_failure_does_not_stop_the_others(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, int]] = []

    def pretend(row: Row, seed: int, tell: object, gpu: str, keep: object) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append((row.name, seed))
        if (row.name, seed) == ("cartpole-ppo", 1):
            raise KeyError("phase")
        return measured(row, seed, 490.0)

    monkeypatch.setattr(command, "train", pretend)
    assert command.main(["cartpole-ppo", "--seed", "0"]) == 0
    assert command.main(["cartpole-ppo", "cartpole-impala"]) == 1
    names = ("cartpole-ppo", "cartpole-impala")
    assert trained == [(name, seed) for seed in range(5) for name in names]
    trained.clear()
    assert command.main(["cartpole-ppo", "cartpole-impala"]) == 1
    assert trained == [("cartpole-ppo", 1)]
    assert "| PPO, CartPole-v1 | 475, 150k | 4 of 5; 2 attempts failed |" in report.DOCUMENT.read_text()
    (first, _) = store.read(results / "cartpole-ppo" / "failures.csv")
    assert (first["seed"], first["failed"]) == ("1", "KeyError: 'phase'")
    with pytest.raises(SystemExit):
        command.main(["cartpole-sarsa"])
    with pytest.raises(SystemExit):
        command.main(["cartpole-ppo", "--seed", "5"])


def test_the_name_of_a_comparison_is_that_of_both_its_rows(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def pretend(row: Row, seed: int, tell: object, gpu: str, keep: object) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append(row.name)
        return measured(row, seed, 490.0)

    monkeypatch.setattr(command, "train", pretend)
    assert command.main(["vtrace", "--seed", "3"]) == 0
    assert trained == ["vtrace-on", "vtrace-off"]


def test_failures_with_other_code_are_forgotten(tmp_path: Path) -> None:
    row = rows.find("cartpole-ppo")
    stored = Stored.read(tmp_path, row)
    stored.fail({"seed": 0, "fingerprint": "of before", "failed": "x"}, row)
    stored.fail({"seed": 0, "fingerprint": row.fingerprint(0), "failed": "y"}, row)
    assert [one["failed"] for one in stored.failures] == ["y"]
    assert report.line(row, stored)[2] == "0 of 5; 1 attempt failed"


def test_seeds_that_another_process_stored_meanwhile_stay(tmp_path: Path) -> None:
    row = rows.find("cartpole-ppo")
    mine, other = Stored.read(tmp_path, row), Stored.read(tmp_path, row)
    other.add(*measured(row, 0, 490.0))
    mine.add(*measured(row, 1, 480.0))
    found = Stored.read(tmp_path, row)
    assert [one["seed"] for one in found.seeds] == ["0", "1"]
    assert len(found.curves) == 6


def test_a_seed_is_trained_by_one_process_at_a_time(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train", lambda *_: pytest.fail("another process trains it"))
    with claims.claim(results, "cartpole-ppo", 0) as tell:
        assert tell is not None
        assert command.main(["cartpole-ppo", "--seed", "0"]) == 0
        with claims.claim(results, "cartpole-ppo", 1) as also:
            assert also is not None, "another seed is free"
    with claims.claim(results, "cartpole-ppo", 0) as again:
        assert again is not None


def test_the_run_of_a_process_that_was_killed_is_ended_by_the_next_that_claims_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
import os, pathlib, signal, sys
from benchmarks.learning import claims
with claims.claim(pathlib.Path(sys.argv[1]), "row", 0) as tell:
    tell(pathlib.Path("/tmp/rlb-of-the-dead"))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=REPOSITORY, check=False)
    assert killed.returncode == -signal.SIGKILL
    removed: list[Path] = []
    monkeypatch.setattr(product, "remove", removed.append)
    for _ in range(2):
        with claims.claim(tmp_path, "row", 0) as tell:
            assert tell is not None
    assert removed == [Path("/tmp/rlb-of-the-dead")], "once"


def test_what_is_left_of_a_run_is_ended_and_removed_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def down(run: product.Run) -> bool:
        ended.append(run.folder.name)
        return "stuck" not in run.folder.name

    monkeypatch.setattr(product.Run, "down", down)
    for name in ("rlb-left", "rlb-stuck", "rlb-never-up", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.yaml").write_text("run: learn\n")
        if name != "rlb-never-up":
            (tmp_path / name / "s" / "rlctl" / "runs" / "learn-1").mkdir(parents=True)
    for name in ("rlb-left", "rlb-never-up", "other", "rlb-not-there"):
        product.remove(tmp_path / name)
    with pytest.raises(product.LeftOver, match="rlb-stuck is left over and cannot be ended"):
        product.remove(tmp_path / "rlb-stuck")
    assert ended == ["rlb-left", "rlb-stuck"]
    assert {path.name for path in tmp_path.iterdir()} == {"other", "rlb-stuck"}


def test_a_run_that_cannot_be_ended_leaves_its_folder_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product.Run, "up", lambda run, *words: "")
    monkeypatch.setattr(product.Run, "down", lambda run: run.name != "stuck")
    with product.running({"run": "goes"}) as run:
        assert run.folder.exists()
    assert not run.folder.exists()
    with (
        pytest.raises(product.LeftOver, match="is left over and cannot be ended"),
        product.running({"run": "stuck"}) as run,
    ):
        pass
    assert (run.folder / "spec.yaml").exists()
    shutil.rmtree(run.folder)
    stuck = pretended(Pretended(tmp_path, FINISHED, [LAST]), monkeypatch)
    monkeypatch.setattr(stuck, "down", lambda: False)
    with pytest.raises(product.LeftOver):
        train.train(rows.find("cartpole-ppo"), 0, lambda folder: None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_comes_between_a_run_and_its_end(number: signal.Signals, request: pytest.FixtureRequest) -> None:
    ended: list[bool] = []
    handler = signal.signal(number, signal.default_int_handler)  # nohup has a hangup ignored
    request.addfinalizer(lambda: signal.signal(number, handler))

    class Run:
        def down(self) -> bool:
            os.kill(os.getpid(), number)
            ended.append(True)
            return True

    product.end(Run())  # type: ignore[arg-type]
    assert ended == [True]
    assert signal.getsignal(number) is signal.default_int_handler


@pytest.mark.parametrize("full", ["seeds.csv", "evaluations.csv"])
def test_a_full_disk_leaves_what_was_stored_and_is_said(
    full: str, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = rows.find("cartpole-ppo")
    Stored.read(results, row).add(*measured(row, 0, 480.0))
    Stored.read(results, row).add(*measured(row, 1, 300.0, "of before"))
    before = {path.name: path.read_bytes() for path in (results / row.name).iterdir()}
    synced = os.fsync

    def no_space(number: int) -> None:
        if f".{full}." in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        synced(number)

    monkeypatch.setattr(os, "fsync", no_space)
    trained: list[int] = []

    def pretend(row: Row, seed: int, tell: object, gpu: str, keep: object) -> tuple[dict[str, Any], list[train.Point]]:
        trained.append(seed)
        return measured(row, seed, 490.0)

    monkeypatch.setattr(command, "train", pretend)
    assert command.main(["cartpole-ppo", "--seed", "1", "--seed", "2"]) == 1
    assert trained == [1], "what cannot be stored is not trained either"
    assert "nothing can be stored: [Errno 28]" in capsys.readouterr().err
    after = {path.name: path.read_bytes() for path in (results / row.name).iterdir()}
    assert after["seeds.csv"] == before["seeds.csv"]
    assert after.keys() == before.keys()
    stored = Stored.read(results, row)
    assert [len(stored.points(one)) for one in stored.seeds] == [3, 3], "each measurement has its own curve"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_a_kill_end_the_run_and_keep_what_is_stored(number: signal.Signals, tmp_path: Path) -> None:
    script = """
import contextlib, pathlib, runpy, signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored by what nohup starts
from benchmarks.learning import report, rows, train
from benchmarks.shared import product
report.RESULTS, report.DOCUMENT = folder, _ = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]) / "learning.md"

class Run:
    folder = folder
    def up(self, *_):
        print("up", flush=True)
        while True:  # short ones, as a wait for a run is: a signal may come to another thread, which ends no sleep
            time.sleep(0.1)
    def down(self):
        print("down", flush=True)
        return True

product.made = lambda spec: contextlib.nullcontext(Run())
sys.argv[1:] = ["cartpole-ppo", "--seed", "0"]
runpy.run_module("benchmarks.learning", run_name="__main__")
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "down\n"), err
    assert "ended early" in err
    assert "0 of 5 |" in (tmp_path / "learning.md").read_text()


class Pretended:
    """A run that ends at once."""

    def __init__(self, root: Path, status: dict[str, Any], evaluations: list[dict[str, Any]]) -> None:
        self.folder = self.root = root
        self.status, self.is_down = status, False
        (root / "results").mkdir()
        text = "".join(json.dumps(one) + "\n" for one in evaluations)
        (root / "results" / "evaluations.jsonl").write_text(text)

    def up(self, *words: str) -> None:
        self.words = words

    def down(self) -> bool:
        self.is_down = True
        return True

    def ended(self) -> bool:
        return True

    def stored(self) -> dict[str, Any]:
        return self.status


class Endless(Pretended):
    """A run that comes to no end and makes no step."""

    def ended(self) -> bool:
        return False


FINISHED = {"phase": "finished", "totals": {"consumed_steps": 100}, "wall_s": 9.0, "cpu_s": {"actor": 3, "learner": 4}}
LAST = {"mode": "greedy", "steps": 100, "mean": 7.0, "wall_s": 8.0, "episodes": 100, "ref": {"version": 5}}


def pretended(run: Pretended, monkeypatch: pytest.MonkeyPatch) -> Pretended:
    monkeypatch.setattr(product, "made", lambda spec: nullcontext(run))
    monkeypatch.setattr(train, "POLL_S", 0.0)
    return run


def test_a_seed_has_the_last_models_return_in_both_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [{**LAST, "steps": 0, "mean": 1.0, "wall_s": 2.0}, LAST, {**LAST, "mode": "sample", "mean": 6.0}]
    run = pretended(Pretended(tmp_path, FINISHED, told), monkeypatch)
    folders: list[Path] = []
    line, points = train.train(rows.find("cartpole-ppo"), 0, folders.append)
    assert (folders, run.is_down) == ([tmp_path], True)
    assert (line["mean_return"], line["other_return"], line["cpu_s"]) == (7.0, 6.0, 7)
    assert [(one["steps"], one["mean_return"]) for one in points] == [(0, 1.0), (100, 7.0)]


def test_a_learner_on_a_gpu_trains_the_same_seed_and_the_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pretended(Pretended(tmp_path, FINISHED, [LAST]), monkeypatch)
    plain, _ = train.train(rows.find("halfcheetah-sac"), 0, lambda folder: None)
    assert run.words == ("--detach",)
    line, _ = train.train(rows.find("halfcheetah-sac"), 0, lambda folder: None, "NVIDIA X")
    assert run.words == ("--detach", "--set", "roles.learner.gpu=1")
    assert line["processor"] == f"{plain['processor']}, NVIDIA X"
    assert line["fingerprint"] == plain["fingerprint"]


@pytest.mark.parametrize(
    ("status", "told", "why"),
    [
        (FINISHED, [{**LAST, "steps": 99}], "its last model was not evaluated"),
        (FINISHED, [{**LAST, "mode": "sample"}], "its last model was not evaluated"),
        (FINISHED | {"phase": "failed", "problems": [{"text": "nan"}]}, [LAST], "ended as failed: nan"),
    ],
)
def test_a_run_without_the_figure_fails(
    status: dict[str, Any], told: list[dict[str, Any]], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pretended(Pretended(tmp_path, status, told), monkeypatch)
    with pytest.raises(RuntimeError, match=why):
        train.train(rows.find("cartpole-ppo"), 0, lambda folder: None)
    assert run.is_down


def test_a_seed_that_is_ended_early_stays_and_goes_on_by_the_same_code_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "POLL_S", 0.0)
    row, folder = rows.find("cartpole-ppo"), tmp_path / "cartpole-ppo-0"
    (tmp_path / "run").mkdir()
    run = Pretended(tmp_path / "run", FINISHED, [LAST])
    monkeypatch.setattr(product, "Run", lambda *arguments: run)

    def leave(folder: Path) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train.train(row, 0, leave, keep=tmp_path)
        assert folder.exists()
    line, _ = train.train(row, 0, lambda folder: None, keep=tmp_path)
    assert (line["sittings"], line["mean_return"], folder.exists()) == (3, 7.0, False)

    with pytest.raises(KeyboardInterrupt):
        train.train(row, 0, leave, keep=tmp_path)
    (folder / "sittings").write_text("another\n")
    with pytest.raises(RuntimeError, match="holds a run of other code or of another spec; remove it to begin anew"):
        train.train(row, 0, lambda folder: None, keep=tmp_path)
    assert folder.exists()


def test_a_run_without_progress_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretended(Endless(tmp_path, FINISHED, []), monkeypatch)
    monkeypatch.setattr(train, "STALLED_S", 0.05)
    with pytest.raises(RuntimeError, match="no progress after 100 agent steps"):
        train.train(rows.find("cartpole-ppo"), 0, lambda folder: None)
    assert run.is_down


def test_a_seed_is_not_kept_when_the_code_changes_while_it_is_trained(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    pretended(Pretended(tmp_path / "run", FINISHED, [LAST]), monkeypatch)
    change = lambda folder: (agents / "ops/gae.py").write_text("x = 2\n")  # noqa: E731
    with pytest.raises(RuntimeError, match="changed while it was trained"):
        train.train(rows.find("cartpole-ppo"), 0, change)


# -- comparisons ---------------------------------------------------------------------------------------------------

BOTH = (*comparisons.ABLATIONS, *comparisons.LEARNERS)
DIFFER = {
    "normalize": {"model.normalize.observations", "model.normalize.returns"},
    "normalize-gamma99": {"model.normalize.observations", "model.normalize.returns"},
    "vtrace": {"algorithm.name"},
    "truncation": {"algorithm.name"},
    "lambda": {"algorithm.advantage"},
    "prioritized": {"algorithm.prioritized"},
    "n-step": {"algorithm.n_step"},
    "double": {"algorithm.double"},
    "burn-in": {"algorithm.burn_in"},
    "stored-state": {"algorithm.stored_state"},
    "rescaling": {"algorithm.value_rescaling"},
    "learners-ppo": {"roles.learner.replicas"},
    "learners-impala": {"roles.learner.replicas"},
    "learners-acrobot-ppo": {"roles.learner.replicas"},
    "learners-acrobot-impala": {"roles.learner.replicas"},
}


def settings(row: Row) -> dict[str, Any]:
    """Every resolved setting of what is trained, by its path; of an own algorithm, as its base class reads them."""
    spec = row.spec.model_validate(row.of_seed(0))
    policy = spec.policy()
    name, read = policy.algorithm.name, policy.algorithm
    if ":" in name:
        read = hyperparameters(policy.algorithm, by_name.load(name).settings)
    told = {"algorithm": read.model_dump() | {"name": name}, "model": policy.model.model_dump()}
    return flat(spec.model_dump(exclude={"policies", "algorithm", "model"}) | told)


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(values, dict) or not values:
        return {path: values}
    return {
        key: value
        for name, one in values.items()
        for key, value in flat(one, f"{path}.{name}" if path else name).items()
    }


@pytest.mark.parametrize("one", BOTH, ids=lambda one: one.name)
def test_the_rows_of_a_comparison_differ_in_the_one_thing(one: comparisons.Comparison) -> None:
    base, other = (settings(rows.find(name)) for name in one.rows)
    assert {key for key in base.keys() | other.keys() if base.get(key) != other.get(key)} == DIFFER[one.name]
    for name in one.rows:
        row = rows.find(name)
        assert row.spec.run == name
        assert row.seeds == 5


def test_every_arm_is_compared() -> None:
    assert {row.name for row in rows.arms()} == {name for one in BOTH for name in one.rows} - set(NAMES)


def stored_of(row: Row, means: list[float], tmp_path: Path) -> Stored:
    found = Stored.read(tmp_path, row)
    for seed, mean in enumerate(means):
        found.add(*measured(row, seed, mean))
    return found


def test_differences_are_told_of_both_figures_and_equivalence_of_the_return(tmp_path: Path) -> None:
    everything = {row.name: row for row in (*rows.rows(), *rows.arms())}
    means = {
        "vtrace-on": [500.0, 490.0, 495.0, 500.0, 500.0], "vtrace-off": [90.0, 70.0, 480.0, 290.0, 120.0],
        "learners-ppo-1": [500.0, 490.0, 495.0, 500.0, 500.0], "learners-ppo-2": [499.0, 491.0, 495.0, 500.0, 500.0],
        "learners-impala-1": [500.0], "lambda-gae": [1.0, 2.0], "lambda-vtrace": [2.0, 1.0],
    }  # fmt: skip
    stored = {name: stored_of(row, means.get(name, []), tmp_path) for name, row in everything.items()}
    lines = comparisons.table(everything, stored)
    (found,) = [line for line in lines if "V-trace" in line]
    cells = [cell.strip() for cell in found.split("|")[1:-1]]
    # IQM of 500 495 500 (490 and a fourth of 495 cut): (0.75 x 495 + 500 + 0.75 x 500) / 2.5; of 90 120 290 likewise
    assert cells[1:3] == ["5 of 5", "return of the last model"]
    assert cells[3].startswith("498.5 (")
    assert cells[4].startswith("162.0 (")
    assert cells[5].startswith("336.5 (")
    assert cells[6] == "1.00 (1.00 to 1.00)"
    assert cells[7] == "better"
    assert "Espeholt" in cells[8]
    (same,) = [line for line in lines if "lambda 0.8" in line]
    assert "| no difference |" in same
    apart, _ = (line for line in lines if "running moments" in line)
    assert apart.count("|  |") >= 2, "nothing was measured"
    told = comparisons.equivalence_table(everything, stored)
    (ppo,) = [line for line in told if line.startswith("| PPO, CartPole")]
    assert ppo.endswith("| 0.0 (-5.0 to 5.0) | 24.9 | 0.000 | equivalent within 5 % |")
    (impala,) = [line for line in told if line.startswith("| IMPALA, CartPole")]
    assert "| 1 of 5 / 0 of 5 |" in impala
    assert impala.endswith("|  |  |  |  |")


def dense(row: Row, seed: int, points: int) -> tuple[dict[str, Any], list[train.Point]]:
    """A seed that rises in a straight line from 0 to 500, with so many evaluations after the one at the beginning."""
    line, (point, *_) = measured(row, seed, 500.0)
    shares = [at / points for at in range(points + 1)]
    return line, [point | {"steps": round(row.agent_steps * one), "mean_return": 500 * one} for one in shares]


def test_the_area_of_a_row_is_the_mean_along_its_curve(tmp_path: Path) -> None:
    row, found = rows.find("vtrace-on"), Stored.read(tmp_path, rows.find("vtrace-on"))
    found.add(*dense(row, 0, 20))
    assert comparisons.values(row, found, "area") == [pytest.approx(250, rel=1e-3)]


def test_there_is_no_area_where_one_seed_has_evaluations_more_than_a_twentieth_of_the_budget_apart(
    tmp_path: Path,
) -> None:
    everything = {row.name: row for row in ALL}
    stored = {name: Stored.read(tmp_path, row) for name, row in everything.items()}
    for name, points in (("vtrace-on", 20), ("vtrace-off", 20), ("lambda-gae", 20), ("lambda-vtrace", 10)):
        for seed in (0, 1):
            stored[name].add(*dense(everything[name], seed, points if seed else 20))
    lines = comparisons.table(everything, stored)
    vtrace = next(at for at, line in enumerate(lines) if line.startswith("| V-trace"))
    cells = [cell.strip() for cell in lines[vtrace + 1].split("|")[1:-1]]
    assert cells[2:8] == ["area under the curve",
        "250.0 (250.0 to 250.0)", "250.0 (250.0 to 250.0)", "0.0 (0.0 to 0.0)", "0.50 (0.50 to 0.50)", "no difference"
    ]  # fmt: skip
    assert lines[-1].endswith("budget: lambda (10 %).")


def test_rows_of_one_task_and_goal_share_a_plot_and_no_name_is_written_twice() -> None:
    found = report.plotted(rows.rows())
    assert [row.name for row in found["pendulum"]] == ["pendulum-ppo", "pendulum-appo"]
    assert [row.name for row in found["pendulum-sac-td3"]] == ["pendulum-sac", "pendulum-td3"]
    assert {len({(row.task, row.goal) for row in group}) for group in found.values()} == {1}
    assert sorted(row.name for group in found.values() for row in group) == sorted(row.name for row in rows.rows())
