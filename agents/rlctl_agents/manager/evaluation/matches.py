"""Matches: in training, every seat with the newest weights; in evaluation, one quota per evaluator."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from rlctl_agents.manager.evaluation.cadence import Cadence
from rlctl_agents.manager.state_store import TRAINING, Evaluation
from rlctl_agents.runtime.health import resets_s
from rlctl_agents.types.control import EvalResult, Match, Mode, Quota
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.figures import info_numbers

LARGEST_RETURN = 1e150
"""Largest absolute return that is accepted; its square is finite."""
NEWEST = -1
"""Version and lineage of a ModelRef that means the newest model of its policy, followed as it changes."""


def training(policy: str, seats: int, seed: int) -> Match:
    """Training match: self-play with the newest weights, learning from every seat."""
    newest = ModelRef(policy, NEWEST, NEWEST)
    return Match(id=TRAINING, seats=dict.fromkeys(range(seats), newest), learn=tuple(range(seats)), seed=seed)


LOAD_S = 5.0
"""Seconds after which a match is taken from an evaluator that lacks its weights, and does not report that it is at this
match."""
PULL_S = 120.0
"""The same while it reports that it is at this match: large weights take their time."""
STUCK_S = 30.0
"""Seconds without a step after which a match is taken from an evaluator that has its weights."""
PLAY_S = 600.0
"""The same while it reports that it plays this match: resets of a slow simulator, or one step of it, may take minutes.
That is for one environment; `resets_s` is added for the others."""


class RequestedEvaluation(NamedTuple):
    """Requested evaluation of one version in one mode."""

    ref: ModelRef
    mode: Mode
    confirms: bool = False  # on other seeds than the evaluation that chose the model


class Standstill(NamedTuple):
    """Evaluators that play their matches and make no step."""

    envs: int  # environments of such an evaluator
    given_up: int = 0  # matches given up for that reason since the newest finished evaluation
    still_s: float = 0.0  # seconds without a step in a match that is still open; 0: less than PLAY_S

    @property
    def limit_s(self) -> float:
        """Time without a step after which a match is given up."""
        return PLAY_S + resets_s(self.envs)


class _Open(msgspec.Struct):
    match: Match
    wanted: RequestedEvaluation
    loaded: bool
    steps: float  # total of the evaluator when it last made progress
    moved: float  # time of that
    envs: int = 1  # environments of the evaluator


class Quotas:
    """Open evaluation matches: each evaluator has at most one, and no evaluation is played twice at a time.

    Args:
        seed: seed of the run.
        clock: monotonic seconds.
        cadence: decides when another evaluation may start.
        match: id of the newest match of the run so far.
    """

    def __init__(self, seed: int, clock: Callable[[], float], cadence: Cadence, *, match: int = TRAINING) -> None:
        self._seed = seed
        self._clock, self._cadence = clock, cadence
        self.match = max(match, TRAINING)
        self.newest: ModelRef | None = None
        """Newest model that is being evaluated, or was."""
        self._done: ModelRef | None = None
        self._open: dict[str, _Open] = {}  # boot of the evaluator -> what it plays
        self.not_loaded = Counter[RequestedEvaluation]()
        """Failed loads of each evaluation's model."""
        self._given_up, self._given_up_envs = 0, 1  # matches given up without a step, and environments of the last

    @property
    def plays(self) -> bool:
        """True if an evaluator has the weights of its match."""
        return any(one.loaded for one in self._open.values())

    @property
    def standstill(self) -> Standstill | None:
        """Evaluators that make no steps; None: all make steps, or did less than PLAY_S ago."""
        now = self._clock()
        still = [(now - one.moved, one.envs) for one in self._open.values() if one.loaded]
        still_s, envs = max(still, default=(0.0, 1))
        if still_s >= PLAY_S:
            return Standstill(envs, self._given_up, still_s)
        return Standstill(self._given_up_envs, self._given_up) if self._given_up else None

    def hear(self, boot: str, model: ModelRef | None, steps: float, plays: int, envs: int = 1) -> None:
        """Take in a report of an evaluator. A match is taken from it if it does not play, or cannot load the weights
        because the modelpool has only newer ones.

        Args:
            model: model of the weights that it has.
            steps: its total of agent steps.
            plays: id of the match that it plays; 0: none.
            envs: environments in which it plays.
        """
        mine = self._open.get(boot)
        if mine is None:
            return
        now, mine.envs = self._clock(), envs
        loaded = model in mine.match.seats.values()
        if steps > mine.steps or loaded != mine.loaded:
            mine.steps, mine.loaded, mine.moved = steps, loaded, now
        else:
            is_at_it = plays == mine.match.id
            play_s = Standstill(envs).limit_s if is_at_it else STUCK_S
            limit_s = play_s if loaded else (PULL_S if is_at_it else LOAD_S)
            if now - mine.moved < limit_s:
                return
            if loaded and is_at_it:
                self._given_up, self._given_up_envs = self._given_up + 1, envs
            self.not_loaded[mine.wanted] += not loaded
            self.drop(boot)

    def playing(self, boot: str) -> Match | None:
        """Match that this evaluator was given before; None: none."""
        return self._open[boot].match if boot in self._open else None

    @property
    def models(self) -> set[ModelRef]:
        """Models that are being evaluated."""
        return {one.wanted.ref for one in self._open.values()}

    def order(
        self, boot: str, ref: ModelRef | None, *, seats: int, every_s: float | None, quota: Quota
    ) -> Match | None:
        """New match for an idle evaluator; None: none is due.

        Args:
            ref: newest model of the modelpool.
            seats: seats of the environment; the model plays all of them.
            every_s: seconds between two starts; None: by CPU.
            quota: quota of a new match.
        """
        if ref is None or (self.newest is not None and ref <= self.newest) or not self._cadence.due(every_s):
            return None
        self._cadence.begin()
        self.newest = ref
        return self.open(boot, RequestedEvaluation(ref, quota.mode), seats=seats, quota=quota)

    def open(self, boot: str, wanted: RequestedEvaluation, *, seats: int, quota: Quota) -> Match | None:
        """Give an evaluation to an idle evaluator, whatever the cadence; None: another evaluator plays it. Its CPU time
        delays the next evaluation by cadence.
        """
        if any(one.wanted == wanted for one in self._open.values()):
            return None
        self.match += 1
        seed = _seed(self._seed, wanted.ref, confirms=wanted.confirms)
        match = Match(self.match, dict.fromkeys(range(seats), wanted.ref), learn=(), seed=seed, quota=quota)
        self._open[boot] = _Open(match, wanted, loaded=False, steps=0.0, moved=self._clock())
        return match

    def finish(self, result: EvalResult, *, steps: int, wall_s: float, unix: float) -> Evaluation:
        """Close a match with its result, and return the evaluation.

        Args:
            steps: agent steps that the weights were learned from, as far as known.
            wall_s, unix: wall time of the run and Unix time, in seconds.

        Raises:
            ValueError: unknown match, wrong model, mode or number of episodes, or a return not finite or too large.
        """
        boot, mine = next(((boot, one) for boot, one in self._open.items() if one.match.id == result.match), ("", None))
        if mine is None:
            raise ValueError(f"match {result.match} is done, or was given to another evaluator")
        assert mine.match.quota is not None
        if result.ref not in mine.match.seats.values():
            raise ValueError(f"match {result.match} is not about {result.ref}")
        if len(result.returns) != mine.match.quota.episodes or result.mode != mine.match.quota.mode:
            raise ValueError(
                f"match {result.match} asks for {mine.match.quota.episodes} episodes in mode {mine.match.quota.mode}, "
                f"got {len(result.returns)} in mode {result.mode}"
            )
        if not all(abs(one) <= LARGEST_RETURN for one in result.returns):  # NaN neither
            raise ValueError(f"match {result.match}: a return is not finite, or beyond {LARGEST_RETURN:g}")
        del self._open[boot]
        self._given_up = 0
        self._done = max(self._done or result.ref, result.ref)
        self.newest = max(self.newest or self._done, self._done)
        mean = math.fsum(result.returns) / len(result.returns)
        variance = math.fsum((one - mean) ** 2 for one in result.returns) / len(result.returns)
        return Evaluation(
            mean=mean,
            std=math.sqrt(variance),
            min=min(result.returns),
            max=max(result.returns),
            episodes=len(result.returns),
            mode=result.mode,
            ref=result.ref,
            steps=steps,
            wall_s=wall_s,
            seconds=result.seconds,
            time=unix,
            seats=len(mine.match.seats),
            info=info_numbers(result.info),
            seed=mine.match.seed,
            confirms=mine.wanted.confirms,
        )

    def only(self, wanted: Collection[RequestedEvaluation]) -> None:
        """Take all other evaluations from their evaluators."""
        for boot in [boot for boot, one in self._open.items() if one.wanted not in wanted]:
            self.drop(boot)

    def drop(self, boot: str) -> None:
        """Forget the match of an evaluator that will not finish it; its model may be evaluated again, at once."""
        mine = self._open.pop(boot, None)
        if mine is not None and mine.wanted.ref == self.newest != self._done:
            self._cadence.again()
            self.newest = self._done


def _seed(run_seed: int, ref: ModelRef, *, confirms: bool) -> int:
    """Seed of an evaluation, from its model and not its number: equal runs in lock-step report equal returns."""
    text = f"rlctl evaluation {run_seed} {ref.policy} {ref.lineage} {ref.version}{' confirmed' if confirms else ''}"
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
