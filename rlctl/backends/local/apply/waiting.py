"""A wait that has a bound, and says every ten seconds what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlctl.backends.base import Say

HEARTBEAT_S = 10.0


def nobody(text: str) -> None:
    """For waits that nobody watches."""


class Patience:
    """One wait.

    Args:
        limit_s: its bound.
        say: told a line for every ten seconds.
        clock: monotonic seconds.
    """

    def __init__(self, limit_s: float, say: Say = nobody, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._say = say
        self._clock = clock
        self._began = self._said = clock()

    def left_s(self, what: object) -> float:
        """So long to wait now, until the next line or the end; 0: the time is over. Says the line that is due.

        Args:
            what: is waited for, by name; becomes text only when there is something to say.
        """
        now = self._clock()
        end = self._began + self._limit_s
        if now >= end:
            return 0.0
        if now - self._said >= HEARTBEAT_S:
            self._said = now
            self._say(f"waiting for {what} since {now - self._began:.0f} s, {self._limit_s:g} s at most")
        return min(self._said + HEARTBEAT_S, end) - now
