"""Statistics of few runs: interquartile mean, bootstrap intervals, probability of improvement. Needs numpy.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv:2108.13264.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]


def iqm(values: Values) -> float:
    """Interquartile mean: mean of the middle half, in which the two values at its edges count in part.

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
    """Percentile bootstrap interval of a statistic: its lower and upper end.

    Args:
        values: one of each run; at least one.
        statistic: takes a resample, as many values as there are, drawn with replacement.
        level: share of the resamples whose statistic lies in the interval, in [0, 1].
        draws: number of resamples; at least one.
        seed: of the draws: the interval is the same for the same one.

    Raises:
        ValueError: `level` is above 1.

    Source: Efron 1979, Annals of Statistics 7(1).
    """
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
    """A statistic of two samples with its percentile interval by stratified bootstrap: each sample is resampled alone.

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
    """Probability of improvement: that a value of `first` is above one of `second`; ties count half.

    Example:
        `improvement([3, 1], [2, 1])` is 0.625: of four pairs two and a half.

    Source: Mann and Whitney 1947; Agarwal et al. 2021, arXiv:2108.13264, section 4.3.
    """
    difference = np.asarray(first, np.float64)[:, None] - np.asarray(second, np.float64)
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())
