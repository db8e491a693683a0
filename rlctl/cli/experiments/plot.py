"""Plot of a comparison: learning curves of groups, and their interquartile means with intervals."""

from __future__ import annotations

import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlctl.backends.files import require_free, writing
from rlctl.cli.context import require
from rlctl.errors import UsageError

if TYPE_CHECKING:
    from rlctl.cli.experiments.scores import Figures

FORMATS: Final = (".svg", ".png", ".pdf")
MOST: Final = 10
"""Groups of a plot, at most: as many as have distinct colours."""
_GRID: Final = 61
_NAME_COLUMNS: Final = 120


def check(path: Path, *, force: bool) -> None:
    """Refuse a plot that cannot be drawn, before any run is read.

    Raises:
        UsageError: the format is not supported, or matplotlib is not installed.
        Refused: a file is there that is not to be overwritten.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: its name must end with {', '.join(FORMATS)}")
    require("sweep", "matplotlib")
    require_free(path, force=force)


def draw(found: Sequence[Figures], path: Path, steps: int | None = None) -> None:
    """Write the plot: left the IQM over agent steps with its band, thin lines of each run; right the table's figures.

    Each environment has a row of its own: returns of different ones share no axis.

    Args:
        found: the best first; MOST of them are drawn, the best of each environment first.
        path: accepted by `check`.
        steps: agent steps at which curves end; None: where the runs end.

    Raises:
        BackendUnreachable: the file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rank, placed = Counter[str](), list[tuple[int, int]]()
    for at, one in enumerate(found):
        rank[one.group.env] += 1
        placed.append((rank[one.group.env], at))
    shown = [found[at] for at in sorted(at for _, at in sorted(placed)[:MOST])]
    envs = list(dict.fromkeys(one.group.env for one in shown))
    # names hold values of the spec: "$" is one of its letters, not the begin of a formula
    with (
        mpl.rc_context({"svg.hashsalt": "rlctl", "svg.fonttype": "none", "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        # a letter that the font lacks, or a layout that has no room, is no fault of the user's
        warnings.simplefilter("ignore", UserWarning)
        made = Figure(figsize=(11, 4.0 * len(envs) + 0.35 * len(shown)), layout="constrained")
        rows = made.subplots(len(envs), 2, width_ratios=(3, 2), squeeze=False)
        lines = [_group(rows[envs.index(one.group.env)], one, at, steps) for at, one in enumerate(shown)]
        for (left, right), env in zip(rows, envs, strict=True):
            run = next(one for one in shown if one.group.env == env).group.runs[0]
            left.set(
                xlabel="agent steps", ylabel=f"return, mean of an evaluation ({run.mode})",
                title=f"{run.settings.get('env.id', '')}: IQM over runs, 95 % band",
            )  # fmt: skip
            left.grid(alpha=0.3)
            right.set(xlabel="return", yticks=[], title="IQM, 95 % stratified bootstrap interval")
            right.grid(axis="x", alpha=0.3)
        legend = made.legend(lines, ["-"] * len(lines), loc="outside lower left", fontsize="small")
        for label, one in zip(legend.get_texts(), shown, strict=True):  # a label that begins with _ would be left out
            label.set_text("\n".join(textwrap.wrap(one.group.name, _NAME_COLUMNS)))
        with writing(path):
            made.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _group(row: Any, one: Figures, at: int, steps: int | None) -> Any:
    """Draw a group in the colour of its place; returns the line of its IQM."""
    left, right = row
    low, high = one.interval or (one.iqm, one.iqm)
    right.plot([low, high], [-at, -at], color=f"C{at}", linewidth=6, alpha=0.4, solid_capstyle="butt")
    right.plot([one.iqm], [-at], "o", color=f"C{at}")
    return _curves(left, one, f"C{at}", steps)


def _curves(axes: Any, one: Figures, colour: str, steps: int | None) -> Any:
    """Draw curves, the IQM up to where the shortest run ends: further on it would be another group."""
    import numpy as np

    from rlctl.statistics import bootstrap, iqm

    curves = [[point for point in run.curve if steps is None or point[0] <= steps] for run in one.group.runs]
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    along = np.linspace(min(first, last), last, _GRID)
    values = np.array([np.interp(along, [at for at, _ in curve], [mean for _, mean in curve]) for curve in curves])
    iqms = [iqm(column) for column in values.T]
    (line,) = axes.plot(along, iqms, color=colour, linewidth=2, marker="." if first == last else None)
    if len(curves) > 1:
        low, high = np.array([bootstrap(column, iqm, draws=300) for column in values.T]).T
        axes.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
    return line
