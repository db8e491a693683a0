"""`rlctl compare`: groups of runs beside each other, with the spread over their seeds."""

from __future__ import annotations

from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlctl.cli.context import World
from rlctl.cli.options import Target, complete_compared, verb
from rlctl.cli.text import table
from rlctl.errors import RlctlError, UsageError
from rlctl.spec.runs import run_index

if TYPE_CHECKING:
    from rlctl.cli.experiments.record import Sweep

Runs = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN|SWEEP", help="Runs, and sweeps for all of their trials.", autocompletion=complete_compared
    ),
]


@verb("namespace", "context")
def compare(
    world: World,
    runs: Runs,
    steps: Annotated[
        int | None,
        typer.Option("--steps", metavar="N", min=1, help="By the newest evaluation of at most N agent steps."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Write learning curves: .svg, .png or .pdf.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a plot that is there.")] = False,
    target: Target = None,
) -> int:
    """Compare runs, those of equal settings as one group.

    A group is the runs whose specs differ in nothing but name, seed, where they run (target, storage, images,
    kubernetes), code, checkpoint and trackers. Of each run its last evaluation counts, or with --steps the newest one
    of no more agent steps. Told are the interquartile mean over the runs, with a 95 % stratified bootstrap interval,
    and the probability that a run of the best group returns more than one of this group (Agarwal et al. 2021,
    arXiv:2108.13264). What makes the figures unequal is told as well: runs that are unfinished, ended short of their
    steps or had other settings before, other seeds, other environments.
    Needs numpy, and matplotlib for the plot: pip install "rlctl[sweep]". A file of yours is never overwritten without
    --force (exit 9).
    """
    from rlctl.cli.experiments import record

    names, swept = list[str](), set[str]()
    for name in runs:
        sweep = record.find(name)
        if sweep is None:
            names.append(name)
            continue
        if run_index.path(name).exists():
            world.say(f"note: {name} is a sweep; the run of that name is left out")
        names += (found := trials(world, sweep))
        swept.update(found)
    swept -= set(runs)
    document = tell(world, list(dict.fromkeys(names)), target, swept=swept, steps=steps, plot=plot, force=force)
    world.document(document)
    return 0


def trials(world: World, sweep: Sweep) -> list[str]:
    """Runs of a sweep that can be compared; prints a note about those left out."""
    pruned, missing = sweep.count("pruned"), sum(not trial.uid for trial in sweep.trials)
    if pruned:
        world.say(f"note: {pruned} pruned trials of {sweep.name} are left out")
    if missing:
        world.say(f"note: {missing} trials of {sweep.name} have not been started")
    return [trial.run for trial in sweep.trials if trial.uid and trial.state != "pruned"]


def tell(
    world: World, names: Sequence[str], target: str | None, *, swept: Container[str] = (), steps: int | None = None,
    plot: Path | None = None, force: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Print the comparison; returns its document.

    Args:
        swept: trials of sweeps that were named as a whole: one that cannot be read is left out.

    Raises:
        UsageError: none of the runs has an evaluation, one is not there, or a package is not installed.
        Refused: the plot is there, and is not to be overwritten.
    """
    from rlctl.cli.experiments import plot as plots
    from rlctl.cli.experiments import scores

    if plot is not None:
        plots.check(plot, force=force)
    runs = []
    for name in names:
        try:
            runs.append(scores.scored(world, name, target))
        except RlctlError as error:
            if name not in swept:
                raise
            world.say(f"note: {name} is left out: {error.message}")
    groups = scores.grouped(runs, steps)
    told = scores.notes(runs, groups, steps)
    for note in told:
        world.say(f"note: {note}")
    if not groups:
        raise UsageError("there is no evaluation to compare", hint="the first comes some seconds after a run begins")
    found = scores.figures(groups)
    world.lines(table(scores.rows(found)))
    if plot is not None:
        plots.draw(found, plot, steps)
        world.say(f"plot: {plot}" + (f", of the best {plots.MOST} groups" if len(found) > plots.MOST else ""))
    return {"groups": scores.as_plain(found), "notes": told, "steps": steps, "plot": plot}
