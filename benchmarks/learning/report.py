"""The learning table, its plots, and docs/learning.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.learning import claims, comparisons
from benchmarks.learning.rows import Row
from benchmarks.learning.stored import Stored, shown, steps
from benchmarks.learning.train import fell_back, success
from benchmarks.shared import plots, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.stats import spread
from rlctl.statistics import bootstrap, iqm

RESULTS = REPOSITORY / "benchmarks" / "results" / "learning"
DOCUMENT = REPOSITORY / "docs" / "learning.md"
CHOICES = "Discrete, MultiDiscrete"
STARTS = {
    "impala": ("V-trace actor-critic: what is old is corrected", "any", "cartpole-impala", "cartpole-impala"),
    "ppo": ("clipped surrogate on the newest policy's experience alone", "any", "lunarlander-ppo", "lunarlander-ppo"),
    "appo": ("the same, asynchronous", "any", "acrobot-appo", "acrobot-appo"),
    "dqn": ("Q-learning from a uniform replay", CHOICES, "cartpole-dqn", "cartpole-dqn"),
    "apex_dqn": ("prioritized, an exploration for each actor", CHOICES, "pong-apex_dqn", "cartpole-apex_dqn"),
    "r2d2": (
        "apex_dqn with a memory, where one observation does not tell enough", CHOICES, "cartpole-positions-r2d2",
        "cartpole-positions-r2d2",
    ),
    "sac": ("two critics, reward and entropy", "Box; Discrete, MultiDiscrete", "pendulum-sac", "pendulum-sac"),
    "td3": ("two critics, a deterministic policy", "Box", "pendulum-td3", "pendulum-td3"),
}  # fmt: skip
"""Algorithm -> description, its actions, a spec to start from in specs/, and the row with the figure for README."""
START_HEAD = ("`algorithm.name`", "actions", "", "start with", "reached on its defaults (IQM)", "measured by")
HEAD = (
    "", "goal, within", "seeds", "return of the last model: IQM (95 %)", "worst seed", "reached by",
    "steps to the goal", "wall, CPU to it", "fell back", "evaluations of a seed", "published",
)  # fmt: skip


def line(row: Row, found: Stored) -> list[str]:
    """Cells of one row of the table."""
    seeds, told = shown(row, found)
    title = f"{row.shown_algorithm}, {row.environment}" + (f", {row.settings}" if row.settings else "")
    goal = f"{row.goal:g}, {steps(row.agent_steps)}"
    published = row.published.text if row.published else ""
    if not seeds:
        return [title, goal, told, "", "", "", "", "", "", "", published]
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
        f"{spread([len(points) for points in curves]).median:.0f}",
        published,
    ]


def plot(rows: Sequence[Row], stored: Mapping[str, Stored], path: Path) -> None:
    """Curves of all algorithms on one task: thin of each seed, thick their median; goal and published figures."""
    made, (axes,) = plots.figure(1)
    for colour, row in enumerate(rows):
        found = stored[row.name]
        seeds, _ = shown(row, found)
        curves = [
            ([float(one["steps"]) for one in points], [float(one["mean_return"]) for one in points])
            for points in map(found.points, seeds)
        ]
        plots.seeds(axes, curves, f"C{colour}", row.shown_algorithm)
        if row.published is not None:
            axes.axhline(row.published.mean, color=f"C{colour}", linestyle=":", linewidth=1)
    axes.axhline(rows[0].goal, color="black", linestyle="--", linewidth=1, label=f"goal {rows[0].goal:g}")
    axes.plot([], [], color="grey", linestyle=":", linewidth=1, label="published")
    axes.set(title=", ".join(filter(None, (rows[0].environment, rows[0].settings))))
    axes.set(xlabel="agent steps", ylabel="return, mean of 100 evaluator episodes")
    axes.legend(fontsize="small", loc="lower right")
    plots.save(made, path)


def plotted(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that share a plot, by its name: those of one task and goal. The first goal's has the name of the task."""
    found: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row.task, row.goal), []).append(row)
    named: dict[str, list[Row]] = {}
    for (task, _), group in found.items():
        named["-".join([task, *(row.algorithm for row in group)]) if task in named else task] = group
    return named


def start(algorithm: str, known: Mapping[str, Row], stored: Mapping[str, Stored]) -> list[str]:
    """Cells of one algorithm in README: description, a spec to start from, the score of its row and the command."""
    about, actions, spec, name = STARTS[algorithm]
    row = known[name]
    reached = _reached(row, stored[name])
    return [
        f"[{algorithm}](docs/algorithms/{algorithm}.md)", actions, about, f"specs/{spec}.yaml", reached,
        f"`make learn ROW={name}`",
    ]  # fmt: skip


def _reached(row: Row, found: Stored) -> str:
    seeds, _ = shown(row, found)
    if not seeds:
        return "not measured yet"
    counted = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    if not found.valid(row, int(seeds[0]["seed"])):
        counted += " of an older version of the code"
    elif len(seeds) < row.seeds:
        counted = f"{len(seeds)} of {row.seeds} seeds"
    value = iqm([float(one["mean_return"]) for one in seeds])
    return f"{value:.1f} on {row.environment} after {steps(row.agent_steps)} ({counted})"


def write(rows: Sequence[Row], arms: Sequence[Row], results: Path = RESULTS, document: Path = DOCUMENT) -> None:
    """Write tables, plots and document from the stored figures alone.

    Raises:
        OSError: one of them could not be written.
    """
    with claims.writing(results, "document"):
        known = {row.name: row for row in (*rows, *arms)}
        stored = {row.name: Stored.read(results, row) for row in (*rows, *arms)}
        lines = tables.table(HEAD, [line(row, stored[row.name]) for row in rows])
        measured = [one for row in rows for one in stored[row.name].seeds]
        for column, what in (("processor", "Measured on"), ("commit", "Commits")):
            lines += ["", f"{what}: {', '.join(sorted(store.distinct(measured, column)))}."] if measured else []
        for name, alike in plotted(rows).items():  # named by all rows, whichever are measured
            if group := [row for row in alike if stored[row.name].seeds]:
                path = results / f"{name}.svg"
                plot(group, stored, path)
                lines += ["", f"![{name}]({shown_path(path, document)})"]
        tables.replace_section(document, "table", lines)
        readme = document.parent.parent / "README.md"
        if readme.is_file():
            cells = [start(algorithm, known, stored) for algorithm in STARTS]
            tables.replace_section(readme, "algorithms", tables.plain_table(START_HEAD, cells))
        for section, make, some in (
            ("ablations", comparisons.table, comparisons.ABLATIONS),
            ("learners", comparisons.equivalence_table, comparisons.LEARNERS),
        ):
            lines = make(known, stored)
            for one in some:
                if stored[one.base].seeds and stored[one.changed].seeds:
                    path = results / f"{one.name}.svg"
                    comparisons.plot(one, known, stored, path)
                    lines += ["", f"![{one.name}]({shown_path(path, document)})"]
            tables.replace_section(document, section, lines)


def shown_path(path: Path, document: Path) -> Path:
    """As a link in the document."""
    up = len(document.parent.relative_to(REPOSITORY).parts) if document.is_relative_to(REPOSITORY) else 0
    return Path(*[".."] * up) / path.relative_to(REPOSITORY) if path.is_relative_to(REPOSITORY) else path
