"""`rlctl compare` on the memory target."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree

import pytest

from rlctl.cli.experiments.scores import Group, Scored, curve, figures, grouped, notes
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


def test_steps_compares_what_was_reached_by_then(rlctl: Rlctl) -> None:
    trained(rlctl, "long", means=(5.0, 6.0, 7.0))
    trained(rlctl, "short", "algorithm.lr=1e-2", means=(8.0,))
    assert "the last evaluations are of 500 to 1,500 agent steps; --steps N" in rlctl("compare", "long", "short").err
    told = rlctl("compare", "long", "short", "--steps", "900", "-o", "json").json["groups"]
    assert [one["iqm"] for one in told] == [8.0, 5.0]


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
    first = path.read_bytes()
    rlctl("compare", "a0", "a1", "b0", "b1", "--plot", str(path))
    assert path.read_bytes() == first, "equal figures give an equal file"


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
    assert curve([(100, 1.0), (200, 2.0), (300, 3.0), (200, 2.5), (250, 2.6)]) == [(100, 1.0), (200, 2.5), (250, 2.6)]


def run(name: str, seed: int, value: float, **settings: object) -> Scored:
    return Scored(name, seed, "greedy", "finished", {"env.id": "x", **settings}, [(10, value)], 10)


def test_groups_that_their_first_differences_do_not_tell_apart_bear_the_name_of_a_run() -> None:
    many = {f"k{at}": 0 for at in range(6)}
    groups = grouped([run("a", 0, 1.0, **many), run("b", 0, 2.0, **dict.fromkeys(many, 1))], None)
    assert [group.name for group in groups] == ["k0=0 k1=0 k2=0 k3=0 (a)", "k0=1 k1=1 k2=1 k3=1 (b)"]


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
