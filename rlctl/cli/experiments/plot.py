"""Plot of a comparison: learning curves of groups, and their interquartile means with intervals."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rlctl.backends.files import reported
from rlctl.errors import UsageError

if TYPE_CHECKING:
    from rlctl.cli.experiments.scores import Figures

FORMATS: Final = (".svg", ".png", ".pdf")
MOST: Final = 10
"""Groups that colours tell apart."""
_GRID: Final = 61


def check(path: Path) -> None:
    """Refuse before anything is asked what cannot be drawn.

    Raises:
        UsageError: another format, or matplotlib is not installed.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: its name must end with {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("matplotlib is not installed here", hint='pip install "rlctl[sweep]"')


def draw(found: Sequence[Figures], path: Path) -> None:
    """Write the plot: left the IQM over agent steps with its band, thin lines of each run; right the table's figures.

    Args:
        found: the best first; MOST of them are drawn.
        path: as `check` lets it pass.

    Raises:
        BackendUnreachable: the file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = found[:MOST]
    with mpl.rc_context({"svg.hashsalt": "rlctl", "svg.fonttype": "none"}):
        made = Figure(figsize=(11, max(4.0, 1.5 + 0.35 * len(shown))), layout="constrained")
        left, right = made.subplots(1, 2, width_ratios=(3, 2))
        for at, one in enumerate(shown):
            _curves(left, one, f"C{at}")
            low, high = one.interval or (one.iqm, one.iqm)
            right.plot([low, high], [-at, -at], color=f"C{at}", linewidth=6, alpha=0.4, solid_capstyle="butt")
            right.plot([one.iqm], [-at], "o", color=f"C{at}")
        mode = shown[0].group.runs[0].mode
        left.set(
            xlabel="agent steps", ylabel=f"return, mean of an evaluation ({mode})", title="IQM over runs, 95 % band"
        )
        left.legend(fontsize="small")
        left.grid(alpha=0.3)
        right.set(xlabel="return", title="IQM, 95 % stratified bootstrap interval")
        right.set_yticks([-at for at in range(len(shown))], [one.group.name for one in shown], fontsize="small")
        right.grid(axis="x", alpha=0.3)
        with reported(f"cannot write {path}"):
            made.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _curves(axes: Any, one: Figures, colour: str) -> None:
    """Up to where the shortest of the group ends: further on it would be another group."""
    import numpy as np

    from rlctl.statistics import bootstrap, iqm

    curves = [run.curve for run in one.group.runs]
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=colour, linewidth=0.7, alpha=0.4)
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    along = np.linspace(min(first, last), last, _GRID)
    values = np.array([np.interp(along, [at for at, _ in curve], [mean for _, mean in curve]) for curve in curves])
    axes.plot(along, [iqm(column) for column in values.T], color=colour, linewidth=2, label=one.group.name)
    if len(curves) > 1:
        low, high = np.array([bootstrap(column, iqm, draws=300) for column in values.T]).T
        axes.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
