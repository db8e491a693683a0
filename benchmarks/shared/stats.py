"""Medians, intervals, fairness and equivalence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]


class Spread(NamedTuple):
    """Of a few repeats."""

    median: float
    low: float
    high: float
    repeats: int


def spread(values: Values) -> Spread:
    """Median, smallest and largest.

    Raises:
        ValueError: no values.
    """
    if len(values) == 0:
        raise ValueError("no values to summarise")
    return Spread(float(np.median(values)), float(np.min(values)), float(np.max(values)), len(values))


def iqm(values: Values) -> float:
    """Mean of the middle half; the two values at its edges count in part.

    Example:
        `iqm([1, 2, 3, 4])` is 2.5; `iqm([0, 3, 4, 5, 6, 100])` is 4.5: 3 and 6 count half.

    Source: Agarwal et al. 2021, arXiv:2108.13264.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    quarter = ordered.size / 4
    position = np.arange(ordered.size)
    weight = np.clip(np.minimum(position + 1 - quarter, ordered.size - quarter - position), 0, 1)
    return float((ordered * weight).sum() / weight.sum())


def bootstrap(
    values: Values, statistic: Callable[[NDArray[np.float64]], float], *, level: float = 0.95, draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:  # fmt: skip
    """Percentile interval of a statistic over resampled values."""
    rng = np.random.default_rng(seed)
    data = np.asarray(values, np.float64)
    found = [statistic(rng.choice(data, data.size)) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Interval(NamedTuple):
    """A statistic with its bootstrap interval."""

    value: float
    low: float
    high: float


def compared(
    first: Values, second: Values, statistic: Callable[[NDArray[np.float64], NDArray[np.float64]], float], *,
    level: float = 0.95, draws: int = 2000, seed: int = 0,
) -> Interval:  # fmt: skip
    """A statistic of two samples, with its percentile interval over a stratified bootstrap: each is resampled apart.

    Example:
        `compared(a, b, improvement)`; `compared(a, b, lambda x, y: iqm(x) - iqm(y))`.

    Source: Agarwal et al. 2021, arXiv:2108.13264, section 4.
    """
    rng = np.random.default_rng(seed)
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    found = [statistic(rng.choice(a, a.size), rng.choice(b, b.size)) for _ in range(draws)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(statistic(a, b), float(low), float(high))


def improvement(first: Values, second: Values) -> float:
    """Probability that a value of the first is above one of the second; equal ones count half.

    Example:
        `improvement([3, 1], [2, 1])` is 0.625: of four pairs two and a half.

    Source: Mann and Whitney 1947; Agarwal et al. 2021, arXiv:2108.13264, section 4.3.
    """
    difference = np.asarray(first, np.float64)[:, None] - np.asarray(second, np.float64)
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def jain(shares: Values) -> float:
    """Jain's fairness: 1 when all shares are equal, 1/n when one has everything.

    Source: Jain, Chiu, Hawe 1984, DEC-TR-301.
    """
    given = np.asarray(shares, np.float64)
    squares = float((given**2).sum()) * given.size
    return float(given.sum()) ** 2 / squares if squares else 1.0


class Equivalence(NamedTuple):
    """Two one-sided tests."""

    difference: float  # mean of the first minus mean of the second
    p: float  # the larger of the two: below 0.05, the means differ by less than the margin
    low: float  # 90% interval of the difference
    high: float


def tost(first: Values, second: Values, margin: float) -> Equivalence:
    """Whether two means are equal within a margin: Welch's t test against both ends of it.

    Raises:
        ValueError: fewer than two values, or a margin that is not positive.

    Source: Schuirmann 1987; Welch 1947 for the degrees of freedom.
    """
    if min(len(first), len(second)) < 2 or margin <= 0:
        raise ValueError(f"needs two values on each side and a margin above 0, got {len(first)}, {len(second)}")
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    difference = float(a.mean() - b.mean())
    va, vb = float(a.var(ddof=1)) / a.size, float(b.var(ddof=1)) / b.size
    error = math.sqrt(va + vb)
    if error == 0:  # no spread at all: the difference is what it is
        return Equivalence(difference, float(abs(difference) >= margin), difference, difference)
    freedom = (va + vb) ** 2 / (va**2 / (a.size - 1) + vb**2 / (b.size - 1))
    above = student_tail((difference + margin) / error, freedom)
    below = student_tail((margin - difference) / error, freedom)
    half = student_quantile(0.05, freedom) * error
    return Equivalence(difference, max(above, below), difference - half, difference + half)


def student_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t."""
    half = 0.5 * _beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return half if t >= 0 else 1 - half


def student_quantile(tail: float, freedom: float) -> float:
    """The t whose upper tail is `tail` < 0.5, by bisection."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > tail:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Numerical Recipes 6.4, modified Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    tiny = 1e-300
    c, d = 1.0, 1 / _away_from_0(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_0(1 + term * d, tiny)
            c = _away_from_0(1 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value / a


def _away_from_0(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny
