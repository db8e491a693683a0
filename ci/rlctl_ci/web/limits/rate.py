"""Rate limits. Behind a proxy all clients have one address, so signed requests are counted for their signer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_SOURCES: Final = 10_000


class RateLimit:
    """Token bucket for each key; the least recently used are discarded.

    Args:
        per_minute: requests a minute, and in one burst.
        clock: monotonic seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = float(per_minute), clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, key: str) -> bool:
        now = self._clock()
        left, at = self._buckets.pop(key, (self._most, now))
        left = min(self._most, left + (now - at) * self._most / 60.0)
        self._buckets[key] = (left - 1.0 if left >= 1.0 else left, now)
        if len(self._buckets) > _SOURCES:
            self._buckets.popitem(last=False)
        return left >= 1.0
