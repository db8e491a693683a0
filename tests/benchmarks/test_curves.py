"""The game that curves are compared on, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import curves
from benchmarks.envs import catch
from benchmarks.shared import store
from benchmarks.shared.store import Row
from rlctl.spec.schema import Spec
from rlctl_agents.envs.check import check_env


def test_catch_keeps_every_rule_of_environments_in_each_of_its_forms() -> None:
    for factory in (catch.catch, catch.whole_stacks, catch.one_by_one):
        check_env(factory(3), steps=60)


@pytest.mark.parametrize(
    ("chosen", "low", "high"), [("follow", 1.0, 1.0), ("random", -0.75, -0.35), ("stay", -0.75, -0.45)]
)
def test_a_paddle_that_follows_the_ball_catches_it(chosen: str, low: float, high: float) -> None:
    count, games = 300, catch.Catches(300)
    rng = np.random.default_rng(0)
    obs, _ = games.reset(seed=0)
    for _ in range(catch.ROWS - 1):
        newest = obs[:, -1]
        ball = newest[:, : (catch.ROWS - 1) * catch.HEIGHT].any(1).argmax(1) // catch.WIDTH
        paddle = newest[:, catch.ROWS * catch.HEIGHT - 1].argmax(1) // catch.WIDTH
        actions = {"follow": 1 + np.sign(ball - paddle), "random": rng.integers(0, 3, count), "stay": np.ones(count)}
        obs, reward, ends, _, _ = games.step(actions[chosen].astype(np.int64))
    assert ends.all()
    assert low <= reward.mean() <= high
    begun, nothing, ended, _, _ = games.step(np.ones(count, np.int64))
    assert not nothing.any()
    assert not ended.any()
    assert not begun[:, :-1].any(), "frames of the episode before are zeros to this one"


@pytest.mark.parametrize("variant", curves.WITHOUT)
def test_a_curve_has_one_thing_changed(variant: str) -> None:
    before, after = (curves.spec_of(name, 1, 1000) for name in (curves.WHOLE, variant))
    Spec.model_validate(after)
    assert len([part for part in before if before[part] != after[part]]) == (variant != curves.WHOLE)


def test_the_area_under_a_curve_is_the_mean_of_it() -> None:
    assert curves.area({0: -1.0, 100: 1.0}, 200) == pytest.approx(0.5, abs=1e-4)
    assert curves.area({50: 0.25}, 200) == 0.25


def runs(variant: str, centre: float) -> list[Row]:
    return [
        {"variant": variant, "seed": str(at), "mean_return": store.as_text(value), "area": store.as_text(value),
         "gap": "0.05"}
        for at, value in enumerate(np.linspace(centre - 0.02, centre + 0.02, 6))
    ]  # fmt: skip


def test_curves_are_equivalent_or_that_is_not_shown(tmp_path: Path) -> None:
    rows = [*runs(curves.WHOLE, 0.9), *runs("without bf16", 0.91), *runs("games stepped one by one", 0.7)]
    lines = curves.table(rows)[2:]
    assert "| without bf16 | 6 | 0.910 " in lines[3]
    assert "equivalent: difference 0.010" in lines[3]
    assert "not shown: difference -0.200" in lines[4]
    curves.plot(rows, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").exists()


@pytest.mark.parametrize("sparse", [{"gap": "0.06", "points": "30"}, {"gap": "", "points": "11"}])
def test_an_area_with_evaluations_far_apart_is_not_told(sparse: Row, tmp_path: Path) -> None:
    rows = [*runs(curves.WHOLE, 0.9), *runs("without bf16", 0.91)]
    rows[0] |= sparse
    lines = curves.table(rows)[2:]
    apart = "6" if sparse["gap"] else "10"
    assert lines[2].endswith(f"|  |  | none: evaluations {apart} % of the steps apart, or more |  |")
    assert lines[3].endswith(" |  |  |"), "there is nothing to compare with"
    curves.plot(rows, tmp_path / "plot.svg")


def test_the_gap_of_a_curve_is_the_longest_way_without_an_evaluation() -> None:
    assert curves.gap([0, 50, 200], 200) == 0.75
    assert curves.gap([150, 200], 200) == 0.75, "from the beginning"
    assert curves.gap([0, 40, 101], 100) == 0.6
