"""`rlctl compare` on the memory target."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rlctl.cli.experiments import scores
from rlctl.cli.experiments.plot import draw
from rlctl.cli.experiments.scores import (
    Figures,
    Group,
    ScoredEvaluation,
    ScoredRun,
    curve,
    figures,
    grouped,
    notes,
    rows,
)
from rlctl.spec.layout import Layout
from tests.cli.conftest import MEASURED, Rlctl
from tests.cli.experiments.training import write


def trained(
    rlctl: Rlctl, run: str, *sets: str, seed: int = 0, means: tuple[float, ...] = (1.0, 2.0), end: str = "finished"
) -> None:
    """A run that is over, with an evaluation of each 500 steps."""
    arguments = [word for one in (f"run={run}", f"seed={seed}", *sets) for word in ("--set", one)]
    assert rlctl("up", write(rlctl.folder), "-d", *arguments).code == 0
    layout = rlctl.backend.files_of[run] = Layout(rlctl.folder / "files" / run)
    layout.make()
    lines = [{**MEASURED, "mean": mean, "steps": 500 * at} for at, mean in enumerate(means, 1)]
    lines += [{**MEASURED, "mode": "sample", "mean": -9.0, "steps": 500 * len(means)}] if means else []
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (layout.results / "evaluations.jsonl").write_text(text + '{"mode": "greedy", "ste')
    rlctl.report(run)
    if end == "finished":
        rlctl.backend.finish(run, "agent_steps")


def test_runs_of_equal_settings_are_a_group_named_by_what_differs(rlctl: Rlctl) -> None:
    for seed in (0, 1, 2):
        trained(rlctl, f"a{seed}", seed=seed, means=(1.0, 10.0 + seed))
        trained(rlctl, f"b{seed}", "algorithm.lr=1e-2", "checkpoint.keep=9", seed=seed, means=(1.0, 20.0 + seed))
    result = rlctl("compare", "a0", "a1", "a2", "b0", "b1", "b2")
    assert (result.code, result.err) == (0, "")
    head, best, other = (line.split() for line in result.out.splitlines())
    assert head[:3] == ["SETTINGS", "RUNS", "IQM"]
    assert best == ["algorithm.lr=0.01", "3", "21", "20", "to", "22", "20", "22", "1.00k", "-", "-"]
    assert other == ["algorithm.lr=0.001", "3", "11", "10", "to", "12", "10", "12", "1.00k", "1.00", "1", "to", "1"]
    told = rlctl("compare", "a0", "b0", "-o", "json").json
    assert [one["runs"][0]["value"] for one in told["groups"]] == [20.0, 10.0]
    assert told["notes"] == ["a group of one run has no interval; --seeds of a sweep makes more"]


def test_a_default_that_is_written_is_no_other_setting(rlctl: Rlctl) -> None:
    trained(rlctl, "a0", means=(1.0,))
    trained(rlctl, "a1", "model.activation=tanh", "roles.evaluator.replicas=1", seed=1, means=(2.0,))
    assert len(rlctl("compare", "a0", "a1", "-o", "json").json["groups"]) == 1


def test_steps_compares_what_was_reached_by_then(rlctl: Rlctl) -> None:
    trained(rlctl, "long", means=(5.0, 6.0, 7.0))
    trained(rlctl, "short", "algorithm.lr=1e-2", means=(8.0,))
    said = "the evaluations that count are of 500 (short) to 1,500 (long) agent steps; --steps N"
    assert said in rlctl("compare", "long", "short").err
    told = rlctl("compare", "long", "short", "--steps", "1100", "-o", "json").json["groups"]
    assert [(one["iqm"], one["runs"][0]["value"], one["runs"][0]["steps"]) for one in told] == [
        (8.0, 8.0, 500),
        (6.0, 6.0, 1000),
    ]
    result = rlctl("compare", "long", "short", "--steps", "600")
    assert [line.split()[-3] for line in result.out.splitlines()[1:]] == ["500", "500"], "steps of what counts"
    assert "note: the newest evaluation of long of at most 600 agent steps is at 500" in result.err
    assert "note: short has come to 500 of 600 agent steps by its last evaluation (finished)" in result.err


def test_a_run_that_ended_short_of_its_steps_is_told_unless_it_reached_its_goal(rlctl: Rlctl) -> None:
    trained(rlctl, "crash", "stop.wall_time=1h", means=(1.0,))
    trained(rlctl, "goal", "stop.eval_return=9", means=(9.0,))
    trained(rlctl, "whole", means=(1.0, 2.0))
    err = rlctl("compare", "crash", "goal", "whole").err
    assert "note: crash has come to 500 of 1,000 agent steps by its last evaluation (finished)" in err
    assert "goal has come" not in err
    assert "whole has come" not in err


def test_what_makes_figures_unequal_is_told(rlctl: Rlctl) -> None:
    trained(rlctl, "one", seed=0)
    trained(rlctl, "two", "env.id=Acrobot-v1", seed=1)
    trained(rlctl, "live", seed=0, end="")
    trained(rlctl, "none", seed=2, means=())
    result = rlctl("compare", "one", "two", "live", "none")
    assert result.code == 0
    for said in (
        "live is running: its evaluation at 1,000 of 1,000 agent steps counts",
        "none has no evaluation and is left out (finished)",
        "seeds differ: env.id=CartPole-v1 has 0, 0; env.id=Acrobot-v1 has 1",
        "env.id=CartPole-v1 has a seed twice",
        "environments differ",
    ):
        assert f"note: {said}" in result.err
    assert [one["best_improves"] for one in rlctl("compare", "one", "two", "-o", "json").json["groups"]] == [None, None]


def test_settings_that_a_run_has_not_had_from_its_beginning_are_told(rlctl: Rlctl) -> None:
    trained(rlctl, "a0")
    trained(rlctl, "a1", "algorithm.lr=1e-4", seed=1, end="")
    trained(rlctl, "a1", "stop.agent_steps=2000", seed=1, end="")
    trained(rlctl, "a1", seed=1)
    told = rlctl("compare", "a0", "a1", "-o", "json").json
    assert len(told["groups"]) == 1
    (note,) = told["notes"]
    told = "a1 was trained with other settings before, its last ones count: algorithm.lr (0.0001, then 0.001)"
    assert note == told


def test_settings_that_were_changed_back_are_told_and_so_are_revisions_that_are_not_kept(rlctl: Rlctl) -> None:
    for lr in ("1e-3", "1e-2", "1e-3", "1e-2", "1e-3"):
        trained(rlctl, "a0", f"algorithm.lr={lr}", end="")
    notes = rlctl("compare", "a0", "-o", "json").json["notes"]
    told = "a0 was trained with other settings before, its last ones count: algorithm.lr (0.001, then 0.01, then "
    assert notes[0].startswith(told)
    assert not any("are not kept" in note for note in notes)
    for lr in ("1e-2", "1e-4"):
        trained(rlctl, "a0", f"algorithm.lr={lr}", end="")
    notes = rlctl("compare", "a0", "-o", "json").json["notes"]
    assert notes[1] == "the settings of a0 before revision 3 are not kept: they may have been others"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("mean", "steps") for value in ("NaN", "Infinity", "-Infinity", "1e400", "9" * 400)),
        ("steps", '"1"'), ("mean", "null"), ("mean", "1.7e308"), ("steps", "9" * 5000),
    ],
)  # fmt: skip
def test_evaluations_that_are_no_numbers_are_left_out_and_said(rlctl: Rlctl, key: str, value: str) -> None:
    trained(rlctl, "one", means=(1.0, 2.0))
    path = rlctl.backend.files_of["one"].results / "evaluations.jsonl"
    line = json.dumps({**MEASURED, "steps": 900, key: "VALUE"}).replace('"VALUE"', value)
    path.write_text(path.read_text().rsplit("\n", 1)[0] + f"\n{line}\n")
    result = rlctl("compare", "one", "-o", "json")
    assert result.code == 0, result.err
    assert [one["iqm"] for one in result.json["groups"]] == [2.0]
    if len(value) < 5000:  # Python does not read such a number at all
        assert "one: evaluations left out, of NaN, infinite or too large figures: 1" in result.err


@pytest.mark.parametrize(("last_words", "mean"), [({"history": [[500, 3.0, 7.0]]}, 7.0), ({}, 2.0)])
def test_of_a_run_taken_down_on_a_cluster_last_words_count_and_files_only_without_them(
    rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch, last_words: dict[str, Any], mean: float
) -> None:
    trained(rlctl, "one", means=(1.0, 2.0))
    rlctl.backend.report("one", last_words)
    monkeypatch.setattr(scores, "ON_CLUSTERS", {"local"})
    if last_words:  # each run's files would take a pod
        monkeypatch.setattr(rlctl.backend, "stored_files", None)
    result = rlctl("compare", "one", "-o", "json")
    assert result.code == 0, result.err
    assert [one["iqm"] for one in result.json["groups"]] == [mean]


def test_nothing_to_compare_is_said(rlctl: Rlctl) -> None:
    trained(rlctl, "none", means=())
    assert "there is no evaluation to compare" in rlctl("compare", "none").err
    assert rlctl("compare", "none").code == 2
    assert rlctl("compare", "other").code == 2
    assert "must end with .svg, .png, .pdf" in rlctl("compare", "none", "--plot", "x.gif").err


def test_the_plot_is_an_svg_with_a_curve_for_each_group(rlctl: Rlctl) -> None:
    for seed in (0, 1):
        trained(rlctl, f"a{seed}", seed=seed)
        trained(rlctl, f"b{seed}", "algorithm.lr=1e-2", seed=seed, means=(3.0, 4.0, 5.0))
    path = rlctl.folder / "plot.svg"
    result = rlctl("compare", "a0", "a1", "b0", "b1", "--plot", str(path))
    assert result.code == 0, result.err
    words = {text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {"algorithm.lr=0.01", "algorithm.lr=0.001", "agent steps"} <= words
    assert "1400" in words
    first = path.read_bytes()
    refused = rlctl("compare", "b0", "--steps", "1000", "--plot", str(path))
    assert refused.code == 9
    assert f"{path} is there, and is not overwritten" in refused.err
    assert path.read_bytes() == first
    rlctl("compare", "a0", "a1", "b0", "b1", "--plot", str(path), "--force")
    assert path.read_bytes() == first, "equal figures give an equal file"
    rlctl("compare", "b0", "--steps", "1000", "--plot", str(path), "--force")
    words = {text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert "1000" in words
    assert "1400" not in words, "curves end at --steps"


def test_a_plot_that_cannot_be_written_is_the_users_mistake(rlctl: Rlctl) -> None:
    trained(rlctl, "a0", seed=0)
    result = rlctl("compare", "a0", "--plot", str(rlctl.folder / "none" / "plot.svg"))
    assert result.code == 2
    assert "plot.svg: no such file or directory" in result.err


def test_the_plot_has_a_row_for_each_environment_and_no_warning_about_names(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    runs = [run(f"r{at}", 0, 1.0, **{"env.id": f"env{at}", "code": "\u4e2d" * 400 + str(at)}) for at in range(2)]
    draw(figures(grouped(runs, None)), path)
    words = [text.text or "" for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word.startswith("env") and "IQM" in word] == [
        f"env{at}: IQM over runs, 95 % band" for at in range(2)
    ]
    assert max(map(len, words)) <= 120


def test_an_environment_with_many_groups_leaves_the_others_their_place_in_the_plot(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    runs = [run(f"r{at}", 0, 1.0, **{"env.id": "env0", "algorithm.lr": at}) for at in range(11)]
    draw(figures(grouped([*runs, run("other", 0, -1.0, **{"env.id": "env1", "algorithm.lr": 0})], None)), path)
    words = [text.text or "" for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    assert [word[:4] for word in words if "IQM over runs" in word] == ["env0", "env1"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_names_in_the_plot_are_letters_and_no_formula(tmp_path: Path, suffix: str) -> None:
    names = [r"_under", r"env.id=$\frac{", "cost=$5 and $6"]
    found = [Figures(Group(name, [run("a", 0, 1.0)], [(10, 1.0)]), 1.0, None, None, None) for name in names]
    path = tmp_path / f"plot{suffix}"
    draw(found, path)
    if suffix == ".svg":
        words = [text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        assert set(names) <= set(words)


@pytest.mark.parametrize(("package", "more"), [("numpy", []), ("matplotlib", ["--plot", "x.svg"])])
def test_without_its_packages_one_sentence_names_the_extra(
    rlctl: Rlctl, monkeypatch: pytest.MonkeyPatch, package: str, more: list[str]
) -> None:
    trained(rlctl, "one")
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "rlctl.statistics", raising=False)
    result = rlctl("compare", "one", *more)
    assert result.code == 2
    assert f"{package} is not installed here" in result.err
    assert 'pip install "rlctl[sweep]"' in result.err


def test_an_older_point_goes_where_a_learner_went_back_behind_it() -> None:
    before = [ScoredEvaluation(1, 100, 1.0), ScoredEvaluation(1, 200, 2.0), ScoredEvaluation(1, 300, 3.0)]
    after = [ScoredEvaluation(2, 200, 2.5), ScoredEvaluation(1, 310, 3.1), ScoredEvaluation(2, 250, 2.6)]
    assert curve([*before, *after]) == [(100, 1.0), (200, 2.5), (250, 2.6)]


def test_evaluators_that_are_done_in_another_order_lose_no_point() -> None:
    assert curve([ScoredEvaluation(1, 2000, 20.0), ScoredEvaluation(1, 1000, 10.0)]) == [(1000, 10.0), (2000, 20.0)]


def test_of_two_evaluations_of_one_model_the_last_counts() -> None:
    assert curve([ScoredEvaluation(1, 100, 1.0), ScoredEvaluation(1, 200, 9.5), ScoredEvaluation(1, 200, 8.0)]) == [
        (100, 1.0),
        (200, 8.0),
    ]


def run(name: str, seed: int, value: float, **settings: object) -> ScoredRun:
    return ScoredRun(name, seed, "greedy", "finished", {"env.id": "x", **settings}, [(10, value)], 10)


def names(*settings: Mapping[str, object]) -> list[str]:
    return [group.name for group in grouped([run(f"r{at}", 0, 1.0, **one) for at, one in enumerate(settings)], None)]


def test_groups_are_named_by_the_fields_that_tell_them_apart() -> None:
    many = {f"k{at}": 0 for at in range(6)}
    assert names(many, dict.fromkeys(many, 1)) == ["k0=0 k1=0 k2=0 k3=0", "k0=1 k1=1 k2=1 k3=1"]
    assert names({**many, "z": 1}, {**dict.fromkeys(many, 1), "z": 1}, {**many, "z": 2}) == [
        "k0=0 k1=0 k2=0 z=1", "k0=1 k1=1 k2=1 z=1", "k0=0 k1=0 k2=0 z=2",
    ]  # fmt: skip
    assert names({}, {"k": 1}) == ["k=None", "k=1"], "one that only some have"
    assert names({"init": None}, {"init.run": "a@best"}, {"init": None, "lr": 2}) == [
        "init.run=None lr=None", "init.run=a@best", "lr=2",
    ]  # fmt: skip


def test_none_is_left_out_of_a_name_where_it_is_plain_without() -> None:
    assert names({"lr": 1, "most": None}, {"lr": 2, "most": None}, {"lr": 3, "most": 9}) == [
        "lr=1", "lr=2", "lr=3 most=9",
    ]  # fmt: skip
    assert names({"clip": None}, {"clip": 1}) == ["clip=None", "clip=1"]


def test_a_long_name_is_cut_in_the_table_where_it_stays_different() -> None:
    def cells(*settings: Mapping[str, object]) -> list[str]:
        runs = [run(f"r{at}", 0, 1.0, **one) for at, one in enumerate(settings)]
        return [row[0] for row in rows(figures(grouped(runs, None)))[1:]]

    long = "x" * 80
    assert cells({"k": f"a{long}"}, {"k": f"b{long}"}) == [f"k={first}{'x' * 56}…" for first in "ab"]
    assert cells({"k": f"{long}a"}, {"k": f"{long}b"}) == [f"k={long}a", f"k={long}b"]


def test_the_best_group_comes_first_and_improves_on_the_others() -> None:
    runs = [run(f"a{at}", at, at, lr=1) for at in range(4)] + [run(f"b{at}", at, at + 2.0, lr=2) for at in range(4)]
    best, other = figures(grouped(runs, None))
    assert (best.group.name, best.below) == ("lr=2", None)
    assert (other.iqm, other.below) == (1.5, 0.875)  # of 16 pairs 13 above and 2 equal
    assert other.below_interval is not None
    low, high = other.below_interval
    assert 0.5 < low < 0.875 < high <= 1
    assert notes(runs, grouped(runs, None), None) == []
    assert isinstance(best.group, Group)
