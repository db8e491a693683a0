"""Medians, fairness and equivalence; rlctl.statistics has what `rlctl compare` tells as well."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rlctl.statistics import Values


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
    """The t with an upper tail of `tail` < 0.5, by bisection."""
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
