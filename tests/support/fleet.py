"""Simulated fleets of actors: what each would report of its episodes, slice after slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlctl_agents.manager.accounting.outliers import SLICE_S, ActorEpisodes, OutlierReport, Outliers
from rlctl_agents.types.control import Origin
from rlctl_agents.types.figures import Moments
from tests.manager.world import Time

Rng = np.random.Generator
Draw = Callable[[Rng, float, int], np.ndarray[Any, np.dtype[np.float64]]]
"""Returns of so many episodes of a policy of this skill, from 0 to 1."""
NAMES = ("return", "length", "action=0", "action=1")


def normal(rng: Rng, skill: float, count: int) -> Any:
    return rng.normal(400.0 * skill, 60.0, count)


def alike(rng: Rng, skill: float, count: int) -> Any:
    """All episodes end with the same return."""
    return np.full(count, np.round(500.0 * skill))


def heavy(rng: Rng, skill: float, count: int) -> Any:
    """One episode in a hundred is worth more than all others together."""
    return skill * rng.lognormal(0.0, 2.0, count)


def rare(rng: Rng, skill: float, count: int) -> Any:
    return (rng.random(count) < 0.02 * (1.0 + skill)) * 1000.0


def balanced(rng: Rng, skill: float, count: int) -> Any:
    """Won or lost, around 0."""
    return np.where(rng.random(count) < 0.5, 1.0, -1.0)


def bounded(rng: Rng, skill: float, count: int) -> Any:
    """Nearly always the limit of 500 steps, seldom a fall."""
    return np.where(rng.random(count) < 0.02, rng.uniform(9, 500, count), 500.0)


DRAWS = (normal, alike, heavy, rare, balanced, bounded)


@dataclass
class Simulated:
    """One actor."""

    number: int
    origin: Origin = field(default_factory=lambda: Origin("host"))
    episodes: float = 20.0  # of a slice, on average
    lag: float = 0.0  # slices that its weights are behind
    handicap: float = 0.0  # of skill, honestly: another map, another epsilon
    epsilon: float = 0.0
    change: Callable[[Any], Any] = lambda figures: figures  # what is broken: [episodes, figures]
    totals: Any = field(default_factory=lambda: np.zeros((len(NAMES), 3)))

    def play(self, rng: Rng, draw: Draw, skill: Callable[[float], float], now: float) -> None:
        """One slice."""
        count = int(rng.poisson(self.episodes))
        if not count:
            return
        at = max(skill(now - self.lag) - self.handicap, 0.0)
        returns = draw(rng, at, count)
        lengths = np.maximum(rng.gamma(4.0, 25.0 * (0.2 + at), count), 1.0)
        share = rng.beta(8.0 * (0.3 + 0.5 * at), 4.0, count)
        values = self.change(np.stack([returns, lengths, share, 1.0 - share], -1))
        old, mean = self.totals, values.mean(0)
        total = old[:, 0] + count
        shift = mean - old[:, 1]
        m2 = old[:, 2] + np.square(values - mean).sum(0) + np.square(shift) * old[:, 0] * count / total
        self.totals = np.stack([total, old[:, 1] + shift * count / total, m2], -1)

    def actor(self) -> ActorEpisodes:
        figures = [Moments(*row) for row in self.totals.tolist()]
        return ActorEpisodes(f"{self.number:016x}", f"actor/{self.number}", self.origin, figures, self.epsilon)


def plateau(now: float) -> float:
    return 0.8


def learning(now: float) -> float:
    """Most is learned within some slices."""
    return float(1.0 / (1.0 + np.exp(-(now - 6.0) / 1.5)))


def told(
    fleet: Sequence[Simulated],
    draw: Draw = normal,
    *,
    seed: int = 0,
    slices: int = 16,
    skill: Callable[[float], float] = plateau,
) -> list[list[OutlierReport]]:
    """Findings at the end of every slice."""
    rng, time = np.random.default_rng(seed), Time()
    outliers = Outliers(time)
    found = []
    for now in range(slices):
        outliers.turn(NAMES, lambda: [one.actor() for one in fleet])
        for one in fleet:
            one.play(rng, draw, skill, float(now))
        time.now += SLICE_S
        outliers.turn(NAMES, lambda: [one.actor() for one in fleet])
        found.append(outliers.found)
    return found
