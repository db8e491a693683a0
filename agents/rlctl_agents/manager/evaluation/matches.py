"""Matches: every seat for training, one whole quota at a time for evaluation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import msgspec

from rlctl_agents.manager.evaluation.cadence import Cadence
from rlctl_agents.manager.state_store import TRAINING, Evaluation
from rlctl_agents.types.control import EvalResult, Match, Quota
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.types.figures import info_numbers

NEWEST = -1
"""As version and lineage of a ModelRef: the newest of that policy, followed as it changes."""


def training(policy: str, seats: int, seed: int) -> Match:
    """Self-play with the newest weights, learning from every seat."""
    newest = ModelRef(policy, NEWEST, NEWEST)
    return Match(id=TRAINING, seats=dict.fromkeys(range(seats), newest), learn=tuple(range(seats)), seed=seed)


LOAD_S = 5.0
"""An evaluator that has not got the weights of its match by then gets another one."""
STUCK_S = 30.0
"""An evaluator that has not made a step for so long gets another match."""
PLAY_S = 600.0
"""The same while it says that it plays this one: resets of a slow simulator, or one step of it, may take minutes."""


class _Open(msgspec.Struct):
    match: Match
    loaded: bool
    steps: float  # that the evaluator had counted when it was last seen to move
    moved: float  # when that was


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

    @property
    def plays(self) -> bool:
        """True if an evaluator has the weights of its match."""
        return any(one.loaded for one in self._open.values())

    def hear(self, boot: str, model: ModelRef | None, steps: float, plays: int) -> None:
        """Take a report of an evaluator. A match that it cannot load, because the modelpool has gone on, or does not
        play, is taken from it.

        Args:
            model: whose weights it has.
            steps: its total.
            plays: id of the match that it plays; 0: none.
        """
        mine = self._open.get(boot)
        if mine is None:
            return
        now = self._clock()
        loaded = model in mine.match.seats.values()
        if steps > mine.steps or loaded != mine.loaded:
            mine.steps, mine.loaded, mine.moved = steps, loaded, now
        elif now - mine.moved >= (LOAD_S if not loaded else PLAY_S if plays == mine.match.id else STUCK_S):
            self.drop(boot)

    def order(
        self, boot: str, ref: ModelRef | None, *, seats: int, episodes: int, every_s: float | None, mode: str
    ) -> Match | None:
        """Match that this evaluator has to play: the one it was given before, or a new one if that is due.

        Args:
            ref: newest model that the modelpool holds.
            seats: of the environment, all of which it plays.
            episodes, every_s, mode: of a new quota; every_s None: by CPU.
        """
        if boot in self._open:
            return self._open[boot].match
        if ref is None or (self.newest is not None and ref <= self.newest) or not self._cadence.due(every_s):
            return None
        self.match += 1
        self._cadence.begin()
        self.newest = ref
        match = Match(
            id=self.match,
            seats=dict.fromkeys(range(seats), ref),
            learn=(),
            seed=_seed(self._seed, ref),
            quota=Quota(episodes, "sample" if mode == "sample" else "greedy"),
        )
        self._open[boot] = _Open(match, loaded=False, steps=0.0, moved=self._clock())
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
            raise ValueError(f"match {result.match} is done, or was given to somebody else")
        assert mine.match.quota is not None
        if result.ref not in mine.match.seats.values():
            raise ValueError(f"match {result.match} is not about {result.ref}")
        if len(result.returns) != mine.match.quota.episodes or result.mode != mine.match.quota.mode:
            raise ValueError(
                f"match {result.match} asks for {mine.match.quota.episodes} episodes in mode {mine.match.quota.mode}, "
                f"got {len(result.returns)} in mode {result.mode}"
            )
        if not all(map(math.isfinite, result.returns)):
            raise ValueError(f"match {result.match}: a return is not finite")
        del self._open[boot]
        self._done = next(iter(mine.match.seats.values()))
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
        )

    def only(self, ref: ModelRef) -> None:
        """Evaluate this model alone from now on: matches of others are taken from their evaluators."""
        for boot in [boot for boot, one in self._open.items() if ref not in one.match.seats.values()]:
            self.drop(boot)
        if self._open:
            self.newest = ref  # somebody plays it already

    def drop(self, boot: str) -> None:
        """Forget an evaluator that will not finish; its model may be evaluated again, at once."""
        if self._open.pop(boot, None) is not None:
            self._cadence.again()
            self.newest = self._done


def _seed(run_seed: int, ref: ModelRef) -> int:
    """Seed of an evaluation by its model, not by its number: runs in lock-step that end equal say equal returns."""
    text = f"rlctl evaluation {run_seed} {ref.policy} {ref.lineage} {ref.version}"
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1
