"""One SVG per benchmark; equal figures give an equal file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.shared import store
from benchmarks.shared.stats import Spread

if TYPE_CHECKING:  # the import takes a second, which only plots need
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(panels: int) -> tuple[Figure, list[Axes]]:
    """Panels side by side."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(5.5 * panels, 4), layout="constrained")
    axes = made.subplots(1, panels, squeeze=False)
    return made, list(axes[0])


def save(made: Figure, path: Path) -> None:
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "rlctl"
    mpl.rcParams["svg.fonttype"] = "none"
    text = io.StringIO()
    made.savefig(text, format="svg", metadata={"Date": None})
    store.write_text(path, text.getvalue())


def bars(axes: Axes, values: Mapping[str, Spread], *, title: str, unit: str, log: bool = False) -> None:
    """Horizontal bars of medians with their range, the first on top."""
    names = list(values)[::-1]
    medians = [values[name].median for name in names]
    low = [values[name].median - values[name].low for name in names]
    high = [values[name].high - values[name].median for name in names]
    colours = ["C1" if name.startswith("rlctl") else "C0" for name in names]
    axes.barh(names, medians, xerr=[low, high], color=colours, capsize=2)
    axes.set(title=title, xlabel=unit)
    if log and medians:
        axes.set_xscale("log")


def lines(
    axes: Axes, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x: str, y: str,
    log: bool = False,
) -> None:  # fmt: skip
    """Curves by name."""
    for name, (across, up) in curves.items():
        axes.plot(across, up, marker="o", markersize=3, label=name)
    axes.set(title=title, xlabel=x, ylabel=y)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    if curves:
        axes.legend(fontsize="small")


def seeds(axes: Axes, curves: Sequence[tuple[Sequence[float], Sequence[float]]], colour: str, name: str) -> None:
    """Curves of equal runs: thin of each, thick their median up to where the longest ends."""
    for across, up in curves:
        axes.plot(across, up, color=colour, linewidth=0.7, alpha=0.5)
    if curves:
        at = np.linspace(0, max(across[-1] for across, _ in curves), 201)
        middle = np.median([np.interp(at, across, up) for across, up in curves], axis=0)
        axes.plot(at, middle, color=colour, linewidth=2, label=f"{name}, {len(curves)} seeds")
