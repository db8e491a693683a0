"""`rlctl sweep`: many runs of one spec, over values of its fields and over seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from rlctl.cli.context import ON_CLUSTERS, Cluster, Signalled, World
from rlctl.cli.options import Sets, Specs, Target, Utc, Yes, complete_sweep, verb
from rlctl.cli.text import moment_of, number, table
from rlctl.errors import Locked, Refused, RlctlError, UsageError, WorkloadFailed

if TYPE_CHECKING:
    from rlctl.backends.base import Backend
    from rlctl.cli.experiments.record import Sweep, Trial

STOPS_WITHIN_S = 60.0
"""Seconds to wait for the command that runs a sweep to end, at most; it may be starting a trial."""
ASK_EVERY_S = 0.5
DEFAULT_TRIALS = 20


class Method(StrEnum):
    """Choices of `--search`."""

    optuna = "optuna"


class TrialsFailed(WorkloadFailed):
    """Failed trials of a sweep; `details` has the reason of each."""

    def __init__(self, failed: Sequence[Trial], count: int) -> None:
        made = next((trial for trial in failed if trial.uid), None)  # others have a spec that is refused, and no run
        look = "" if made is None else f"rlctl logs --run {made.run} --tail 50; "
        super().__init__(
            f"{len(failed)} of {count} trials failed: {', '.join(trial.run for trial in failed)}",
            hint=f"{look}with --retry the same command starts them again",
            objects=tuple(trial.run for trial in failed),
        )
        self.details = [f"{trial.run}: {trial.why}" for trial in failed]


class _Group(typer.core.TyperGroup):
    """`rlctl sweep SPEC` is `rlctl sweep run SPEC`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Group,
    rich_markup_mode=None,
    help="Run one spec over values of its fields and over seeds.\n\n`rlctl sweep SPEC` is `rlctl sweep run SPEC`.",
)

SweepArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Its name.", autocompletion=complete_sweep)]
OptionalSweep = Annotated[
    str | None, typer.Argument(metavar="SWEEP", help="Its trials.", autocompletion=complete_sweep)
]


@app.command()
@verb("namespace", "context")
def run(
    world: World,
    specs: Specs,
    sets: Sets = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, help="Of each settings: N from the spec's `seed` on.")
    ] = 1,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the sweep; default: `run` of the spec.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", metavar="N", min=1, help="So many trials at once.")] = 1,
    search: Annotated[
        Method | None, typer.Option("--search", help="Suggest settings instead of trying every combination.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", min=1, help="Settings that a search tries; default: 20.")
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="End trials that are below the median at the same share of their steps.")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Start failed trials again, from their newest generations.")
    ] = False,
    target: Target = None,
) -> int:
    """Train one run for each combination of settings and seed.

    Commas in --set separate values, those in brackets or quotes do not: `--set algorithm.lr=1e-4,3e-4` is two
    settings, `--set model.hidden=[64,64]` one. With --search optuna a range is LOW..HIGH or LOW..HIGH:log. A trial is
    an ordinary run, SWEEP-1, SWEEP-2, ...; status, logs, models and eval work on it. The same command again goes on
    after any end: what is done stays done, what runs is gone on with. More seeds, values or trials are added, 10,000
    trials at most; any other change is refused (exit 5). Ctrl-C once leaves: trials that run go on, no further one
    starts (exit 0).
    Exit 3: a value is wrong, and nothing was started; 7: a trial has failed, the others were trained.
    """
    from rlctl.cli.apply.attach import Interrupts
    from rlctl.cli.experiments import record
    from rlctl.cli.experiments.design import Design, SweepOptions
    from rlctl.cli.experiments.scheduler import Scheduler, summary

    if search is None and trials is not None:
        raise UsageError("--trials is for a search: --search optuna")
    method = None if search is None else search.value
    design = Design(
        world, SweepOptions(specs, sets or (), target, name, seeds, method, prune, trials or DEFAULT_TRIALS)
    )
    with record.held(design.sweep.name), Interrupts() as interrupts:
        record.ask_to_stop(design.sweep.name, wanted=False)
        sweep = design.begin(retry=retry)
        world.say(summary(sweep))
        study = design.search()
        scheduler = Scheduler(
            world, sweep, design.load, lambda: design.suggest(study, trials or DEFAULT_TRIALS), study,
            parallel=parallel, interrupts=interrupts,
        )  # fmt: skip
        try:
            done = scheduler.run()
        except Signalled as gone:
            raise Signalled(gone.exit_code, _left(sweep)) from None
        except RlctlError as error:
            error.hint = "; ".join(part for part in (error.hint, "the same command again goes on") if part)
            raise
        finally:
            sweep.save()
    world.say(summary(sweep))
    if not done:
        world.say(_left(sweep))
        world.document(_document(sweep, None))
        return 0
    world.document(_document(sweep, _compared(world, sweep)))
    return _judged(sweep)


def _left(sweep: Sweep) -> str:
    going = sweep.count("running")
    return (
        f"left sweep {sweep.name}; {going} of its trials {'goes' if going == 1 else 'go'} on\n"
        "  go on         the same command again\n"
        f"  look          rlctl sweep list {sweep.name}\n"
        f"  stop          rlctl sweep stop {sweep.name}"
    )


def _document(sweep: Sweep, comparison: dict[str, Any] | None) -> dict[str, Any]:
    return {"sweep": sweep.name, "trials": [asdict(trial) for trial in sweep.trials], "comparison": comparison}


def _compared(world: World, sweep: Sweep) -> dict[str, Any] | None:
    """Comparison at the end of a sweep; None, with a line, where there is nothing to compare."""
    from rlctl.cli.verbs import compare

    try:
        names = compare.trials(world, sweep)
        return compare.tell(world, names, sweep.target, swept=names)
    except RlctlError as error:  # it only adds to what is known
        world.say(f"no comparison: {error.message}" + (f"; {error.hint}" if error.hint else ""))
        return None


def _judged(sweep: Sweep) -> int:
    """Exit code of a sweep that has ended.

    Raises:
        WorkloadFailed: trials have failed.
        RlctlError: trials were stopped by another command, or lost their supervisor twice.
    """
    failed = [trial for trial in sweep.trials if trial.state == "failed"]
    stopped = [trial for trial in sweep.trials if trial.state == "stopped"]
    if failed:
        raise TrialsFailed(failed, len(sweep.trials))
    if stopped:
        raise RlctlError(
            f"{len(stopped)} of {len(sweep.trials)} trials have stopped: "
            + ", ".join(f"{trial.run} ({trial.why})" for trial in stopped),
            hint="the same command again goes on with them",
            objects=tuple(trial.run for trial in stopped),
        )
    return 0


@app.command("list")
@verb()
def list_sweeps(world: World, sweep: OptionalSweep = None, utc: Utc = False) -> int:
    """List sweeps, or the trials of one; a record that cannot be read is left out and said."""
    from rlctl.cli.experiments import record
    from rlctl.cli.experiments.scheduler import lines

    found, left_out = [], list[RlctlError]()
    for name in [sweep] if sweep else record.names():
        try:
            found.append(record.known(name))
        except RlctlError as error:
            if sweep:
                raise
            world.say(f"left out: {error.message}; {error.hint}")
            left_out.append(error)
    for one in found:
        _refresh(world, one)
    if sweep:
        world.lines([*lines(found[0]), *(f"{one.run}: {one.why}" for one in found[0].trials if one.why)])
        world.document(_document(found[0], None))
        return 0
    rows: list[tuple[str, ...]] = [
        ("SWEEP", "TARGET", "TRIALS", "DONE", "RUNNING", "FAILED", "BEST", "CREATED", "SPEC")
    ]
    for one in found:
        best = max((trial.best for trial in one.trials if trial.best is not None), default=None)
        counts = (len(one.trials), one.count("finished", "pruned"), one.count("running"), one.count("failed"))
        created = moment_of(datetime.fromisoformat(one.created), utc=utc)
        rows.append((one.name, one.target, *map(str, counts), number(best), created, one.spec))
    world.lines(table(rows) if found else ())
    if not found and not left_out:
        world.say("there is no sweep; to begin one: rlctl sweep SPEC --set PATH=VALUE,VALUE --seeds N")
    world.document({"sweeps": [asdict(one) for one in found], "left_out": [error.message for error in left_out]})
    return 0


def _refresh(world: World, sweep: Sweep) -> None:
    """Update trials that the record has as running; the stored record is not touched."""
    from rlctl.cli.experiments.scheduler import update
    from rlctl.cli.run.snapshot import take

    for trial in sweep.trials:
        if trial.state == "running":
            try:
                trial.state, trial.why = update(trial, take(world, _backend(world, sweep, trial), trial.run))
            except RlctlError as error:
                world.say(f"{trial.run}: {error.message}")


def _backend(world: World, sweep: Sweep, trial: Trial) -> Backend:
    from rlctl.cli.run.clusters import backend_of, recorded

    if sweep.target in ON_CLUSTERS and recorded(trial.run) is None:
        return world.backend(sweep.target, Cluster(sweep.context, sweep.namespace))
    return backend_of(world, trial.run, sweep.target)


@app.command()
@verb()
def stop(world: World, sweep: SweepArgument) -> int:
    """Stop the trials of a sweep; their data stays.

    The command that runs the sweep ends as well, with exit code 1. The same `rlctl sweep SPEC` goes on from the newest
    generations. On a cluster the managers of finished trials, which hand out their models, are taken down too.
    """
    from rlctl.cli.experiments import record

    record.known(sweep)
    record.ask_to_stop(sweep, wanted=True)
    deadline_s = world.clock() + STOPS_WITHIN_S
    while True:
        try:
            with record.held(sweep):
                found = record.known(sweep)
                _refresh(world, found)  # those that went on when the command was left
                going = [
                    trial for trial in found.trials
                    if trial.state == "running" or (trial.uid and found.target in ON_CLUSTERS)
                ]  # fmt: skip
                stopped = _delete(world, found, going, volumes=False)
                for trial in going:
                    trial.state = "stopped" if trial.state == "running" else trial.state
                found.save()
                record.ask_to_stop(sweep, wanted=False)
                break
        except Locked:
            if world.clock() >= deadline_s:
                raise
            world.sleep(ASK_EVERY_S)
    world.say(f"sweep {sweep}: {len(stopped)} trials stopped; the same `rlctl sweep` command goes on with them")
    world.document({"sweep": sweep, "stopped": stopped})
    return 0


@app.command()
@verb()
def clean(world: World, sweep: SweepArgument, yes: Yes = False) -> int:
    """Remove a sweep, its runs and their data; asks.

    Of a sweep whose record is damaged the record alone is removed, and what is named after the sweep is told.
    """
    from rlctl.cli.experiments import record

    try:
        runs = sum(bool(trial.uid) for trial in record.known(sweep).trials)
        removes = f"sweep {sweep} for good: {runs} runs with their checkpoints, logs and results"
    except record.DamagedRecord as error:
        removes = f"the record of sweep {sweep}, and no run: {error.message}\n{_staying(sweep)}"
    if not yes:
        world.complain(f"sweep clean removes {removes}")
        if not world.can_ask():
            raise Refused(
                f"sweep {sweep} stays: there is no terminal to confirm on", hint=f"rlctl sweep clean {sweep} --yes",
                objects=(sweep,),
            )  # fmt: skip
        if world.ask(f"type the name of the sweep to go on ({sweep}): ") != sweep:
            raise Refused(f"that is not its name; sweep {sweep} stays", objects=(sweep,))
    with record.held(sweep):
        try:  # again: another command may have gone on with it meanwhile
            found = record.known(sweep)
            removed = _delete(world, found, [trial for trial in found.trials if trial.uid], volumes=True)
            told = f"sweep {sweep} is removed, with {len(removed)} runs"
        except record.DamagedRecord:
            removed, told = [], f"the record of sweep {sweep} is removed; {_staying(sweep)}"
        record.remove(sweep)
    world.say(told)
    world.document({"sweep": sweep, "removed": removed})
    return 0


def _staying(sweep: str) -> str:
    """Hint at the runs of a sweep whose record is damaged, found by their names alone."""
    from rlctl.cli.options import run_names

    found = [run for run in run_names() if re.fullmatch(rf"{re.escape(sweep)}-[0-9]+", run)]
    return f"runs that stay: {', '.join(found) or 'none is recorded here'}; one is removed by " + (
        f"rlctl down {found[0] if found else f'{sweep}-1'} --volumes"
    )


def _delete(world: World, sweep: Sweep, trials: Sequence[Trial], *, volumes: bool) -> list[str]:
    """Take down runs of a sweep; a run of the same name that it did not create is left alone, with a line."""
    from rlctl.cli.apply.applied import follow

    done = []
    for trial in trials:
        backend = _backend(world, sweep, trial)
        state = backend.find(trial.run)
        if state is not None and state.uid != trial.uid:
            world.say(f"run {trial.run} is not of sweep {sweep.name}, and stays")
        elif state is not None or backend.place(trial.run, None).uid == trial.uid:  # an `up` that was killed
            follow(world, backend.delete(trial.run, volumes=volumes, grace_s=backend.grace_s))
            done.append(trial.run)
    return done
