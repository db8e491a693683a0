"""Evaluations: ordered, believed, confirmed, stored; and once more before a run ends that stops by steps or time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.evaluation.cadence import SHORTEST_S, Cadence, Taken
from rlctl_agents.manager.evaluation.matches import Quotas, Standstill, Wanted
from rlctl_agents.manager.evaluation.recordings import Recordings
from rlctl_agents.manager.evaluation.selection import Selection, reached
from rlctl_agents.manager.events import Events, JsonLines
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.state_store import APART, Evaluation, StateStore
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.process import ENVIRONMENTS, PLAYS
from rlctl_agents.types.control import EvalResult, Match, Mode, Quota, Recording, Report, to_plain
from rlctl_agents.types.experience import ModelRef

JOIN_S = 30.0
"""So long after a run has done what was asked, or has lost its last evaluator since, one may still be starting; later,
it has none."""
REST_S = 15.0
"""Longest wait for the learner to rest and for its last weights to reach the modelpool; then what it holds is it."""
MEASURE_S = 600.0
"""Longest wait for the last evaluation, from the moment at which the run has done what was asked."""
OTHER_EVERY = 5
"""Of so many evaluations one is followed by another of the same version in the other mode."""
LOADS = 3
"""A model that could not be loaded so often is not tried again, until there is a better one."""
OTHER: dict[Mode, Mode] = {"greedy": "sample", "sample": "greedy"}
MEASURED = 16
"""Evaluations that are remembered by version and mode."""


class Evaluations:
    """The evaluations of a run.

    One mode counts: `evaluation.mode`, which the goal, the best model and the cadence are about. Now and then the same
    version is played in the other mode as well.

    A model that reaches the goal was chosen among many for its figure, so it is measured again on fresh seeds, at once
    and while the run goes on; what that says is what counts. It is on the volume by then, so nothing can take it away.

    A run that stops by steps or time has not been measured at its end. `finish` makes it wait: the learner rests, its
    last model is published, one evaluator plays one whole quota with it, and that is the return that stays.

    Args:
        settings: of the run, as they are now.
        state: its progress gets every whole evaluation.
        learners: know what a model was learned from.
        events: hear of every evaluation, and why there is no last one.
        layout: of the run.
        clock: where time comes from.
        cpu: of the run by now.
        train_return: mean of the newest episodes of training; None: there is none yet.
        stands: no other manager has taken over; may raise OSError.
    """

    def __init__(
        self,
        settings: Callable[[], Spec],
        state: StateStore,
        learners: Learners,
        events: Events,
        layout: Layout,
        clock: Clock,
        cpu: Callable[[], Cpu],
        train_return: Callable[[], float | None],
        *,
        stands: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings, self._progress, progress = settings, state.progress, state.progress
        self._learners, self._events, self._clock, self._train_return = learners, events, clock, train_return
        self.selection = Selection(layout.models, state, stands)
        self._cadence = Cadence(clock.monotonic, cpu, self._hopeful)
        self._quotas = Quotas(settings().seed, clock.monotonic, self._cadence, match=progress.match + APART)
        self._stored = JsonLines(layout.results / "evaluations.jsonl")
        self.recordings = Recordings(layout.episodes, stands)
        self._filmed = {one.version for one in self.recordings.episodes}  # also those of which no film came
        self._count = 0  # of evaluations in the mode that counts, none that confirms
        self._ordered = 0  # of these, those that this manager has had begun
        self._other: ModelRef | None = None  # to be played in the other mode
        self._unloadable: ModelRef | None = None  # could not be confirmed
        chosen = [one for found in self.selection.models.values() for one in (found.evaluation, found.other)]
        known = [one for one in (*chosen, progress.other, progress.evaluation) if one is not None]
        self._measured = deque([(one.ref, one.mode) for one in known], MEASURED)
        self._lived = clock.monotonic()  # when an evaluator was last alive, or first waited for
        self._held = self._lived  # when an evaluator could last get the last model, or played it
        self._finished: float | None = None  # when the last evaluation began to be waited for
        self._last: ModelRef | None = None  # what it is about, once that is known
        self.awaits = False
        """The run may not end yet."""
        self.not_evaluated: str | None = None
        """Why there is no evaluation of the last model, in words."""
        self.undrawn: list[tuple[int, dict[str, float] | None]] = []
        """New points of curves: steps, and an evaluation's figures by tag; None: the learner went back to there."""

    @property
    def rests(self) -> bool:
        """True if learners make no update any more: the model that is evaluated last is saved last."""
        return self._finished is not None

    @property
    def text(self) -> str:
        """Progress of the last evaluation, in words."""
        if self._last is None:
            return "waiting for the last model"
        wanted = next(iter(self._wanted()), Wanted(self._last, self._mode))
        return f"measuring version {wanted.ref.version}, {_how(wanted.mode, wanted.confirms)}"

    @property
    def goal(self) -> Evaluation | None:
        """Confirming evaluation of the model that has reached the goal, in the mode that counts."""
        return reached(self.selection.goal, self._mode)

    @property
    def standstill(self) -> Standstill | None:
        """Evaluators that make no steps; None: they make some."""
        return self._quotas.standstill

    @property
    def taken(self) -> Taken | None:
        """Time from one evaluation to the next, and their share of the run's CPU."""
        return self._cadence.taken

    @property
    def failure(self) -> str:
        """Failure to write the newest evaluation to its file, in words; "" without one."""
        return self._stored.failure or self.selection.failure

    def match(self, report: Report, published: ModelRef | None, seats: int) -> Match | None:
        """Match that the evaluator that reports has to play.

        Args:
            published: newest model that the modelpool holds of which evaluators get theirs.
            seats: of the environment.
        """
        steps, plays = report.counters.get("agent_steps", 0.0), int(report.gauges.get(PLAYS, 0.0))
        self._quotas.hear(report.boot, report.model, steps, plays, int(report.gauges.get(ENVIRONMENTS, 1.0)))
        self._tell_unloadable()
        match = self._quotas.playing(report.boot)
        if match is None and plays:
            return None  # it has yet to leave a match that was taken from it, and may be within a reset
        for wanted in self._wanted() if match is None else ():
            # the modelpool may have gone on: the evaluator that has just played it has its weights
            if wanted.ref != self._other or report.model == wanted.ref:
                match = match or self._quotas.open(report.boot, wanted, seats=seats, quota=self._quota(wanted, seats))
        if match is None and not self.rests:
            settings = self._settings()
            quota = self._quota(Wanted(ModelRef("", 0, 0), self._mode), seats)
            match = self._quotas.order(report.boot, published, seats=seats, every_s=every_s(settings), quota=quota)
            self._ordered += match is not None
        self._progress.match = self._quotas.match
        return match

    def believe(self, result: EvalResult, wall_s: float) -> Evaluation:
        """Take the result of a quota, if it counts.

        Args:
            wall_s: of the run.

        Raises:
            ValueError: it does not count, and why.
        """
        # not when it was ordered: a modelpool may have told of the version before its learner did
        steps = self._learners.steps_at(result.ref)
        done = self._quotas.finish(result, steps=steps, wall_s=wall_s, unix=self._clock.unix())
        if result.recording is not None:
            self._record(result.recording, done, result.match)
        if done.ref == self._last and not done.confirms and (done.ref, done.mode) in self._measured:
            return done  # the same games once more, for their film
        counts = done.mode == self._mode
        if counts:
            self._progress.measured(done)
        else:
            self._progress.other = done
        self._measured.append((done.ref, done.mode))
        self._stored.append({**to_plain(done), "returns": result.returns, "lengths": result.lengths})
        self._events.add(
            "evaluation", f"evaluation {said(done)}", mean=done.mean, steps=done.steps, version=done.ref.version,
            mode=done.mode, confirms=done.confirms, info=done.info,
        )  # fmt: skip
        other = "" if counts else f"_{done.mode}"
        told = {f"info/{name}/evaluation{other}": mean for name, mean in done.info.items()}
        self.undrawn.append((done.steps, {f"return/evaluation{other}": done.mean} | told))
        if counts and not done.confirms:
            self._count += 1
            self._other = done.ref if self._count % OTHER_EVERY == 0 else None
        elif done.ref == self._other:
            self._other = None
        self._select(done, result)
        return done

    def _record(self, recording: Recording, done: Evaluation, match: int) -> None:
        self._filmed.add(done.ref.version)
        try:
            self._events.add("recorded", self.recordings.add(recording, done, match))
        except ValueError as fault:
            text = f"no episode of version {done.ref.version} is recorded: {fault}"
            self._events.add("not_recorded", text, version=done.ref.version)

    def _select(self, done: Evaluation, result: EvalResult) -> None:
        """Choose the best model, and the one that has reached the goal."""
        goal, version, selection = self._settings().stop.eval_return, done.ref.version, self.selection
        before = selection.candidate(goal, self._mode)
        if done.confirms or done.mode != self._mode:
            selection.measured_again(done)
        elif done.seats == 1 and done.mean > selection.better_than(done.mode):
            try:
                if not result.kept:
                    raise ValueError(result.fault or "its evaluator did not bring it")
                selection.choose(done, result.kept, self._quotas.models)
            except ValueError as fault:
                text = f"version {version} is the best so far with {done.mean:.4g}, and is not kept: {fault}"
                self._events.add("not_kept", text, version=version)
                return
            text = f"version {version} is the best so far: mean {done.mean:.4g}"
            found = selection.candidate(goal, self._mode)
            if found is not None:
                text += f" >= {goal:g}; it is evaluated again on fresh seeds"
            self._events.add("best", text, version=version, mean=done.mean)
        found = selection.candidate(goal, self._mode)
        if done.confirms and before is not None and before.ref == done.ref and found is None:
            text = (
                f"version {version} is not confirmed: mean {done.mean:.4g} < {goal:g} on fresh seeds, after "
                f"{before.mean:.4g}; the run goes on"
            )
            self._events.add("not_confirmed", text, version=version, mean=done.mean)
        self.settle()

    def settle(self) -> None:
        """Make the best model the one that has reached the goal, if its figure on fresh seeds says so."""
        goal = self._settings().stop.eval_return
        found = self.selection.candidate(goal, self._mode)
        if goal is not None and found is not None and found.confirms:
            self.selection.reach(goal)
            self._events.add("confirmed", f"the goal {goal:g} is confirmed: {said(found)}", version=found.ref.version)

    @property
    def _mode(self) -> Mode:
        """Mode that counts."""
        return self._settings().evaluation.mode

    def _wanted(self) -> list[Wanted]:
        """Evaluations that are wanted whatever is due, the most urgent one first."""
        mode, confirming = self._mode, self._confirming
        found = [] if confirming is None or self._quotas.not_loaded[confirming] >= LOADS else [confirming]
        if self._last is not None:
            both = [Wanted(self._last, mode), Wanted(self._last, OTHER[mode])]
            left = [one for one in both if (one.ref, one.mode) not in self._measured]
            unfilmed = self._settings().evaluation.video_every is not None and self._last.version not in self._filmed
            # a model may have been measured before it was known to be the last one
            found += left or ([both[0]] if unfilmed else [])
        elif self._other is not None and not self.rests:
            found.append(Wanted(self._other, OTHER[mode]))
        return found

    @property
    def _confirming(self) -> Wanted | None:
        """Evaluation on fresh seeds of the model that has reached the goal, unless it has been done."""
        candidate = self.selection.candidate(self._settings().stop.eval_return, self._mode)
        return None if candidate is None or candidate.confirms else Wanted(candidate.ref, self._mode, confirms=True)

    def _tell_unloadable(self) -> None:
        """Tell once of a model that could not be confirmed, because no evaluator could load it."""
        wanted = self._confirming
        if wanted is None or self._quotas.not_loaded[wanted] < LOADS or self._unloadable == wanted.ref:
            return
        self._unloadable = wanted.ref
        text = f"version {wanted.ref.version} is not confirmed: no evaluator could load it; the run goes on"
        self._events.add("not_confirmed", text, version=wanted.ref.version)

    def _hopeful(self) -> bool:
        """True if training has come to the goal."""
        goal, found = self._settings().stop.eval_return, self._train_return()
        return goal is not None and found is not None and found >= goal

    def _quota(self, wanted: Wanted, seats: int) -> Quota:
        chosen = seats == 1 and wanted.mode == self._mode and not wanted.confirms
        above = self.selection.better_than(wanted.mode) if chosen else math.inf
        evaluation, every = self._settings().evaluation, self._settings().evaluation.video_every
        rare = wanted.confirms or wanted.ref == self._last
        record = every is not None and wanted.mode == self._mode and (rare or self._ordered % every == 0)
        return Quota(evaluation.episodes, wanted.mode, above, record)

    def void_from(self, steps: int) -> None:
        """Continue the curve from there: a learner went back to a generation."""
        self.undrawn.append((steps, None))

    def drop(self, boot: str) -> None:
        """Forget an evaluator that has gone."""
        self._quotas.drop(boot)

    def finish(self, last: ModelRef | None = None) -> None:
        """Have the last model of a run that ends evaluated before, in both modes.

        Args:
            last: it is this one, which has reached the goal; None: the newest, once the learner rests.
        """
        if self._finished is None:
            self._finished, self.awaits, self._last = self._clock.monotonic(), True, last
            self._lived = self._held = self._finished
            self._other = None
            if last is not None:
                self._quotas.only(self._wanted())

    def cancel(self) -> None:
        """Wait for no last evaluation: more is asked of the run, and its last model is still to come."""
        self._finished, self._last, self.awaits, self.not_evaluated = None, None, False, None

    def turn(self, published: ModelRef | None, *, final: bool, evaluators: int, expected: int, served: bool) -> None:
        """Go on with the last evaluation as far as possible.

        Args:
            published: newest model that the modelpool holds of which evaluators get theirs.
            final: the learner will not make a newer one.
            evaluators: that live.
            expected: that the spec asks for.
            served: that modelpool lives; without it, no evaluator gets the last model.
        """
        if self._finished is None or not self.awaits:
            return
        now = self._clock.monotonic()
        waited_s = now - self._finished
        if evaluators:
            self._lived = now
        if served or (self._last is not None and self._quotas.plays):
            self._held = now
        if self._last is None and published is not None and (final or waited_s >= REST_S):
            self._last = published
            self._quotas.only(self._wanted())
        if self._last is not None and not self._wanted():
            self.awaits = False
        elif evaluators == 0 and (expected == 0 or now - self._lived >= JOIN_S):
            self.give_up("no evaluator lives")
        elif now - self._held >= JOIN_S:
            self.give_up(f"modelpool/0 has not been heard for {JOIN_S:.0f} s, and evaluators get models from it alone")
        elif waited_s >= MEASURE_S:
            fewer = "fewer evaluation.episodes take less, or of slow resets fewer evaluation.envs"
            self.give_up(f"no evaluator was done within {MEASURE_S:.0f} s; {fewer}")

    def give_up(self, why: str) -> None:
        """End the run without its last evaluation, if that is still waited for."""
        if self.awaits:
            self.awaits = False
            what = "the last model"
            if self._last is not None:
                wanted = next(iter(self._wanted()), Wanted(self._last, self._mode))
                if not wanted.confirms and (wanted.ref, wanted.mode) in self._measured:
                    return  # it lacks its film only
                what += f", version {self._last.version},"
                if wanted != Wanted(self._last, self._mode):
                    what = f"version {wanted.ref.version}, {_how(wanted.mode, wanted.confirms)},"
            self.not_evaluated = f"{what} was not evaluated: {why}"
            self._events.add("not_evaluated", self.not_evaluated)


def said(done: Evaluation) -> str:
    """`mean 487.3 over 100 episodes (greedy, version 96)`, and whether on fresh seeds."""
    how = _how(done.mode, done.confirms)
    return f"mean {done.mean:.4g} over {done.episodes} episodes ({how}, version {done.ref.version})"


def _how(mode: str, confirms: bool) -> str:
    return f"{mode} on fresh seeds" if confirms else mode


def every_s(settings: Spec) -> float | None:
    """Between the starts of two evaluations; None: as CPU allows. Lock-step never depends on how fast a machine is."""
    stated = settings.evaluation.every
    return SHORTEST_S if stated is None and settings.sync else stated
