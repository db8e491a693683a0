"""Stored seeds of the learning table, its plots, and docs/learning.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.rows import Row
from benchmarks.learning.train import Point, fell_back, success
from benchmarks.shared import plots, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.stats import bootstrap, iqm, spread

RESULTS = REPOSITORY / "benchmarks" / "results" / "learning"
DOCUMENT = REPOSITORY / "docs" / "learning.md"
SEEDS_CSV, CURVES_CSV = "seeds.csv", "evaluations.csv"
"""In the folder of a row: a line per seed, and one per evaluation."""
HEAD = (
    "", "goal, within", "seeds", "return of the last model: IQM (95 %)", "worst seed", "reached by",
    "steps to the goal", "wall, CPU to it", "fell back", "published",
)  # fmt: skip


@dataclass
class Stored:
    """Seeds of one row that were measured."""

    folder: Path
    seeds: list[store.Row] = field(default_factory=list)
    curves: list[store.Row] = field(default_factory=list)

    @classmethod
    def read(cls, results: Path, row: Row) -> Stored:
        folder = results / row.name
        if not (folder / SEEDS_CSV).exists():
            return cls(folder)
        return cls(folder, store.read(folder / SEEDS_CSV), store.read(folder / CURVES_CSV))

    def add(self, line: Mapping[str, Any], points: Sequence[Point]) -> None:
        """Put a seed in place of an earlier measurement of it, on disk as well."""
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = {"seed": line["seed"]}
        for name, file, new in (("seeds", SEEDS_CSV, [line]), ("curves", CURVES_CSV, [keys | one for one in points])):
            kept = [row for row in getattr(self, name) if row["seed"] != str(line["seed"])]
            store.write(self.folder / file, sorted([*kept, *new], key=lambda row: int(row["seed"])))
            setattr(self, name, store.read(self.folder / file))

    def valid(self, row: Row, seed: int) -> bool:
        """Whether a seed was measured with today's resolved spec and code."""
        found = store.where(self.seeds, seed=seed)
        return bool(found) and found[0]["fingerprint"] == row.fingerprint(seed)

    def points(self, line: store.Row) -> list[store.Row]:
        return store.where(self.curves, seed=line["seed"])


def shown(row: Row, found: Stored) -> tuple[list[store.Row], str]:
    """Seeds whose figures count: those of today's code if there are any, else all; and how many they are, in words."""
    new = [line for line in found.seeds if found.valid(row, int(line["seed"]))]
    old = len(found.seeds) - len(new)
    told = f"{len(new)} of {row.seeds}" + (f"; {old} stale" if old else "")
    return (new or found.seeds), told if new or not old else f"0 of {row.seeds}; figures are of {old} stale"


def line(row: Row, found: Stored) -> list[str]:
    """Cells of one row of the table."""
    seeds, told = shown(row, found)
    title = f"{row.algorithm.upper()}, {row.environment}" + (f", {row.settings}" if row.settings else "")
    goal = f"{row.goal:g}, {steps(row.agent_steps)}"
    published = row.published.text if row.published else ""
    if not seeds:
        return [title, goal, told, "", "", "", "", "", "", published]
    values = [float(one["mean_return"]) for one in seeds]
    interval = ""
    if len(values) > 1:
        low, high = bootstrap(values, iqm)
        interval = f" ({low:.1f} to {high:.1f})"
    curves = [found.points(one) for one in seeds]
    first = [points[at] for points in curves if (at := success(points, row.goal)) is not None]
    median = {name: spread([float(one[name]) for one in first]) for name in ("steps", "wall_s", "cpu_s") if first}
    reached = f"{len(first)} of {len(seeds)}"
    return [
        title,
        goal,
        told,
        f"{iqm(values):.1f}{interval}" + (" ✓" if iqm(values) >= row.goal else ""),
        f"{min(values):.1f}",
        reached,
        f"{steps(median['steps'].median)} ({steps(median['steps'].low)}-{steps(median['steps'].high)})"
        if first
        else "",
        f"{median['wall_s'].median:.0f} s, {median['cpu_s'].median:.0f} s" if first else "",
        str(sum(fell_back(points, row.goal) for points in curves)) if first else "",
        published,
    ]


def steps(count: float) -> str:
    """Example: 150000 -> "150k", 1000000 -> "1M"."""
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1e3:.0f}k"


def plot(rows: Sequence[Row], stored: Mapping[str, Stored], path: Path) -> None:
    """Curves of all algorithms on one task: thin of each seed, thick their median; goal and published figures."""
    made, (axes,) = plots.figure(1)
    for colour, row in enumerate(rows):
        found = stored[row.name]
        seeds, _ = shown(row, found)
        curves = [
            ([int(one["steps"]) for one in points], [float(one["mean_return"]) for one in points])
            for points in map(found.points, seeds)
        ]
        for across, up in curves:
            axes.plot(across, up, color=f"C{colour}", linewidth=0.7, alpha=0.5)
        if curves:
            at = np.linspace(0, row.agent_steps, 201)
            middle = np.median([np.interp(at, across, up) for across, up in curves], axis=0)
            axes.plot(
                at, middle, color=f"C{colour}", linewidth=2, label=f"{row.algorithm.upper()}, {len(curves)} seeds"
            )
        if row.published is not None:
            axes.axhline(row.published.mean, color=f"C{colour}", linestyle=":", linewidth=1)
    axes.axhline(rows[0].goal, color="black", linestyle="--", linewidth=1, label=f"goal {rows[0].goal:g}")
    axes.plot([], [], color="grey", linestyle=":", linewidth=1, label="published")
    axes.set(title=", ".join(filter(None, (rows[0].environment, rows[0].settings))))
    axes.set(xlabel="agent steps", ylabel="return, mean of 100 evaluator episodes")
    axes.legend(fontsize="small", loc="lower right")
    plots.save(made, path)


def write(rows: Sequence[Row], results: Path = RESULTS, document: Path = DOCUMENT) -> None:
    """Table, plots and document from what is stored alone."""
    stored = {row.name: Stored.read(results, row) for row in rows}
    lines = tables.table(HEAD, [line(row, stored[row.name]) for row in rows])
    measured = [one for found in stored.values() for one in found.seeds]
    for column, what in (("processor", "Measured on"), ("commit", "Commits")):
        lines += ["", f"{what}: {', '.join(sorted(store.distinct(measured, column)))}."] if measured else []
    for task, alike in groupby(rows, key=lambda row: row.task):
        group = [row for row in alike if stored[row.name].seeds]
        if group:
            path = results / f"{task}.svg"
            plot(group, stored, path)
            lines += ["", f"![{task}]({shown_path(path, document)})"]
    tables.replace_section(document, "table", lines)


def shown_path(path: Path, document: Path) -> Path:
    """As a link in the document."""
    up = len(document.parent.relative_to(REPOSITORY).parts) if document.is_relative_to(REPOSITORY) else 0
    return Path(*[".."] * up) / path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
