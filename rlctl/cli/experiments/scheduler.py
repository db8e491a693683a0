"""Scheduler of a sweep: starts trials as runs, polls them until they are over, and prints progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Final

from rlctl.cli.apply.applied import follow
from rlctl.cli.apply.attach import Interrupts
from rlctl.cli.apply.bring_up import bring_up
from rlctl.cli.apply.preflight import nothing_to_do, preflight
from rlctl.cli.apply.stuck import StuckDetector
from rlctl.cli.context import ON_CLUSTERS, World
from rlctl.cli.experiments import record
from rlctl.cli.experiments.record import Sweep, Trial
from rlctl.cli.models.initial import initial
from rlctl.cli.run.clusters import backend_of
from rlctl.cli.run.prepare import Prepared, prepare, refuse
from rlctl.cli.run.snapshot import AWAY_S, Snapshot, take
from rlctl.cli.text import clock, count, number, plain, table
from rlctl.errors import BackendUnreachable, RlctlError, SpecError, Unreadable, WorkloadFailed
from rlctl.waiting import HEARTBEAT_S

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState
    from rlctl.cli.display.view import Screen
    from rlctl.cli.experiments.search import Search
    from rlctl.spec import Loaded

STOPPED: Final = "stopped by another command"
_ROOM: Final = 4
"""Lines of the terminal that are kept for other things than trials."""


class Scheduler:
    """Runs a sweep in the foreground: at most `parallel` trials at once, until none is left.

    Args:
        sweep: record with its trials, saved before a run is created.
        load: returns the spec of a trial.
        suggest: returns a further trial, added to the sweep; None: there is none.
        search: gets the results; None: a grid.
        interrupts: Ctrl-C.
    """

    def __init__(
        self,
        world: World,
        sweep: Sweep,
        load: Callable[[Trial], Loaded],
        suggest: Callable[[], Trial | None],
        search: Search | None,
        *,
        parallel: int,
        interrupts: Interrupts,
    ) -> None:
        self._world, self._sweep, self._load, self._suggest, self._search = world, sweep, load, suggest, search
        self._parallel, self._interrupts = parallel, interrupts
        self._backends: dict[str, Backend] = {}
        self._stuck: dict[str, StuckDetector] = {}
        self._away: set[str] = set()  # runs whose last poll failed
        self._again: set[str] = set()  # runs that this command has started again after the loss of their supervisor
        self._answered_s = self._said_s = self._began_s = world.clock()
        self._chatty = True

    def run(self) -> bool:
        """Run trials until all are over.

        Returns:
            False where Ctrl-C came first; trials that run go on.

        Raises:
            SpecError, Conflict, BackendUnreachable, PartlyApplied: a trial could not be started.
            RlctlError: another command has stopped the sweep.
        """
        from rlctl.cli.display.view import Screen

        for trial in self._sweep.trials:
            trial.state = "waiting" if trial.state == "stopped" else trial.state
            self._tell_search(trial)  # a command may have been killed between record and search
        for trial in self._running():
            self._look(trial)
            if not trial.over:  # `up` was killed in its middle, or it was stopped or interrupted: `up` goes on
                self._start(trial)
        screen: Screen | None = None
        try:
            while True:
                if record.asked_to_stop(self._sweep.name):
                    raise RlctlError(f"sweep {self._sweep.name} was stopped by another command")
                for trial in self._running():
                    self._look(trial)
                while not self._interrupts.asked and len(self._running()) < self._parallel:
                    further = self._next()
                    if further is None:
                        break
                    self._start(further)
                if not self._running() or self._interrupts.asked:
                    return not self._interrupts.asked
                if screen is None:
                    screen = Screen(self._world, self._world.stderr).__enter__()
                self._show(screen)
                self._world.sleep(max(self._backends[trial.run].poll_every_s for trial in self._running()))
        finally:
            if screen is not None:
                screen.__exit__()

    def _running(self) -> list[Trial]:
        return [trial for trial in self._sweep.trials if trial.state == "running"]

    def _next(self) -> Trial | None:
        waiting = (trial for trial in self._sweep.trials if trial.state == "waiting")
        return next(waiting, None) or self._suggest()

    def _start(self, trial: Trial) -> None:
        """Apply a trial's spec as `up` does: create its run, resume it, or find that nothing is left to do."""
        with self._hushed():
            failed = self._up(trial)
        self._chatty = False
        if failed is None:
            self._tell(f"{trial.run} {_settings(trial)}: started")
        else:
            self._end(trial, "failed", failed)

    def _up(self, trial: Trial) -> str | None:
        """Start or resume the run of a trial; returns the reason of a failure, None when it runs."""
        sweep = self._sweep
        try:
            loaded = self._load(trial)
        except SpecError as error:
            if trial.suggestion is None:
                raise
            return str(error.problems[0])  # settings that do not go together
        images = loaded.spec.images.model_copy(update=sweep.images)
        prepared = prepare(
            self._world, replace(loaded, spec=loaded.spec.model_copy(update={"images": images})), mint=True
        )
        if prepared.state is not None and prepared.state.uid != trial.uid:
            raise record.foreign(sweep, trial.run)
        refuse(prepared)
        if prepared.spec.target in ON_CLUSTERS and not sweep.images:  # a tag that moves would split the sweep
            sweep.images = {name: ref for name, ref in prepared.spec.images.model_dump().items() if ref}
        self._backends[trial.run] = prepared.backend
        # before the run is created: after a kill it is recognised by its uid
        trial.best = trial.best if trial.uid == prepared.plan.uid else None
        trial.uid, trial.state, trial.why = prepared.plan.uid, "running", ""
        sweep.save()
        try:
            self._apply(prepared, loaded)
        except WorkloadFailed as error:
            state = prepared.backend.find(trial.run)
            if state is None or not interrupted(state):  # else the next look at it starts it again
                return error.message
        return None

    def _apply(self, prepared: Prepared, loaded: Loaded) -> None:
        if not nothing_to_do(prepared):
            preflight(self._world, prepared, None)
            with initial(self._world, loaded, kept=self._sweep.kept(loaded.spec)) as policy:
                bring_up(self._world, prepared, atomic=False, policy=policy)

    @contextmanager
    def _hushed(self) -> Iterator[None]:
        """Suppress the progress lines of `up`, except for the first trial."""
        before = self._world.quiet
        self._world.quiet = before or not self._chatty
        try:
            yield
        finally:
            self._world.quiet = before

    def _look(self, trial: Trial) -> None:
        """Poll the run of a trial and update the trial."""
        world = self._world
        try:
            backend = self._backends.get(trial.run)
            if backend is None:
                backend = self._backends[trial.run] = backend_of(world, trial.run, self._sweep.target)
            seen = take(world, backend, trial.run)
        except BackendUnreachable as error:
            if world.clock() - self._answered_s >= AWAY_S:
                raise
            if isinstance(error, Unreadable) and trial.run not in self._away:  # it keeps its slot until it is repaired
                self._tell(f"{error.message}; {error.hint}")
            elif not self._away:
                self._tell(f"{error.message}; asked again for {AWAY_S:g} s at most")
            self._away.add(trial.run)
            return
        self._away.discard(trial.run)
        self._answered_s = world.clock()
        measured = trial.evaluation
        state, why = update(trial, seen)
        if seen is not None and interrupted(seen.state) and trial.run not in self._again:
            self._again.add(trial.run)  # a machine that kills it each time ends the trial
            self._end(trial, "waiting", why)
        elif state != "running" or seen is None:
            self._end(trial, state, why)
        elif (lost := self._lost(trial, seen)) is not None:
            self._take_down(trial, backend)
            self._end(trial, "failed", lost)
        elif self._to_prune(trial, seen):
            self._take_down(trial, backend)
            self._end(trial, "pruned")
        elif trial.evaluation is not None and trial.evaluation != measured:
            self._tell(f"{trial.run}: {_figures(trial)}")

    def _lost(self, trial: Trial, seen: Snapshot) -> str | None:
        """Reason why a trial that has learned nothing yet never will; None if it may."""
        if trial.steps or seen.state.target not in ON_CLUSTERS:
            return None
        lost = self._stuck.setdefault(trial.run, StuckDetector(self._world.clock)).lost(seen.processes)
        return None if lost is None else f"{lost.role} cannot run: {lost.reason or lost.state}"

    def _to_prune(self, trial: Trial, seen: Snapshot) -> bool:
        if self._search is None or trial.suggestion is None or not self._sweep.search.get("prune"):
            return False
        curve = [(int(point[0]), float(point[2])) for point in seen.status["history"]]
        return self._search.hopeless(trial.suggestion, curve, int(seen.state.spec["stop"]["agent_steps"]))

    def _take_down(self, trial: Trial, backend: Backend) -> None:
        """Stop the run of a trial; its data stays."""
        with self._hushed():
            follow(self._world, backend.delete(trial.run, volumes=False, grace_s=backend.grace_s), heard=False)

    def _end(self, trial: Trial, state: record.State, why: str = "") -> None:
        trial.state, trial.why = state, why
        self._sweep.save()
        told = f"{trial.run} {_settings(trial)}: {state}" + (f": {why}" if why else "")
        self._tell(told + (f", {_figures(trial)}" if trial.evaluation is not None else ""))
        self._tell_search(trial)

    def _tell_search(self, trial: Trial) -> None:
        """Report a suggestion to the search once all its seeds are over: the mean of their last evaluations."""
        if self._search is None or trial.suggestion is None:
            return
        alike = [one for one in self._sweep.trials if one.suggestion == trial.suggestion]
        if not all(one.over for one in alike):
            return
        pruned = any(one.state == "pruned" for one in alike)
        found = [one.evaluation for one in alike if one.state in ("finished", "pruned") and one.evaluation is not None]
        self._search.tell(trial.suggestion, fmean(found) if len(found) == len(alike) else None, pruned=pruned)

    def _tell(self, text: str) -> None:
        self._said_s = self._world.clock()
        if not self._world.is_terminal(self._world.stderr):
            self._world.say(f"{clock(self._said_s - self._began_s)} {plain(text)}")

    def _show(self, screen: Screen) -> None:
        if screen.live:
            screen.show([*lines(self._sweep, room=screen.height - _ROOM), "Ctrl-C leaves; trials that run go on"])
        elif self._world.clock() - self._said_s >= HEARTBEAT_S:
            self._tell(summary(self._sweep))


def interrupted(state: RunState) -> bool:
    """Whether a run ended with its supervisor, by a kill or a reboot: `up` goes on with it."""
    return state.phase == "failed" and state.failure is not None and state.failure.process == "supervisord"


def update(trial: Trial, seen: Snapshot | None) -> tuple[record.State, str]:
    """Update the figures of a trial from a snapshot of its run.

    Returns:
        Its state, and the reason.
    """
    if seen is None:
        return "stopped", "its run is not there"
    status = seen.status
    trial.steps = int(status["totals"]["consumed_steps"])
    if status["evaluation"] is not None and isfinite(mean := float(status["evaluation"]["mean"])):
        trial.evaluation = mean
        known = [mean] if trial.best is None else [mean, trial.best]
        trial.best = max([*known, *(best for point in status["history"] if isfinite(best := float(point[2])))])
    phase = seen.state.phase
    if interrupted(seen.state):
        return "stopped", seen.state.failure.text if seen.state.failure else ""
    if phase == "failed":
        return "failed", seen.state.failure.text if seen.state.failure else "the run has failed"
    return phase, STOPPED if phase == "stopped" else ""


def summary(sweep: Sweep) -> str:
    """`sweep pole: 3 finished, 2 running, 5 waiting`."""
    states: tuple[record.State, ...] = ("finished", "pruned", "failed", "stopped", "running", "waiting")
    told = [f"{found} {state}" for state in states if (found := sweep.count(state))]
    return f"sweep {sweep.name}: {', '.join(told) or 'no trial yet'}"


def lines(sweep: Sweep, *, room: int | None = None) -> list[str]:
    """Table of the trials.

    Args:
        room: lines, at most: trials that run come first, then those that ended last.
    """
    shown = sweep.trials
    if room is not None and len(shown) > room:
        ranks: Mapping[str, int] = {"running": 0, "failed": 1, "stopped": 1, "pruned": 2, "finished": 2, "waiting": 3}
        place = {id(trial): at for at, trial in enumerate(sweep.trials)}
        chosen = sorted(shown, key=lambda one: (ranks[one.state], -place[id(one)]))[: max(room - 1, 1)]
        shown = sorted(chosen, key=lambda one: place[id(one)])
    axes = list(dict.fromkeys(path for trial in sweep.trials for path in trial.settings))
    rows = [("TRIAL", *axes, "SEED", "PHASE", "STEPS", "NEWEST", "BEST")]
    for trial in shown:
        figures = (count(trial.steps) if trial.steps else "-", number(trial.evaluation), number(trial.best))
        rows.append(
            (trial.run, *(trial.settings.get(path, "-") for path in axes), str(trial.seed), trial.state, *figures)
        )
    return [*table(rows), *([] if len(shown) == len(sweep.trials) else ["..."]), summary(sweep)]


def _settings(trial: Trial) -> str:
    return " ".join([*(f"{path}={value}" for path, value in trial.settings.items()), f"seed={trial.seed}"])


def _figures(trial: Trial) -> str:
    return f"{number(trial.evaluation)} at {count(trial.steps)} steps, best {number(trial.best)}"
