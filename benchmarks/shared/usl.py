"""The Universal Scalability Law: growth of throughput with the number of workers, and its limits.

X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1)): lambda is the rate of one worker, sigma the contention for
something shared, kappa the cost of agreement with all other workers.

Source: Gunther 1993; the fit of the linear form of N / X(N) is Gunther, "Guerrilla Capacity Planning", 2007.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LINEAR = 0.9
"""Efficiency from which growth is called linear, as the lower end of its interval."""


class Law(NamedTuple):
    """Fitted coefficients of the law."""

    rate: float  # lambda, per second
    sigma: float
    kappa: float

    def at(self, workers: float) -> float:
        """Throughput of so many."""
        return self.rate * workers / (1 + self.sigma * (workers - 1) + self.kappa * workers * (workers - 1))

    @property
    def peak(self) -> float:
        """Workers beyond which more make it slower; infinite without crosstalk."""
        return float(np.sqrt((1 - self.sigma) / self.kappa)) if self.kappa > 0 and self.sigma < 1 else float("inf")


def fit(workers: Sequence[float], throughput: Sequence[float]) -> Law:
    """Least squares of the relative error in N / X, no coefficient below 0.

    Raises:
        ValueError: fewer than two numbers of workers, or a throughput that is not positive.
    """
    n, x = np.asarray(workers, np.float64), np.asarray(throughput, np.float64)
    if np.unique(n).size < 2 or (x <= 0).any():
        raise ValueError(f"needs two numbers of workers and rates above 0, got {list(workers)}, {list(throughput)}")
    columns = np.stack([np.ones_like(n), n - 1, n * (n - 1)], 1) * (x / n)[:, None]
    a, b, c = _nonnegative(columns, np.ones_like(n))
    return Law(1 / a, b / a, c / a)


class Interval(NamedTuple):
    """Of a bootstrap."""

    low: float
    high: float


class Fitted(NamedTuple):
    """A law with 95% intervals."""

    law: Law
    sigma: Interval
    kappa: Interval


def fit_with_intervals(repeats: Mapping[int, Sequence[float]], *, draws: int = 1000, seed: int = 0) -> Fitted:
    """Fit the medians; the intervals resample the repeats of each number of workers."""
    rng = np.random.default_rng(seed)
    counts = sorted(repeats)
    law = fit(counts, [float(np.median(repeats[n])) for n in counts])
    laws = [
        fit(counts, [float(np.median(rng.choice(np.asarray(repeats[n]), len(repeats[n])))) for n in counts])
        for _ in range(draws)
    ]
    return Fitted(law, _interval([one.sigma for one in laws]), _interval([one.kappa for one in laws]))


class Efficiency(NamedTuple):
    """Of N workers: T(N) / (N T(1))."""

    workers: int
    value: float
    low: float
    high: float


def efficiency(repeats: Mapping[int, Sequence[float]], *, draws: int = 1000, seed: int = 0) -> list[Efficiency]:
    """Against one worker, with 95% intervals over the repeats of both.

    Raises:
        ValueError: one worker was not measured.
    """
    if 1 not in repeats:
        raise ValueError("efficiency needs the throughput of one worker")
    rng = np.random.default_rng(seed)
    one = np.asarray(repeats[1], np.float64)
    found = []
    for n in sorted(repeats):
        many = np.asarray(repeats[n], np.float64)
        drawn = [
            np.median(rng.choice(many, many.size)) / (n * np.median(rng.choice(one, one.size))) for _ in range(draws)
        ]
        value = float(np.median(many) / (n * np.median(one)))
        low, high = (1.0, 1.0) if n == 1 else _interval([float(share) for share in drawn])
        found.append(Efficiency(n, value, low, high))
    return found


def linear_to(found: Sequence[Efficiency]) -> int:
    """The most workers up to which the lower end of every efficiency is at least LINEAR."""
    reached = 0
    for one in sorted(found):
        if one.low < LINEAR:
            break
        reached = one.workers
    return reached


def _interval(values: Sequence[float]) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))


def _nonnegative(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> tuple[float, float, float]:
    """Least squares with no coefficient below 0: the best of all choices of coefficients that are 0.

    The first is never 0: it is what one worker takes.
    """
    best, least = np.zeros(3), np.inf
    for count in range(3):
        for others in combinations((1, 2), count):
            used = [0, *others]
            found, *_ = np.linalg.lstsq(columns[:, used], wanted, rcond=None)
            error = float(((columns[:, used] @ found - wanted) ** 2).sum())
            if (found >= 0).all() and found[0] > 0 and error < least - 1e-15:
                best, least = np.zeros(3), error
                best[used] = found
    if not best[0] > 0:
        raise ValueError("no law fits: throughput falls from the first worker on")
    return float(best[0]), float(best[1]), float(best[2])
