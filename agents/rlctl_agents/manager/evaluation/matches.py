"""Matches: every seat for training, one whole quota at a time for evaluation."""

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
"""Of one whose square is finite."""
NEWEST = -1
"""As version and lineage of a ModelRef: the newest of that policy, followed as it changes."""


def training(policy: str, seats: int, seed: int) -> Match:
    """Self-play with the newest weights, learning from every seat."""
    newest = ModelRef(policy, NEWEST, NEWEST)
    return Match(id=TRAINING, seats=dict.fromkeys(range(seats), newest), learn=tuple(range(seats)), seed=seed)


LOAD_S = 5.0
"""An evaluator that has not got the weights of its match by then, and does not say that it is at it, gets another
one."""
PULL_S = 120.0
"""The same while it says that it is at it: large weights take their time."""
STUCK_S = 30.0
"""An evaluator that has not made a step for so long gets another match."""
PLAY_S = 600.0
"""The same while it says that it plays this one: resets of a slow simulator, or one step of it, may take minutes.
That is for one environment; `resets_s` is added for the others."""


class Wanted(NamedTuple):
    """An evaluation of one version."""

    ref: ModelRef
    mode: Mode
    confirms: bool = False  # on other seeds than the evaluation that chose the model


class Standstill(NamedTuple):
    """Evaluators that are at their matches and make no step."""

    envs: int  # of such an evaluator
    given_up: int = 0  # matches, for that reason, since an evaluation was done
    still_s: float = 0.0  # time without a step in a match that is not given up; 0: less than PLAY_S

    @property
    def limit_s(self) -> float:
        """Time without a step after which a match is given up."""
        return PLAY_S + resets_s(self.envs)


class _Open(msgspec.Struct):
    match: Match
    wanted: Wanted
    loaded: bool
    steps: float  # that the evaluator had counted when it was last seen to move
    moved: float  # when that was
    envs: int = 1  # of the evaluator


class Quotas:
    """Hands out quotas, each to one evaluator, each with another pinned model.

    Args:
        seed: of the run.
        clock: monotonic seconds.
        cadence: says when another one may start.
        match: id of the newest match there ever was.
    """

    def __init__(self, seed: int, clock: Callable[[], float], cadence: Cadence, *, match: int = TRAINING) -> None:
        self._seed = seed
        self._clock, self._cadence = clock, cadence
        self.match = max(match, TRAINING)
        self.newest: ModelRef | None = None
        """Newest model that is measured, or was."""
        self._done: ModelRef | None = None
        self._open: dict[str, _Open] = {}  # boot of the evaluator -> what it plays
        self.not_loaded = Counter[Wanted]()
        """So often an evaluator could not load the model."""
        self._given_up, self._given_up_envs = 0, 1  # matches without a step, and environments of the last one

    @property
    def plays(self) -> bool:
        """True if an evaluator has the weights of its match."""
        return any(one.loaded for one in self._open.values())

    @property
    def standstill(self) -> Standstill | None:
        """None: they make steps, or did less than PLAY_S ago."""
        now = self._clock()
        still = [(now - one.moved, one.envs) for one in self._open.values() if one.loaded]
        still_s, envs = max(still, default=(0.0, 1))
        if still_s >= PLAY_S:
            return Standstill(envs, self._given_up, still_s)
        return Standstill(self._given_up_envs, self._given_up) if self._given_up else None

    def hear(self, boot: str, model: ModelRef | None, steps: float, plays: int, envs: int = 1) -> None:
        """Take a report of an evaluator. A match that it cannot load, because the modelpool has gone on, or does not
        play, is taken from it.

        Args:
            model: of the weights that it has.
            steps: its total.
            plays: id of the match that it plays; 0: none.
            envs: environments that it plays it in.
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
        """Match that this evaluator was given before."""
        return self._open[boot].match if boot in self._open else None

    @property
    def models(self) -> set[ModelRef]:
        """Models that are evaluated now."""
        return {one.wanted.ref for one in self._open.values()}

    def order(
        self, boot: str, ref: ModelRef | None, *, seats: int, every_s: float | None, quota: Quota
    ) -> Match | None:
        """Match that this evaluator has to play: the one it was given before, or a new one if that is due.

        Args:
            ref: newest model that the modelpool holds.
            seats: of the environment, all of which it plays.
            every_s: between two starts; None: by CPU.
            quota: of a new match.
        """
        if boot in self._open:
            return self._open[boot].match
        if ref is None or (self.newest is not None and ref <= self.newest) or not self._cadence.due(every_s):
            return None
        self._cadence.begin()
        self.newest = ref
        return self.open(boot, Wanted(ref, quota.mode), seats=seats, quota=quota)

    def open(self, boot: str, wanted: Wanted, *, seats: int, quota: Quota) -> Match | None:
        """Give an idle evaluator this to play, whatever is due; None: another one plays it. What it costs is paid for
        before the next one that is due.
        """
        if any(one.wanted == wanted for one in self._open.values()):
            return None
        self.match += 1
        seed = _seed(self._seed, wanted.ref, confirms=wanted.confirms)
        match = Match(self.match, dict.fromkeys(range(seats), wanted.ref), learn=(), seed=seed, quota=quota)
        self._open[boot] = _Open(match, wanted, loaded=False, steps=0.0, moved=self._clock())
        return match

    def finish(self, result: EvalResult, *, steps: int, wall_s: float, unix: float) -> Evaluation:
        """Evaluation from the result of a quota.

        Args:
            steps: that the weights were learned from, as far as is known by now.
            wall_s, unix: the time.

        Raises:
            ValueError: an unknown quota, not all of it, another model's, or not numbers.
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

    def only(self, wanted: Collection[Wanted]) -> None:
        """Take what is not among these from its evaluator."""
        for boot in [boot for boot, one in self._open.items() if one.wanted not in wanted]:
            self.drop(boot)

    def drop(self, boot: str) -> None:
        """Forget an evaluator that will not finish; its model may be evaluated again, at once."""
        mine = self._open.pop(boot, None)
        if mine is not None and mine.wanted.ref == self.newest != self._done:
            self._cadence.again()
            self.newest = self._done


def _seed(run_seed: int, ref: ModelRef, *, confirms: bool) -> int:
    """Seed of an evaluation by its model, not by its number: runs in lock-step that end equal say equal returns."""
    text = f"rlctl evaluation {run_seed} {ref.policy} {ref.lineage} {ref.version}{' confirmed' if confirms else ''}"
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
