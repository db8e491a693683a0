"""Throttle of log lines, against floods by an attacker or a fault that repeats."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

EVERY_S = 10.0
_REMEMBERED = 256


class LogThrottle:
    """Lets one line of each kind through in every `every_s` seconds. One thread at a time.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, every_s: float = EVERY_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._said: OrderedDict[str, float] = OrderedDict()

    def due(self, what: str) -> bool:
        """True if a line of this kind may be written now; then it counts as written."""
        now = self._clock()
        if now - self._said.get(what, -float("inf")) < self._every_s:
            return False
        self._said[what] = now
        self._said.move_to_end(what)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return True
