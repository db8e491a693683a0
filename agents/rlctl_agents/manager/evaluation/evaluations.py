"""Evaluations: ordered, believed, stored; and once more before a run ends that stops by steps or time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlctl.spec.schema import Spec
from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.evaluation.cadence import SHORTEST_S, Cadence, Taken
from rlctl_agents.manager.evaluation.matches import Quotas
from rlctl_agents.manager.events import Events, JsonLines
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.state_store import Evaluation, Progress
from rlctl_agents.manager.timing import Clock
from rlctl_agents.runtime.process import PLAYS
from rlctl_agents.types.control import EvalResult, Match, Report, to_plain
from rlctl_agents.types.experience import ModelRef

JOIN_S = 30.0
"""So long after a run has done what was asked, or has lost its last evaluator since, one may still be starting; later,
it has none."""
REST_S = 15.0
"""Longest wait for the learner to rest and for its last weights to reach the modelpool; then what it holds is it."""
MEASURE_S = 600.0
"""Longest wait for the last evaluation, from the moment at which the run has done what was asked."""
MATCHES_APART = 100
"""Numbers left out when a manager starts: the last one may have given away some that were not stored."""


class Evaluations:
    """The evaluations of a run.

    A run that stops by steps or time has not been measured at its end. `finish` makes it wait: the learner rests, its
    last model is published, one evaluator plays one whole quota with it, and that is the return that stays.

    Args:
        seed: of the run.
        progress: gets every whole evaluation.
        learners: know what a model was learned from.
        events: hear of every evaluation, and why there is no last one.
        results: folder of evaluations.jsonl.
        clock: where time comes from.
        cpu: of the run by now.
    """

    def __init__(
        self,
        seed: int,
        progress: Progress,
        learners: Learners,
        events: Events,
        results: Path,
        clock: Clock,
        cpu: Callable[[], Cpu],
    ) -> None:
        self._progress, self._learners, self._events, self._clock = progress, learners, events, clock
        self._cadence = Cadence(clock.monotonic, cpu)
        self._quotas = Quotas(seed, clock.monotonic, self._cadence, match=progress.match + MATCHES_APART)
        self._stored = JsonLines(results / "evaluations.jsonl")
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
        return f"measuring the last model, version {self._last.version}"

    @property
    def taken(self) -> Taken | None:
        """Time from one evaluation to the next, and their share of the run's CPU."""
        return self._cadence.taken

    @property
    def failure(self) -> str:
        """Failure to write the newest evaluation to its file, in words; "" without one."""
        return self._stored.failure

    def match(self, report: Report, published: ModelRef | None, seats: int, settings: Spec) -> Match | None:
        """Match that the evaluator that reports has to play.

        Args:
            published: newest model that the modelpool holds of which evaluators get theirs.
            seats: of the environment.
            settings: what its section `evaluation` asks for.
        """
        steps, plays = report.counters.get("agent_steps", 0.0), int(report.gauges.get(PLAYS, 0.0))
        self._quotas.hear(report.boot, report.model, steps, plays)
        model, wanted = (self._last if self.rests else published), settings.evaluation
        if self.rests:
            self._cadence.again()
        match = self._quotas.order(
            report.boot, model, seats=seats, episodes=wanted.episodes,
            every_s=every_s(settings), mode=wanted.mode,
        )  # fmt: skip
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
        self._progress.measured(done)
        self._stored.append({**to_plain(done), "returns": result.returns, "lengths": result.lengths})
        self._events.add(
            "evaluation",
            f"evaluation mean {done.mean:.4g} over {done.episodes} episodes ({done.mode}, version {done.ref.version})",
            mean=done.mean, steps=done.steps, version=done.ref.version, info=done.info,
        )  # fmt: skip
        told = {f"info/{name}/evaluation": mean for name, mean in done.info.items()}
        self.undrawn.append((done.steps, {"return/evaluation": done.mean} | told))
        return done

    def void_from(self, steps: int) -> None:
        """Continue the curve from there: a learner went back to a generation."""
        self.undrawn.append((steps, None))

    def drop(self, boot: str) -> None:
        """Forget an evaluator that has gone."""
        self._quotas.drop(boot)

    def finish(self) -> None:
        """Have the last model of a run that ends evaluated before."""
        if self._finished is None:
            self._finished, self.awaits = self._clock.monotonic(), True
            self._lived = self._held = self._finished

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
            self._quotas.only(published)
        newest = self._progress.evaluation
        if self._last is not None and newest is not None and self._last <= newest.ref:
            self.awaits = False
        elif evaluators == 0 and (expected == 0 or now - self._lived >= JOIN_S):
            self.give_up("no evaluator lives")
        elif now - self._held >= JOIN_S:
            self.give_up(
                f"modelpool/0 has not been heard for {JOIN_S:.0f} s, and evaluators get models from nobody else"
            )
        elif waited_s >= MEASURE_S:
            self.give_up(f"no evaluator was done within {MEASURE_S:.0f} s; fewer evaluation.episodes take less")

    def give_up(self, why: str) -> None:
        """End the run without its last evaluation, if that is still waited for."""
        if self.awaits:
            self.awaits = False
            what = "the last model" if self._last is None else f"the last model, version {self._last.version},"
            self.not_evaluated = f"{what} was not evaluated: {why}"
            self._events.add("not_evaluated", self.not_evaluated)


def every_s(settings: Spec) -> float | None:
    """Between the starts of two evaluations; None: as CPU allows. Lock-step never depends on how fast a machine is."""
    stated = settings.evaluation.every
    return SHORTEST_S if stated is None and settings.sync else stated
