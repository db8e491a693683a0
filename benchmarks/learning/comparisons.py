"""Pairs of specs that differ in one thing: ablations, and two learners beside one.

Of an ablation: the difference of the interquartile means and the probability of improvement, each with the interval of
a stratified bootstrap. Of learners: two one-sided Welch tests, margin 5 % of the mean of one, of the return alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.curves import WIDEST, area, gap
from benchmarks.learning.rows import Row
from benchmarks.learning.stored import Stored, shown
from benchmarks.shared import plots, store, tables
from benchmarks.shared.stats import tost
from rlctl.statistics import bootstrap, compared, improvement, iqm

MARGIN = 0.05
FIGURES = {"return": "return of the last model", "area": "area under the curve"}
HEAD = (
    "", "seeds", "figure", "with: IQM (95 %)", "without: IQM (95 %)", "difference (95 %)", "with is better (95 %)",
    "shown", "published",
)  # fmt: skip
HEAD_EQUAL = (
    "", "seeds", "one: IQM (95 %)", "two: IQM (95 %)", "difference of means (90 %)", "margin", "p", "",
)  # fmt: skip


class Comparison(NamedTuple):
    """Two rows; a row of the learning table may be one of them."""

    name: str
    title: str
    base: str  # with the part that is examined, as it should be
    changed: str  # without
    published: str = ""  # direction in publications, with their authors

    @property
    def rows(self) -> tuple[str, str]:
        return self.base, self.changed


ABLATIONS = (
    Comparison(
        "normalize",
        "running moments of observations and returns; PPO, Pendulum-v1, gamma 0.9",
        "pendulum-gamma90-ppo",
        "normalize-off",
        "better with: Andrychowicz et al. 2021 (arXiv:2006.05990), observations and values",
    ),
    Comparison(
        "normalize-gamma99",
        "running moments of observations and returns; PPO, Pendulum-v1, gamma 0.99",
        "pendulum-ppo",
        "normalize-off-gamma99",
        "better with: Andrychowicz et al. 2021 (arXiv:2006.05990), observations and values",
    ),
    Comparison(
        "vtrace",
        "V-trace, weights published every 64 versions; IMPALA, CartPole-v1",
        "vtrace-on",
        "vtrace-off",
        "better with: Espeholt et al. 2018 (arXiv:1802.01561, 5.2.2)",
    ),
    Comparison(
        "truncation",
        "bootstrap at the cut; PPO, Pendulum-v1, gamma 0.9, cut after 10 steps where it is learned from",
        "truncation-bootstrap",
        "truncation-end",
        "better with: Pardo et al. 2018 (arXiv:1712.00378)",
    ),
    Comparison(
        "lambda",
        "GAE's advantage (with) and the published one (without), lambda 0.8; IMPALA, CartPole-v1",
        "lambda-gae",
        "lambda-vtrace",
        "none known",
    ),
    Comparison(
        "prioritized",
        "rows drawn by priority; Ape-X, LunarLander-v3",
        "apex",
        "apex-uniform",
        "better with: Schaul et al. 2016 (arXiv:1511.05952), 41 of 49 games",
    ),
    Comparison(
        "n-step",
        "returns of three steps; Ape-X, LunarLander-v3",
        "apex",
        "apex-one-step",
        "better with: Hessel et al. 2018 (arXiv:1710.02298)",
    ),
    Comparison(
        "double",
        "double Q-learning; Ape-X, LunarLander-v3",
        "apex",
        "apex-single",
        "better with: van Hasselt et al. 2016 (arXiv:1509.06461)",
    ),
    Comparison(
        "burn-in",
        "burn-in of 40 rows; R2D2, CartPole-v1 without velocities",
        "cartpole-positions-r2d2",
        "r2d2-no-burn-in",
        "better with: Kapturowski et al. 2019 (R2D2, section 3)",
    ),
    Comparison(
        "stored-state",
        "sequences begin with their actor's memory, not with zeros; R2D2, CartPole-v1 without velocities",
        "cartpole-positions-r2d2",
        "r2d2-zero-state",
        "better with: Kapturowski et al. 2019 (R2D2, section 3)",
    ),
    Comparison(
        "rescaling",
        "values rescaled by h; R2D2, CartPole-v1 without velocities",
        "cartpole-positions-r2d2",
        "r2d2-no-rescaling",
        "better with: Pohlen et al. 2018 (arXiv:1805.11593)",
    ),
)
LEARNERS = (
    Comparison("learners-ppo", "PPO, CartPole-v1", "learners-ppo-1", "learners-ppo-2"),
    Comparison("learners-impala", "IMPALA, CartPole-v1", "learners-impala-1", "learners-impala-2"),
    Comparison("learners-acrobot-ppo", "PPO, Acrobot-v1, 300k", "learners-acrobot-ppo-1", "learners-acrobot-ppo-2"),
    Comparison(
        "learners-acrobot-impala",
        "IMPALA, Acrobot-v1, 300k",
        "learners-acrobot-impala-1",
        "learners-acrobot-impala-2",
    ),
)


def values(row: Row, found: Stored, figure: str) -> list[float]:
    """The figure of every seed that counts; no area where evaluations lie further apart than WIDEST."""
    seeds, _ = shown(row, found)
    if figure == "return":
        return [float(one["mean_return"]) for one in seeds]
    if apart(row, found) > WIDEST:
        return []
    curves = [found.points(one) for one in seeds]
    return [area({int(at["steps"]): float(at["mean_return"]) for at in points}, row.agent_steps) for points in curves]


def apart(row: Row, found: Stored) -> float:
    """Largest gap between two evaluations of any seed that counts, as a share of the budget; 0 without a seed."""
    seeds, _ = shown(row, found)
    curves = [[int(at["steps"]) for at in found.points(one)] for one in seeds]
    return max((gap(steps, row.agent_steps) for steps in curves), default=0.0)


def table(rows: Mapping[str, Row], stored: Mapping[str, Stored]) -> list[str]:
    """The ablations: a line for each figure, and which have no area under the curve."""
    body, without = [], []
    for one, (figure, words) in product(ABLATIONS, FIGURES.items()):
        widest = max(apart(rows[name], stored[name]) for name in one.rows)
        if figure == "area" and widest > WIDEST:
            without.append(f"{one.name} ({100 * widest:.2g} %)")
            continue
        base, changed = (values(rows[name], stored[name], figure) for name in one.rows)
        title = one.title if figure == "return" else ""
        published = one.published if figure == "return" else ""
        cells = [interval(base), interval(changed), *_difference(base, changed)]
        body.append([title, _seeds(one, rows, stored), words, *cells, published])
    gaps = "the largest gap between two evaluations of a seed as a share of the budget"
    return [*tables.table(HEAD, body), *(["", f"No area, with {gaps}: {', '.join(without)}."] if without else [])]


def equivalence_table(rows: Mapping[str, Row], stored: Mapping[str, Stored]) -> list[str]:
    """The learners."""
    body = []
    for one in LEARNERS:
        base, changed = (values(rows[name], stored[name], "return") for name in one.rows)
        cells = [interval(base), interval(changed), *_equivalence(base, changed)]
        body.append([one.title, _seeds(one, rows, stored), *cells])
    return tables.table(HEAD_EQUAL, body)


def interval(found: Sequence[float]) -> str:
    """Interquartile mean with its bootstrap interval; "" of nothing."""
    if not found:
        return ""
    if len(found) == 1:
        return f"{iqm(found):.1f}"
    low, high = bootstrap(found, iqm)
    return f"{iqm(found):.1f} ({low:.1f} to {high:.1f})"


def _difference(base: Sequence[float], changed: Sequence[float]) -> list[str]:
    if min(len(base), len(changed)) < 2:
        return ["", "", ""]
    gap = compared(base, changed, lambda a, b: iqm(a) - iqm(b))
    better = compared(base, changed, improvement)
    said = "better" if gap.low > 0 else "worse" if gap.high < 0 else "no difference"
    return [
        f"{gap.value:.1f} ({gap.low:.1f} to {gap.high:.1f})",
        f"{better.value:.2f} ({better.low:.2f} to {better.high:.2f})",
        said,
    ]


def _equivalence(base: Sequence[float], changed: Sequence[float]) -> list[str]:
    if min(len(base), len(changed)) < 2:
        return ["", "", "", ""]
    margin = MARGIN * abs(float(np.mean(base)))
    found = tost(changed, base, margin)
    return [
        f"{found.difference:.1f} ({found.low:.1f} to {found.high:.1f})",
        f"{margin:.1f}",
        f"{found.p:.3f}",
        "equivalent within 5 %" if found.p < 0.05 else "not shown",
    ]


def _seeds(one: Comparison, rows: Mapping[str, Row], stored: Mapping[str, Stored]) -> str:
    """Of both sides, where they are not the same."""
    return " / ".join(dict.fromkeys(shown(rows[name], stored[name])[1] for name in one.rows))


def plot(one: Comparison, rows: Mapping[str, Row], stored: Mapping[str, Stored], path: Path) -> None:
    """Curves of both sides: thin of each seed, thick their median."""
    made, (axes,) = plots.figure(1)
    for colour, name in enumerate(one.rows):
        seeds, _ = shown(rows[name], stored[name])
        plots.seeds(axes, [_curve(stored[name].points(seed)) for seed in seeds], f"C{colour}", name)
    axes.set(title=one.title, xlabel="agent steps", ylabel="return, mean of an evaluation")
    axes.title.set_fontsize("small")
    axes.legend(fontsize="small", loc="lower right")
    plots.save(made, path)


def _curve(points: Sequence[store.Row]) -> tuple[list[float], list[float]]:
    return [float(one["steps"]) for one in points], [float(one["mean_return"]) for one in points]
