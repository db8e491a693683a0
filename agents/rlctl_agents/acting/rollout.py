"""Rollout: policies step environments, rows become segments for learners. Independent of process and manager."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.acting.episode_figures import EpisodeFigures, InfoFigures
from rlctl_agents.acting.policy import Policy, Table
from rlctl_agents.envs.base import Env
from rlctl_agents.experience.segment_writer import FinishedBlock, SegmentWriter
from rlctl_agents.runtime.metrics import INFO, Metrics
from rlctl_agents.types.experience import Arrays, Decisions, ModelRef
from rlctl_agents.weights.client import Follower
from rlctl_agents.wire.experience import ExperienceSender

RECENT_EPISODES = 100
"""Number of newest training episodes over which the return is averaged."""
WAIT_S = 0.05
"""Longest wait for credit between two checks of the stop flag, in seconds."""


@dataclass
class SeatedPolicy:
    """A policy with its slots, the source of its weights and the destination of its rows."""

    player: Policy
    follower: Follower | None  # None: its weights never change
    stream: NDArray[np.int64]  # [slots]
    writer: SegmentWriter | None = None  # None: no learner learns from this player
    sender: ExperienceSender | None = None
    segments: int = 0  # finished since the present lineage began
    lag: int = 1  # versions, in lock-step
    base: int = 0  # first version of the present lineage that was used

    @property
    def ref(self) -> ModelRef:
        """Reference of the weights it acts with; every player with a writer has one."""
        assert self.follower is not None
        assert self.follower.ref is not None
        return self.follower.ref


class LockStepBroken(Exception):
    """Lock-step with a seat that did not act in a step."""


class Rollout:
    """One vector of environments and the players that act in it.

    Weights change between segments only, as far as segments of all slots end together; where seats act in turn, they
    change when any segment has ended, and each row records its version.

    Args:
        env: not reset yet.
        seeds: one per environment.
        table: the player of each slot.
        seated: the players in the table's order, their weights loaded.
        metrics: receives env_steps, frames, agent_steps, episodes, wait_*_seconds, train_return and info.*.
        keep_going: called before every step and while waiting, by the thread that steps; False ends a wait.
        lock_step: the actions of segment k are chosen with exactly version base + max(0, k - lag).
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        env: Env,
        seeds: Sequence[int],
        table: Table,
        seated: Sequence[SeatedPolicy],
        *,
        metrics: Metrics,
        keep_going: Callable[[], bool],
        lock_step: bool = False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._env = env
        self._seeds = list(seeds)
        self._table = table
        self._seated = list(seated)
        self._metrics = metrics
        self._keep_going = keep_going
        self._lock_step = lock_step
        self._sleep = sleep
        self._seats = env.spaces.seats
        self._frame_skip = env.frame_skip
        self._decisions: Decisions | None = None
        self._return = np.zeros(env.envs * self._seats)
        learning = [self._table.slots[n] for n, one in enumerate(self._seated) if one.writer is not None]
        self._watched = np.zeros(env.envs * self._seats, np.bool_)  # slots with returns that are reported
        for slots in learning:
            self._watched[slots] = True
        self.figures = EpisodeFigures(env.spaces.action, self._watched)
        """Statistics of the episodes that are reported."""
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._info = InfoFigures(RECENT_EPISODES)
        for one in self._seated:
            if one.follower is not None and one.follower.ref is not None:
                one.base = one.follower.ref.version

    def step(self) -> None:
        """Act once in every slot that waits for an action.

        Raises:
            EnvError: raised by the environment.
            LockStepBroken: lock-step, and a slot did not act.
        """
        self._keep_going()
        decisions = self._decisions
        if decisions is None:
            decisions = self._env.reset(self._seeds)
        self._account(decisions)
        started, waited = time.perf_counter(), 0.0
        parts = []
        for number, rows, part in self._table.split(decisions):
            action, lost = self._act(self._seated[number], part)
            waited += lost
            parts.append((rows, action))
        action = self._table.join(parts, decisions.slot.size)
        acted = time.perf_counter()
        self.figures.acted(decisions.slot, action)
        self._decisions = self._env.step(decisions.slot, action)
        self._metrics.add("inference_seconds", acted - started - waited)
        self._metrics.add("env_seconds", time.perf_counter() - acted)

    def _act(self, one: SeatedPolicy, decisions: Decisions) -> tuple[Arrays, float]:
        """Actions of one player, and the seconds that it waited before choosing them."""
        waited = 0.0
        if one.writer is not None:
            state = one.player.state(decisions.slot)
            block = one.writer.observe(decisions, state)
            if self._lock_step and not one.writer.together:
                raise LockStepBroken("sync: true needs an environment whose seats all act in every step")
            if block is not None:
                waited = self._finish(one, block)
        chosen = one.player.act(decisions)
        if one.writer is not None:
            one.writer.record(chosen.action | chosen.record, one.ref.version)
        if one.sender is not None:
            one.sender.poll(0.0)
        return dict(chosen.action), waited

    def _finish(self, one: SeatedPolicy, block: FinishedBlock) -> float:
        """Send a finished block, wait for credit for the next one, and refresh the weights.

        Returns:
            Seconds of waiting for credit and weights.
        """
        assert one.sender is not None
        model, sender = one.ref, one.sender
        waited_credit = self._until(lambda: self._offer(one, block, model), sender)
        one.segments += 1
        waited_model = self._refresh(one) if self._lock_step else 0.0
        waited_credit += self._until(lambda: sender.reserve(block.version.size), sender)
        for other in self._seated:
            follows = other.follower is not None
            if follows and (other.writer is None or (other is one and not self._lock_step)):
                waited_model += self._refresh(other)
        self._metrics.add("wait_credit_seconds", waited_credit)
        self._metrics.add("wait_model_seconds", waited_model)
        return waited_credit + waited_model

    def _offer(self, one: SeatedPolicy, block: FinishedBlock, model: ModelRef) -> bool:
        assert one.sender is not None
        return one.sender.offer(
            model=model,
            stream=one.stream[block.slot].tolist(),
            row0=block.row0.tolist(),
            version=block.version,
            fields=block.fields,
        )

    def _until(self, condition: Callable[[], bool], sender: ExperienceSender) -> float:
        if condition():
            return 0.0
        started = time.perf_counter()
        while self._keep_going():
            sender.poll(WAIT_S)
            if condition():
                break
        return time.perf_counter() - started

    def _waiting(self, one: SeatedPolicy) -> bool:
        """Poll the sender while waiting for weights: a receiver that recalls credit needs a reply."""
        if one.sender is not None:
            one.sender.poll(0.0)
        return self._keep_going()

    def _refresh(self, one: SeatedPolicy) -> float:
        """Load the weights for the next segment, and return the seconds that it took."""
        started = time.perf_counter()
        assert one.follower is not None
        before = one.ref
        if self._lock_step:
            one.follower.wait_for(one.base + max(0, one.segments - one.lag), lambda: self._waiting(one), self._sleep)
        else:
            one.follower.refresh()
            if one.sender is not None and before.version < one.sender.least_version:
                one.follower.wait_for_least(one.sender.least_version, lambda: self._waiting(one), self._sleep)
        after = one.ref
        if after.lineage != before.lineage:
            one.segments, one.base = 0, after.version
            if one.writer is not None:  # no segment holds rows of two lineages
                one.writer.restart(one.player.state(one.writer.observed))
        return time.perf_counter() - started

    def _account(self, decisions: Decisions) -> None:
        """Count steps, and the returns of episodes as they end."""
        slot = decisions.slot
        if slot.size == self._return.size:
            self._return += decisions.reward
        else:
            self._return[slot] += decisions.reward
        ended = decisions.terminated | decisions.truncated
        acting = slot.size
        if ended.any():
            acting -= int(np.count_nonzero(ended))
            over = slot[ended if decisions.life is None else ended & ~decisions.life]
            watched = over[self._watched[over]]
            self._recent.extend(self._return[watched].tolist())
            self.figures.ended(over, self._return[over])
            self._return[over] = 0.0
            self._metrics.add("episodes", np.unique(over // self._seats).size)
            if self._recent:
                self._metrics.set("train_return", sum(self._recent) / len(self._recent))
            if decisions.info:
                self._account_info(decisions.info)
        stepped = acting if self._seats == 1 else np.unique(slot[~ended] // self._seats).size
        self._metrics.add("agent_steps", acting)
        self._metrics.add("env_steps", stepped)
        self._metrics.add("frames", stepped * self._frame_skip)

    def _account_info(self, info: Mapping[int, Mapping[str, float]]) -> None:
        for slot, numbers in info.items():
            if self._watched[slot]:
                self._info.ended(numbers)
        for name, mean in self._info.means().items():
            self._metrics.set(INFO + name, mean)
