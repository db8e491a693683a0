"""Wait with a timeout that reports every ten seconds what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

HEARTBEAT_S = 10.0

Found = TypeVar("Found")


def quiet(text: str) -> None:
    """Print nothing: for waits without an observer."""


def steady() -> float:
    """Monotonic clock in seconds that counts suspended time: CLOCK_BOOTTIME on Linux, elsewhere CLOCK_MONOTONIC."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Waiting:
    """One wait with a timeout.

    Args:
        limit_s: timeout, from the beginning or the last progress.
        say: called with a line every ten seconds.
        clock: monotonic seconds.
        sleep: waits for the given seconds; None: time.sleep.
    """

    def __init__(
        self,
        limit_s: float,
        say: Callable[[str], object] = quiet,
        clock: Callable[[], float] = steady,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._limit_s, self._say, self._clock, self._sleep = limit_s, say, clock, sleep or time.sleep
        self._began = self._said = clock()
        self._end = self._began + limit_s

    def moved(self) -> None:
        """Record progress: the timeout counts from now."""
        self._end = self._clock() + self._limit_s

    def left_s(self, what: object = "") -> float:
        """Seconds until the next line or the timeout; 0: timed out. Says the line that is due.

        Args:
            what: what is waited for; formatted only when a line is due.
        """
        now = self._clock()
        if now >= self._end:
            return 0.0
        if now - self._said >= HEARTBEAT_S:
            self._said = now
            most = f"{round(self._end - self._began, 2):g} s at most"
            self._say(f"waiting for {what} since {now - self._began:.0f} s, {most}")
        return min(self._said + HEARTBEAT_S, self._end) - now

    def over(self, what: object = "") -> bool:
        """Whether the wait has timed out; says the line that is due."""
        return self.left_s(what) == 0

    def until(self, look: Callable[[], Found], every_s: float, what: object = "") -> Found:
        """Poll until something is found.

        Args:
            look: the poll; a true result counts as found.
            every_s: seconds between two polls.
            what: what is waited for.

        Returns:
            Result of the last poll; a false one after a timeout.
        """
        while not (found := look()) and (left_s := self.left_s(what)):
            self._sleep(min(every_s, left_s))
        return found
