"""Bounded wait, which says every ten seconds what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

HEARTBEAT_S = 10.0

Found = TypeVar("Found")


def quiet(text: str) -> None:
    """Print nothing: for waits without an observer."""


def steady() -> float:
    """Seconds, monotonic, counted while the machine sleeps, too: BOOTTIME of Linux, and what others call MONOTONIC."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Waiting:
    """One wait.

    Args:
        limit_s: its bound, from its beginning or the last progress.
        say: told a line for every ten seconds.
        clock: monotonic seconds.
        sleep: waits so many seconds; None: time.sleep.
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
        """There is progress: the bound counts from now."""
        self._end = self._clock() + self._limit_s

    def left_s(self, what: object = "") -> float:
        """Seconds to wait now, until the next line or the end; 0: the time is over. Says the line that is due.

        Args:
            what: name of what is waited for; becomes text only when there is something to say.
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
        """Whether the time is up; says the line that is due."""
        return self.left_s(what) == 0

    def until(self, look: Callable[[], Found], every_s: float, what: object = "") -> Found:
        """Look again and again until something is found.

        Args:
            look: what it returns counts as found when it is true.
            every_s: between two looks.
            what: name of what is waited for.

        Returns:
            What was seen last: nothing, when the time is over.
        """
        while not (found := look()) and (left_s := self.left_s(what)):
            self._sleep(min(every_s, left_s))
        return found
