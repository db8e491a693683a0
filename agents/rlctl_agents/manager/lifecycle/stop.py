"""Stop: the state machine by which a run, or only its manager, ends.

    running ──stop condition, or on request──> saving ──> telling ──> over     the run is finished
       │  ^                                      │
       │  └── more is asked, weights are lost ───┘
       └──asked to leave──> saving ──> over                                    another manager may go on

While it saves, a run that stops by steps or time has its last model evaluated first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from rlctl.spec.schema import Stop
from rlctl_agents.manager.checkpoints.schedule import Checkpoints
from rlctl_agents.manager.evaluation.evaluations import Evaluations
from rlctl_agents.manager.events import Events
from rlctl_agents.manager.membership.learner_progress import Learners
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.membership.registry import Members
from rlctl_agents.manager.state_store import Evaluation, StateStore
from rlctl_agents.manager.timing import REPORT_EVERY_S, Clock
from rlctl_agents.runtime.process import UserFault

SAVE_S = {"finish": 60.0, "leave": 5.0}
"""Longest wait, in seconds, for the last generation, after the last evaluation: a learner that was killed meanwhile
comes back within that, and reports its steps. A manager that was asked to leave has ten seconds in all."""
LEARNER_S = 600.0
"""Seconds after stop.wall_time for which a learner that has lost its weights may come back."""
TELL_S = 8.0
"""Longest wait, in seconds, for all processes to hear of it and exit; a learner saves once more when it exits."""

StopPhase = Literal["running", "saving", "telling", "over"]
How = Literal["finish", "leave"]


class TooLate(ValueError):
    """The run is ending, and the request comes too late."""


class NothingLearned(UserFault):
    """`stop.wall_time` is over, and nothing was ever learned: the run has failed."""


class StopReached(NamedTuple):
    """Stop condition that holds."""

    condition: Literal["eval_return", "agent_steps", "wall_time"]
    why: str  # in words


def met(stop: Stop, *, goal: Evaluation | None, steps: int, wall_s: float, learned: bool) -> StopReached | None:
    """Stop condition by which the run has succeeded; None: none holds yet.

    Args:
        goal: confirming evaluation of the model that reached the goal: the only measure of how good a policy is.
        steps: agent steps that the weights were learned from.
        wall_s: wall time in seconds, over all ups.
        learned: something was ever learned; time alone is no success.
    """
    if stop.eval_return is not None and goal is not None and goal.mean >= stop.eval_return:
        text = (
            f"evaluation mean {goal.mean:.4g} >= {stop.eval_return:g} over {goal.episodes} episodes on fresh seeds "
            f"({goal.mode}, version {goal.ref.version})"
        )
        return StopReached("eval_return", text)
    if stop.agent_steps is not None and steps >= stop.agent_steps:
        return StopReached("agent_steps", f"{steps} agent steps >= {stop.agent_steps}")
    if stop.wall_time is not None and wall_s >= stop.wall_time and learned:
        return StopReached("wall_time", f"{wall_s:.0f} s >= {stop.wall_time:g} s")
    return None


def require_measurable(stop: Stop, seats: int) -> None:
    """Check that an evaluation can measure whether `stop.eval_return` is reached.

    Args:
        seats: seats of the environment.

    Raises:
        ValueError: it cannot; the message says what to do instead.
    """
    if stop.eval_return is not None and seats > 1:
        raise ValueError(
            f"stop.eval_return cannot be judged: the environment has {seats} seats, an evaluation has the same model "
            "on all of them and gives the return of one, which in a game that one wins and another loses is about 0 "
            "however good the model is; remove it and stop by stop.agent_steps or stop.wall_time"
        )


def in_vain(stop: Stop, *, wall_s: float, learned: bool, joined: Collection[str]) -> str | None:
    """Reason, in words, why the run has failed; None: it has not.

    Args:
        joined: roles of which a process has joined.
    """
    if stop.wall_time is None or wall_s < stop.wall_time or learned:
        return None
    absent = [f"no {role}" for role in ("modelpool", "learner", "actor") if role not in joined]
    why = f": {', '.join(absent)} had joined" if absent else ""
    return f"stop.wall_time of {stop.wall_time:g} s is over, and nothing was ever learned from{why}"


class RunStop:
    """Stop of a run, or of its manager only. Steps and evaluations count only as long as the weights behind them exist,
    and the run ends with these weights saved.

    finish: the run is done, all roles end. leave: only the manager ends; another one may go on.

    Args:
        state: stores why the run is finished.
        events: get every decision.
    """

    def __init__(
        self,
        state: StateStore,
        members: Members,
        learners: Learners,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        events: Events,
        clock: Clock,
    ) -> None:
        self.phase: StopPhase = "running"
        self.how: How = "leave"
        self._since = 0.0  # begin of the phase; while it saves, no earlier than the end of the last evaluation
        self._state, self._members, self._learners = state, members, learners
        self._checkpoints, self._evaluations, self._events, self._clock = checkpoints, evaluations, events, clock
        self._proof: StopReached | None = None  # why the run ends; None: on request
        self._claimed: dict[str, int] = {}  # policy -> steps, when the stop began
        self._told: set[str] = set()  # boots that were told to stop

    @property
    def tells(self) -> bool:
        """True while processes that report are told to stop."""
        return self.phase == "telling"

    @property
    def unsaved(self) -> str:
        """Last models that no generation holds, in words; "" when all are saved."""
        texts = []
        for policy in self._unsaved():
            newest = next(iter(self._learners.usable(policy)), None)
            which = f" of {policy}" if len(self._learners.policies) > 1 else ""
            saved = "there is no generation"
            if newest is not None:
                saved = f"newest generation {newest.number} at {newest.steps} steps"
            texts.append(f"the last model{which}, at {self._learners.steps(policy)} steps, was not saved: {saved}")
        return "; ".join(texts)

    def stop_steps(self, holder: Holder, stop: Stop) -> int:
        """Agent steps after which a learner makes no more updates; 0: no limit. `stop` limits the first policy only."""
        if holder.role != "learner":
            return 0
        if self._evaluations.rests:
            return 1  # it has learned from more than that
        first = self._learners.policy_of(holder.index) == self._learners.policies[0]
        return (stop.agent_steps or 0) if first else 0

    def tell(self, boot: str) -> bool:
        """True if a process that reports is told to stop."""
        if self.tells:
            self._told.add(boot)
        return self.tells

    def finish(self, why: str, found: StopReached | None = None) -> None:
        """End every role in good order: the run has met a stop condition, or was asked to stop.

        Args:
            found: condition that holds, after which the last model is evaluated first; None: stopped on request,
                without that evaluation.

        Raises:
            TooLate: this manager is leaving.
        """
        if self.phase != "running" and self.how == "leave":
            raise TooLate(
                "this manager is leaving, and the run is not finished by that: give the order to its successor"
            )
        self._proof = found
        if found is None:
            self._state.progress.requested = why  # its successor obeys, should this manager die meanwhile
            self._state.save_progress()
        if self._state.progress.met is None:
            self._state.progress.met = why
            self._events.add("stop", f"the run is finished: {why}")
            if found is not None:
                goal = self._evaluations.goal
                self._evaluations.finish(goal.ref if goal is not None and found.condition == "eval_return" else None)
        else:
            self._evaluations.give_up(why)
        if self.phase == "running":
            self._begin("finish")

    def leave(self) -> None:
        """End this manager only; that does not finish the run, unless all processes were told already that it is."""
        if self.phase == "running":
            self._state.progress.requested = ""  # of a manager before: the next one goes on
            self._begin("leave")
        elif self.how == "finish":
            if self.phase == "saving":
                self._forget()
                self._evaluations.cancel()  # another manager makes up for it
                self._events.add("left", "the run is not finished: the manager was asked to leave before that")
                self.how = "leave"
            self.phase = "over"

    def goes_on(self, before: Stop, stop: Stop) -> bool:
        """True if other stop conditions ask for more of a run that is finishing.

        Raises:
            TooLate: they do, and processes were told to stop already, or the run was stopped on request.
        """
        ending = self.how == "finish" or bool(self._state.progress.requested)
        more = stop != before and ending and self._met(stop) is None
        if more and not (self._proof is not None and self.phase == "saving"):
            raise TooLate("the run is ending; run the same command again when it has ended")
        return more

    def go_on(self, why: str) -> None:
        """Let the run continue after all, which is possible as long as no process was told to stop."""
        assert self.phase in ("running", "saving"), "a process that was told to stop ends"
        self._forget()
        self._evaluations.cancel()
        self.phase, self.how = "running", "leave"
        self._state.save_progress()
        self._events.add("goes_on", f"the run goes on: {why}")

    def judge(self, stop: Stop, *, seats: int, joined: Collection[str]) -> None:
        """Finish the run if a stop condition holds.

        Args:
            seats: seats of the environment.
            joined: roles of which a process has joined.

        Raises:
            NothingLearned: the time is over, and nothing was ever learned, or it is lost.
            UserFault: the stop condition cannot be measured.
        """
        self._evaluations.settle()
        try:
            require_measurable(stop, seats)
        except ValueError as error:
            self._fail(str(error))
            raise UserFault(str(error)) from error
        if requested := self._state.progress.requested:  # of a manager that was killed before it had done so
            if self._learners_known():
                self.finish(requested)
            return
        found = self._met(stop)
        if found is not None:
            self.finish(found.why, found)
            return
        wall_s, learned = self._state.wall_s, self._state.progress.started
        fault = in_vain(stop, wall_s=wall_s, learned=learned, joined=joined)
        if learned and self._steps == 0 and not self._learning() and wall_s >= (stop.wall_time or math.inf) + LEARNER_S:
            fault = f"stop.wall_time of {stop.wall_time:g} s is over, and what was learned is lost with its learner"
        if fault is not None:
            self._state.restart_wall_time()  # for the next up
            self._fail(fault)
            raise NothingLearned(fault)

    def require_weights(self, stop: Stop) -> None:
        """Protect the weights for which the run ends: if a learner was killed meanwhile and resumed from an older
        generation, it learns the rest again. Missing generations are ordered.
        """
        if self.phase != "saving" or self.how != "finish":
            return
        if self._lost(stop):
            self.go_on(f"{self._state.progress.met}, but those weights are lost; {self._steps} steps are left")
            return
        learning = self._learning()
        for policy in self._unsaved():
            if policy in learning and not self._checkpoints.wanted(policy):
                self._checkpoints.order(policy)
                self._state.save_progress()

    def turn(self, speaking: Sequence[Holder]) -> None:
        """Advance as far as possible.

        Args:
            speaking: live processes that have reported lately.
        """
        now = self._clock.monotonic()
        if self._evaluations.awaits:
            self._since = now  # the last generation is saved meanwhile
        elif self.phase == "saving":
            saving = any(map(self._checkpoints.wanted, self._policies_of(speaking)))
            saved = not saving and (self.how == "leave" or not self._unsaved())
            if saved or now - self._since >= SAVE_S[self.how]:
                self.phase, self._since = ("telling" if self.how == "finish" else "over"), now
        elif self.phase == "telling":
            gone = all(one.boot in self._told and one.leaving and now - one.heard >= REPORT_EVERY_S for one in speaking)
            if gone or now - self._since >= TELL_S:
                self.phase = "over"

    @property
    def _steps(self) -> int:
        """Agent steps of the weights that surely exist."""
        return self._learners.sure_steps(self._learners.policies[0])

    def _met(self, stop: Stop) -> StopReached | None:
        steps, goal = self._steps, self._evaluations.goal
        learned = self._state.progress.started and steps > 0
        return met(stop, goal=goal, steps=steps, wall_s=self._state.wall_s, learned=learned)

    def _lost(self, stop: Stop) -> bool:
        """True if the weights for which the run ends are lost: their learner was killed and resumed without them. A
        model that has reached the goal is stored.
        """
        if self._proof is None or self._proof.condition == "eval_return":
            return False
        return self._steps == 0 if self._proof.condition == "wall_time" else self._steps < (stop.agent_steps or 0)

    def _unsaved(self) -> list[str]:
        """Policies whose newest usable generation holds fewer steps than the run claims to have learned. A model that
        reached the goal is stored, and learners that do not rest yet go on: in both cases only the steps that were
        learned before the stop began are claimed.
        """
        found = []
        reached = self._proof is not None and self._proof.condition == "eval_return"
        for policy in self._learners.policies:
            claimed = steps = self._learners.sure_steps(policy)
            if reached or not self._evaluations.rests:
                claimed = min(steps, self._claimed.get(policy, steps))
            if claimed > self._learners.saved_steps(policy):
                found.append(policy)
        return found

    def _forget(self) -> None:
        """Forget why the run was about to end."""
        self._state.progress.met, self._state.progress.requested, self._proof = None, "", None

    def _begin(self, how: How) -> None:
        """Order the last generations, and wait for them."""
        self._claimed = {policy: self._learners.sure_steps(policy) for policy in self._learners.policies}
        for policy in self._learning():
            if self._checkpoints.worth_saving(policy, self._learners.steps(policy), self._learners.updates(policy)):
                self._checkpoints.order(policy)
        self._state.save_progress()
        self.phase, self.how, self._since = "saving", how, self._clock.monotonic()

    def _learners_known(self) -> bool:
        """True once the learner of every policy has reported to this manager, or has had the time to."""
        late = self._clock.monotonic() - self._state.began >= SAVE_S["finish"]
        return late or all(map(self._learners.reported, self._learners.policies))

    def _learning(self) -> set[str]:
        """Policies that a live learner trains."""
        return self._policies_of(self._members.leases.live("learner"))

    def _policies_of(self, holders: Sequence[Holder]) -> set[str]:
        return {self._learners.policy_of(one.index) for one in holders if one.role == "learner"}

    def _fail(self, why: str) -> None:
        self._events.add("failed", why)
        self._state.progress.requested = ""  # for the next up
        self._state.save_progress()
        self._state.save_members(self._members.store())
