"""How a run comes to its end, and how it goes on after all: its goal, its last evaluation, its last generation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from rlctl.spec.schema import Stop
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle.ending import Ending
from rlctl_agents.manager.lifecycle.goal import Goal
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.state_store import Progress


class Closing:
    """The end of a run, as one life of its manager decides it.

    Args:
        policies: of the run; rows of the first one count for `stop`.
        progress: gets why the run is finished.
        events: hear of every decision.
        learning: policies that a live learner trains.
        store: keeps the progress for the next manager.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        policies: Sequence[str],
        *,
        progress: Progress,
        learners: Learners,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        events: Events,
        learning: Callable[[], Collection[str]],
        store: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self.ending = Ending()
        self._policies, self._progress, self._learners = policies, progress, learners
        self._checkpoints, self._evaluations, self._events = checkpoints, evaluations, events
        self._learning, self._store, self._clock = learning, store, clock
        self._goal = Goal(policies, progress, learners)

    @property
    def unsaved(self) -> str:
        """Which last models no generation holds, in words; "" when all are saved."""
        return self._goal.in_words(self._goal.unsaved(rests=self._evaluations.rests))

    def finish(self, why: str, *, measure: bool = False) -> None:
        """The run has done what was asked: end every role in good order.

        Args:
            measure: evaluate the last model before. Told to finish once more, the run does not wait for that.
        """
        self._goal.forget()
        if self._progress.met is None:
            self._progress.met = why
            self._events.add("stop", f"the run is finished: {why}")
            if measure:
                self._evaluations.finish()
        else:
            self._evaluations.give_up(why)
        self._begin("finish")

    def leave(self) -> None:
        """End this manager only; the run is not finished by it, unless everybody was told already that it is."""
        if self.ending.how == "finish" and self.ending.step == "saving":
            self._progress.met = None
            self._goal.forget()
            self._evaluations.cancel()  # another manager makes up for it
            self._events.add("left", "the run is not finished: the manager was asked to leave before that")
        self._begin("leave")

    def goes_on(self, before: Stop, stop: Stop, wall_s: float) -> bool:
        """Whether other conditions ask for more of a run that ends because it has done what was asked.

        Raises:
            ValueError: they do, and it is too late for that.
        """
        other = stop != before
        more = other and self.ending.how == "finish" and self._goal.met(stop, wall_s) is None
        if more and not (self._goal.judged and self.ending.step == "saving"):
            raise ValueError("the run is ending; run the same command again when it has ended")
        return more

    def go_on(self, why: str) -> None:
        """The run does not end after all."""
        self._progress.met = None
        self._goal.forget()
        self._evaluations.cancel()
        self.ending.cancel()
        self._store()
        self._events.add("goes_on", f"the run goes on: {why}")

    def judge(self, stop: Stop, wall_s: float) -> bool:
        """Finish the run if a stop condition holds; whether one does."""
        met = self._goal.met(stop, wall_s)
        if met is None:
            return False
        self.finish(met.why, measure=met.condition != "eval_return")
        self._goal.reached(met)
        return True

    def require_weights(self, stop: Stop) -> None:
        """A run that ends has the weights that it ends for: a learner that was killed meanwhile, and came back with an
        older generation, learns what was lost again. What is not saved is ordered.
        """
        if self.ending.step != "saving" or self.ending.how != "finish":
            return
        if self._goal.lost(stop):
            self.go_on(f"{self._progress.met}, but those weights are lost; {self._goal.rows} rows are left")
            return
        learning = self._learning()
        for policy in self._goal.unsaved(rests=self._evaluations.rests):
            if policy in learning and not self._checkpoints.wanted(policy):
                self._checkpoints.order(policy)
                self._store()

    def turn(self, *, saving: bool, everybody_gone: bool) -> None:
        """Go on as far as possible.

        Args:
            saving: a learner that speaks may still save what is wanted of it.
            everybody_gone: all who live have heard that they must stop, and gone silent.
        """
        now = self._clock()
        if self._evaluations.awaits:
            self.ending.hold(now)  # the last generation is saved meanwhile
            return
        saved = not saving and (self.ending.how == "leave" or not self.unsaved)
        self.ending.turn(now, saved=saved, everybody_gone=everybody_gone)

    def _begin(self, how: Literal["finish", "leave"]) -> None:
        if self.ending.step == "not":
            self._goal.claim()
            for policy in self._learning():
                if self._checkpoints.worth_saving(policy, self._learners.rows(policy)):
                    self._checkpoints.order(policy)
            self._store()
        self.ending.begin(how, self._clock())
