"""Evaluations: started, stored and confirmed; and the last one, before the end of a run that stops by steps or time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from rlctl.spec.layout import EVALUATIONS, Layout
from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.evaluation.cadence import SHORTEST_S, Cadence, CadenceSample
from rlctl_agents.manager.evaluation.films import Films
from rlctl_agents.manager.evaluation.matches import Quotas, RequestedEvaluation, Standstill
from rlctl_agents.manager.evaluation.selection import Selected, Selection, reached
from rlctl_agents.manager.events import Events, JsonLines
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.state_store import APART, Evaluation, StateStore
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.gauges import ENVIRONMENTS, PLAYS
from rlctl_agents.types.control import EvalResult, Film, Match, Mode, Quota, Report, to_plain
from rlctl_agents.types.experience import ModelRef

JOIN_S = 30.0
"""Seconds for which an evaluator may still be starting, after the run has done what was asked or has lost its last
evaluator; later, it has none. The modelpool that serves evaluators may be silent as long."""
REST_S = 15.0
"""Longest wait, in seconds, for the learner to rest and its last weights to reach the modelpool; then the modelpool's
newest weights are the last ones."""
MEASURE_S = 600.0
"""Longest wait, in seconds, for the last evaluation, after the run has done what was asked."""
OTHER_EVERY = 5
"""Evaluations after which the newest version is also evaluated in the other mode."""
LOADS = 3
"""Failed loads after which a model is not to be confirmed any more, until there is a better one."""
OTHER: dict[Mode, Mode] = {"greedy": "sample", "sample": "greedy"}
MEASURED = 16
"""Newest evaluations that are remembered by version and mode."""


class Evaluations:
    """The evaluations of a run.

    One mode counts: `evaluation.mode`, by which the goal, the best model and the cadence are determined. Now and then
    the same version is played in the other mode as well.

    A model that reaches the goal was selected for its mean among many, so it is evaluated again on fresh seeds, at once
    and while the run goes on; the fresh mean counts. The model is on the volume by then, so it cannot be lost.

    A run that stops by steps or time has not been evaluated at its end. `finish` makes it wait: the learner rests, its
    last model is published, one evaluator plays one whole quota with it, and its mean is the final return.

    Args:
        settings: current settings of the run.
        state: stores every finished evaluation in its progress.
        learners: know how many agent steps a model was learned from.
        events: get every evaluation, and why there is no last one.
        layout: folders of the run.
        clock: source of time.
        cpu: CPU seconds of the run so far.
        train_return: mean return of the newest training episodes; None: there are none yet.
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
        self._settings, self._state, progress = settings, state, state.progress
        self._learners, self._events, self._clock, self._train_return = learners, events, clock, train_return
        self.selection = Selection(layout.models, state, stands)
        self._cadence = Cadence(clock.monotonic, cpu, self._hopeful)
        self._quotas = Quotas(settings().seed, clock.monotonic, self._cadence, match=progress.match + APART)
        self._stored = JsonLines(layout.results / EVALUATIONS)
        self.films = Films(layout.episodes, stands)
        self._filmed = {one.version for one in self.films.episodes}  # also versions without a film
        self._count = 0  # evaluations in the mode that counts, without confirming ones
        self._ordered = 0  # evaluations that this manager has started by cadence
        self._other: ModelRef | None = None  # to be played in the other mode
        self._unloadable: ModelRef | None = None  # model that could not be loaded to be confirmed
        chosen = [one for found in self.selection.models.values() for one in (found.evaluation, found.other)]
        known = [one for one in (*chosen, progress.other, progress.evaluation) if one is not None]
        self._measured = deque([(one.ref, one.mode) for one in known], MEASURED)
        self._lived = clock.monotonic()  # when an evaluator was last alive, or first waited for
        self._held = self._lived  # when an evaluator could last get the last model, or played it
        self._finished: float | None = None  # when the wait for the last evaluation began
        self._last: ModelRef | None = None  # model of the last evaluation, once it is known
        self._second: tuple[Evaluation, EvalResult] | None = None  # the next best one, while the best is confirmed
        self._replaced: dict[ModelRef, Selected] = {}  # best models that were being confirmed when a better one came
        self._unread: tuple[Evaluation, EvalResult] | None = None  # to be the best, once the volume gives it
        self._refusal = ""  # why it did not
        self.awaits = False
        """True while the run must not end, because its last evaluation is missing."""
        self.not_evaluated: str | None = None
        """Why there is no evaluation of the last model, in words."""
        self.undrawn: list[tuple[int, dict[str, float] | None]] = []
        """New points of curves: steps, and an evaluation's figures by tag; None: a learner went back to these steps."""

    @property
    def rests(self) -> bool:
        """True if learners make no more updates, so that the model evaluated last is also saved last."""
        return self._finished is not None

    @property
    def text(self) -> str:
        """Progress of the last evaluation, in words."""
        if self._last is None:
            return "waiting for the last model"
        wanted = next(iter(self._wanted()), RequestedEvaluation(self._last, self._mode))
        return f"measuring version {wanted.ref.version}, {_how(wanted.mode, wanted.confirms)}"

    @property
    def goal(self) -> Evaluation | None:
        """Confirming evaluation of the model that has reached the goal, in the mode that counts."""
        return reached(self.selection.goal, self._mode)

    @property
    def standstill(self) -> Standstill | None:
        """Evaluators whose matches make no steps; None if all make steps."""
        return self._quotas.standstill

    @property
    def taken(self) -> CadenceSample | None:
        """Interval between the newest evaluations, and their share of the run's CPU."""
        return self._cadence.taken

    @property
    def failure(self) -> str:
        """Failure to store the newest evaluation, or to read or remove models, in words; "" without one."""
        return self._stored.failure or (self._refusal if self._unread else "") or self.selection.failure

    def match(self, report: Report, published: ModelRef | None, seats: int) -> Match | None:
        """Match that the reporting evaluator has to play; None: none now.

        Args:
            published: newest model of the modelpool that serves evaluators.
            seats: seats of the environment.
        """
        steps, plays = report.counters.get("agent_steps", 0.0), int(report.gauges.get(PLAYS, 0.0))
        self._quotas.hear(report.boot, report.model, steps, plays, int(report.gauges.get(ENVIRONMENTS, 1.0)))
        self._tell_unloadable()
        match = self._quotas.playing(report.boot)
        if match is None and plays:
            return None  # it has yet to leave a match that was taken from it, and may be within a reset
        for wanted in self._wanted() if match is None else ():
            # the modelpool may only have newer weights: the evaluator that has just played this version still has it
            if wanted.ref != self._other or report.model == wanted.ref:
                match = match or self._quotas.open(report.boot, wanted, seats=seats, quota=self._quota(wanted, seats))
        if match is None and not self.rests:
            settings = self._settings()
            quota = self._quota(RequestedEvaluation(ModelRef("", 0, 0), self._mode), seats)
            match = self._quotas.order(report.boot, published, seats=seats, every_s=every_s(settings), quota=quota)
            self._ordered += match is not None
        self._state.progress.match = self._quotas.match
        return match

    def believe(self, result: EvalResult) -> Evaluation:
        """Accept the result of a quota: store it, and select models by it.

        Raises:
            ValueError: the result does not count; the message says why.
        """
        # not when the match was ordered: the modelpool may have reported the version before its learner did
        steps = self._learners.steps_at(result.ref)
        done = self._quotas.finish(result, steps=steps, wall_s=self._state.wall_s, unix=self._clock.unix())
        if result.recording is not None:
            self._record(result.recording, done, result.match)
        if done.ref == self._last and not done.confirms and (done.ref, done.mode) in self._measured:
            return done  # the same games once more, for their film
        counts = done.mode == self._mode
        if counts:
            self._state.progress.measured(done)
        else:
            self._state.progress.other = done
        self._measured.append((done.ref, done.mode))
        self._stored.append({**to_plain(done), "returns": result.returns, "lengths": result.lengths})
        self._events.add(
            "evaluation", f"evaluation {in_words(done)}", mean=done.mean, steps=done.steps, version=done.ref.version,
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

    def _record(self, film: Film, done: Evaluation, match: int) -> None:
        self._filmed.add(done.ref.version)
        try:
            self._events.add("recorded", self.films.add(film, done, match))
        except ValueError as fault:
            text = f"no episode of version {done.ref.version} is recorded: {fault}"
            self._events.add("not_recorded", text, version=done.ref.version)

    def _select(self, done: Evaluation, result: EvalResult) -> None:
        """Choose the best model, and the one that has reached the goal."""
        goal, version, selection = self._settings().stop.eval_return, done.ref.version, self.selection
        before = selection.candidate(goal, self._mode)
        if done.confirms or done.mode != self._mode:
            selection.measured_again(done)
        elif done.seats == 1 and done.mean > self._better_than(done.mode):
            self._choose(done, result)
        elif before is not None and result.kept and (self._second is None or done.mean > self._second[0].mean):
            self._second = done, result
        replaced = self._replaced.pop(done.ref, None) if done.confirms and done.mode == self._mode else None
        if replaced is not None and goal is not None:
            before = replaced.evaluation
            if done.mean >= goal:
                self._reach(goal, replace(replaced, evaluation=done))
        if done.confirms and goal is not None and before is not None and before.ref == done.ref and done.mean < goal:
            text = (
                f"version {version} is not confirmed: mean {done.mean:.4g} < {goal:g} on fresh seeds, after "
                f"{before.mean:.4g}; the run goes on"
            )
            self._events.add("not_confirmed", text, version=version, mean=done.mean)
        self.settle()
        if done.confirms:
            if self._confirms is None:
                self._choose_second(goal)
            selection.tidy(self._playing)

    def _choose_second(self, goal: float | None) -> None:
        """Choose the next best model, if the goal is not reached and the best turned out to be worse."""
        second, self._second = self._second, None
        met = goal is not None and self.goal is not None and self.goal.mean >= goal
        if second is not None and not met and second[0].mean > self.selection.better_than(second[0].mode):
            self._choose(*second)

    def _better_than(self, mode: Mode) -> float:
        """Mean above which a model becomes the best one: that of the best, or just below the goal where the best has
        reached it and cannot be confirmed, as no evaluator could load it."""
        goal = self._settings().stop.eval_return
        if goal is not None and self._confirming is not None and self._confirms is None:
            return math.nextafter(goal, -math.inf)
        return self.selection.better_than(mode)

    def _choose(self, done: Evaluation, result: EvalResult) -> None:
        """Make a model the best one, if its evaluator has had it kept."""
        version, goal = done.ref.version, self._settings().stop.eval_return
        confirmed = self.selection.best if self._confirms is not None else None
        try:
            if not result.kept:
                raise ValueError(result.fault or "its evaluator did not bring it")
            self.selection.choose(done, result.kept, self._playing)
        except OSError as fault:
            if self._unread is None or done.mean > self._unread[0].mean:
                self._unread = done, result
            self._refusal = f"cannot read version {version}, which may be the best model: {fault.strerror}"
            return
        except ValueError as fault:
            text = f"version {version} is the best so far with {done.mean:.4g}, and is not kept: {fault}"
            self._events.add("not_kept", text, version=version)
            return
        if confirmed is not None and confirmed.evaluation.ref in self._quotas.models:
            self._replaced[confirmed.evaluation.ref] = confirmed
        text = f"version {version} is the best so far: mean {done.mean:.4g}"
        if self.selection.candidate(goal, self._mode) is not None:
            text += f" >= {goal:g}; it is evaluated again on fresh seeds"
        self._events.add("best", text, version=version, mean=done.mean)

    def settle(self) -> None:
        """Confirm the model that has reached the goal, if the best model's mean on fresh seeds reaches it."""
        goal = self._settings().stop.eval_return
        found = self.selection.candidate(goal, self._mode)
        if goal is not None and found is not None and found.confirms:
            assert self.selection.best is not None
            self._reach(goal, self.selection.best)

    def _reach(self, goal: float, confirmed: Selected) -> None:
        self.selection.reach(goal, confirmed)
        text = f"the goal {goal:g} is confirmed: {in_words(confirmed.evaluation)}"
        self._events.add("confirmed", text, version=confirmed.evaluation.ref.version)

    def store(self) -> None:
        """Retry what could not be read, stored or removed of selected models."""
        self.selection.store(self._playing)
        again, self._unread = self._unread, None
        if again is not None and again[0].mode == self._mode and again[0].mean > self._better_than(self._mode):
            self._choose(*again)

    @property
    def _playing(self) -> set[ModelRef]:
        """Models whose files are not to be removed, besides the selected ones."""
        return self._quotas.models | {one[0].ref for one in (self._second, self._unread) if one}

    @property
    def _mode(self) -> Mode:
        """Mode that counts."""
        return self._settings().evaluation.mode

    def _wanted(self) -> list[RequestedEvaluation]:
        """Evaluations to be played whatever the cadence, the most urgent first."""
        mode, confirming = self._mode, self._confirms
        found = [] if confirming is None else [confirming]
        if self._last is not None:
            both = [RequestedEvaluation(self._last, mode), RequestedEvaluation(self._last, OTHER[mode])]
            left = [one for one in both if (one.ref, one.mode) not in self._measured]
            unfilmed = self._settings().evaluation.video_every is not None and self._last.version not in self._filmed
            # a model may have been measured before it was known to be the last one
            found += left or ([both[0]] if unfilmed else [])
        elif self._other is not None and not self.rests:
            found.append(RequestedEvaluation(self._other, OTHER[mode]))
        return found

    @property
    def _confirming(self) -> RequestedEvaluation | None:
        """Evaluation on fresh seeds of the model that has reached the goal; None if it is done or there is none."""
        candidate = self.selection.candidate(self._settings().stop.eval_return, self._mode)
        return (
            None
            if candidate is None or candidate.confirms
            else RequestedEvaluation(candidate.ref, self._mode, confirms=True)
        )

    @property
    def _confirms(self) -> RequestedEvaluation | None:
        """The same, unless no evaluator could load the model."""
        wanted = self._confirming
        return None if wanted is None or self._quotas.not_loaded[wanted] >= LOADS else wanted

    def _tell_unloadable(self) -> None:
        """Report once that a model could not be confirmed, because no evaluator could load it."""
        wanted = self._confirming
        if wanted is None or self._quotas.not_loaded[wanted] < LOADS or self._unloadable == wanted.ref:
            return
        self._unloadable = wanted.ref
        text = f"version {wanted.ref.version} is not confirmed: no evaluator could load it; the run goes on"
        self._events.add("not_confirmed", text, version=wanted.ref.version)

    def _hopeful(self) -> bool:
        """True if the training return has reached the goal."""
        goal, found = self._settings().stop.eval_return, self._train_return()
        return goal is not None and found is not None and found >= goal

    def _quota(self, wanted: RequestedEvaluation, seats: int) -> Quota:
        chosen = seats == 1 and wanted.mode == self._mode and not wanted.confirms
        above = self._better_than(wanted.mode) if chosen else math.inf
        if chosen and self._confirms is not None:
            above = -math.inf  # the best one may turn out to have been lucky
        evaluation, every = self._settings().evaluation, self._settings().evaluation.video_every
        rare = wanted.confirms or wanted.ref == self._last
        record = every is not None and wanted.mode == self._mode and (rare or self._ordered % every == 0)
        return Quota(evaluation.episodes, wanted.mode, above, record)

    def void_from(self, steps: int) -> None:
        """Continue the curves from these steps: a learner went back to a generation."""
        self.undrawn.append((steps, None))

    def drop(self, boot: str) -> None:
        """Forget an evaluator that has gone."""
        self._quotas.drop(boot)

    def finish(self, last: ModelRef | None = None) -> None:
        """Have the last model evaluated in both modes before the run ends.

        Args:
            last: model that has reached the goal; None: the newest one, once the learner rests.
        """
        if self._finished is None:
            self._finished, self.awaits, self._last = self._clock.monotonic(), True, last
            self._lived = self._held = self._finished
            self._other = None
            if last is not None:
                self._quotas.only(self._wanted())

    def cancel(self) -> None:
        """Stop waiting for a last evaluation: more is asked of the run, and its last model is still to come."""
        self._finished, self._last, self.awaits, self.not_evaluated = None, None, False, None

    def turn(self, published: ModelRef | None, *, final: bool, evaluators: int, expected: int, served: bool) -> None:
        """Advance the last evaluation as far as possible.

        Args:
            published: newest model of the modelpool that serves evaluators.
            final: the learner will not make a newer one.
            evaluators: number of live evaluators.
            expected: number of evaluators in the spec.
            served: True if that modelpool lives; without it, no evaluator gets the last model.
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
        """End the run without its last evaluation, if the run still waits for it."""
        if self.awaits:
            self.awaits = False
            what = "the last model"
            if self._last is not None:
                wanted = next(iter(self._wanted()), RequestedEvaluation(self._last, self._mode))
                if not wanted.confirms and (wanted.ref, wanted.mode) in self._measured:
                    return  # it lacks its film only
                what += f", version {self._last.version},"
                if wanted != RequestedEvaluation(self._last, self._mode):
                    what = f"version {wanted.ref.version}, {_how(wanted.mode, wanted.confirms)},"
            self.not_evaluated = f"{what} was not evaluated: {why}"
            self._events.add("not_evaluated", self.not_evaluated)


def in_words(done: Evaluation) -> str:
    """Evaluation in words: `mean 487.3 over 100 episodes (greedy, version 96)`, or `(greedy on fresh seeds, ...)`."""
    how = _how(done.mode, done.confirms)
    return f"mean {done.mean:.4g} over {done.episodes} episodes ({how}, version {done.ref.version})"


def _how(mode: str, confirms: bool) -> str:
    return f"{mode} on fresh seeds" if confirms else mode


def every_s(settings: Spec) -> float | None:
    """Seconds between two starts; None: as CPU allows. Lock-step must not depend on how fast a machine is."""
    stated = settings.evaluation.every
    return SHORTEST_S if stated is None and settings.sync else stated
