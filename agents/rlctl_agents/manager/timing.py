"""Time as the manager has it: where it comes from, how often processes report, how long they may be silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REPORT_EVERY_S = 1.0
EXPIRES_S = 15.0
REPORTS_PER_S = 500
"""The more processes, the rarer each actor reports. Of the other roles there are few, and every report counts."""
SHARE = 0.1
"""Of the manager's time, at most, for each thing that it does now and then: the more processes, the rarer, down to
LONGEST_S."""


@dataclass(frozen=True)
class Clock:
    """Source of time: a monotonic clock and the Unix time, in seconds."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


def report_every_s(processes: int, role: str = "actor") -> float:
    """Between two reports of each process of a role, when there are so many processes in all."""
    return max(REPORT_EVERY_S, processes / REPORTS_PER_S) if role == "actor" else REPORT_EVERY_S


LONGEST_S = 30.0
"""Of a period that was lengthened."""


class Every:
    """Says when a period has gone by.

    Args:
        period_s: the shortest.
        clock: monotonic seconds.
    """

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self._shortest_s = self.period_s = period_s
        self._clock = clock
        self._last = -float("inf")

    def due(self) -> bool:
        """True if the period has gone by since the last time that this said so."""
        now = self._clock()
        if now - self._last < self.period_s:
            return False
        self._last = now
        return True

    def spent(self) -> None:
        """Lengthen the period if the work that was due has just taken long, so that time is left for others: one that
        has waited for a volume says nothing about the next.
        """
        self.period_s = max(self._shortest_s, min((self._clock() - self._last) / SHARE, LONGEST_S))


def expires_s(processes: int) -> float:
    """Silence until a lease is lost: several reports."""
    return max(EXPIRES_S, 5 * report_every_s(processes))
