"""How old the weights behind consumed rows were, over the last seconds, from histograms that only grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlctl_agents.types.control import Histogram

WINDOW_S = 10.0


class Lag(NamedTuple):
    """In versions. From buckets: p95 and max are the upper bounds of theirs."""

    mean: float
    p95: float
    max: float


class LagWindow:
    """The newest histogram of each learner, and one that is half a window to a window old.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[tuple[float, Histogram], tuple[float, Histogram], Histogram]] = {}

    def hear(self, boot: str, histogram: Histogram) -> None:
        """Counts since boot."""
        now = self._clock()
        zero = Histogram(list(histogram.bounds), [0] * len(histogram.counts))
        old, middle, _ = self._seen.get(boot, ((now, zero), (now, zero), zero))
        if now - middle[0] >= WINDOW_S / 2:
            old, middle = middle, (now, histogram)
        self._seen[boot] = (old, middle, histogram)

    def forget(self, boot: str) -> None:
        """It has ended."""
        self._seen.pop(boot, None)

    def value(self) -> Lag | None:
        """Over all learners; None when nothing was consumed within the window."""
        counts: dict[float, int] = {}
        total = 0.0
        for (_, old), _, newest in self._seen.values():
            total += newest.total - old.total
            for bound, now, before in zip([*newest.bounds, math.inf], newest.counts, old.counts, strict=True):
                counts[bound] = counts.get(bound, 0) + now - before
        return _summary(counts, total)


def _summary(counts: Mapping[float, int], total: float) -> Lag | None:
    rows = sum(counts.values())
    if rows <= 0:
        return None
    below, p95, largest = 0, 0.0, 0.0
    finite = max((bound for bound in counts if math.isfinite(bound)), default=0.0)
    for bound in sorted(counts):
        if counts[bound] > 0:
            shown = bound if math.isfinite(bound) else 2 * finite  # the last bucket has no bound
            if below < 0.95 * rows:
                p95 = shown
            largest = shown
        below += counts[bound]
    return Lag(total / rows, p95, largest)
