"""Rate limits. Behind a proxy all have one address, so what is signed is counted for its signer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_SOURCES: Final = 10_000


class Rate:
    """A bucket of tokens for each key; the oldest are forgotten.

    Args:
        per_minute: how many a minute.
        clock: seconds.
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
