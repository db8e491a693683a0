"""Waiting for a cluster: with a bound, and a line for every ten seconds of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rlctl.backends.base import Say

HEARTBEAT_S: Final = 10.0


def steady() -> float:
    """Seconds, monotonic, counted while the machine sleeps, too: BOOTTIME of Linux, and what others call MONOTONIC."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Waiting:
    """One wait.

    Args:
        limit_s: how long, since the last progress.
        say: told a line for every ten seconds.
        clock: monotonic seconds.
    """

    def __init__(self, limit_s: float, say: Say, clock: Callable[[], float]) -> None:
        self._limit_s, self._say, self._clock = limit_s, say, clock
        self._began = self._said = self._moved = clock()

    def moved(self) -> None:
        """There is progress: the bound counts from now."""
        self._moved = self._clock()

    def over(self, what: str) -> bool:
        """Whether the time is up; says the line that is due.

        Args:
            what: is waited for.
        """
        now = self._clock()
        if now - self._said >= HEARTBEAT_S:
            self._said = now
            left = max(0.0, self._moved + self._limit_s - now)
            self._say(f"waiting for {what} since {now - self._began:.0f} s, {left:.0f} s more at most")
        return now - self._moved >= self._limit_s
