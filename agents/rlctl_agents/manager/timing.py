"""Clock of the manager, interval of reports, timeout of leases, and periodic timers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REPORT_EVERY_S = 1.0
EXPIRES_S = 15.0
REPORTS_PER_S = 500
"""Reports of all actors per second, at most: with more processes, each actor reports less often. Other roles are few,
and each of their reports counts."""
SHARE = 0.1
"""Share of the manager's time that one periodic task may take: a task that takes longer becomes rarer, down to once in
LONGEST_S."""


@dataclass(frozen=True)
class Clock:
    """Source of time: a monotonic clock and the Unix time, in seconds."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


def report_every_s(processes: int, role: str = "actor") -> float:
    """Seconds between two reports of each process of a role, with this number of processes in all."""
    return max(REPORT_EVERY_S, processes / REPORTS_PER_S) if role == "actor" else REPORT_EVERY_S


LONGEST_S = 30.0
"""Longest period, in seconds, to which `Every` lengthens one."""


class Every:
    """Periodic timer, whose period grows with the time that the task takes.

    Args:
        period_s: the shortest period.
        clock: monotonic seconds.
    """

    def __init__(self, period_s: float, clock: Callable[[], float]) -> None:
        self._shortest_s = self.period_s = period_s
        self._clock = clock
        self._last = -float("inf")

    def due(self) -> bool:
        """True if a period has passed since the last call that returned True."""
        now = self._clock()
        if now - self._last < self.period_s:
            return False
        self._last = now
        return True

    def spent(self) -> None:
        """Set the period by the time that the task has just taken, so that time is left for others. It may shrink
        again: a task that once waited for a volume says nothing about the next.
        """
        self.period_s = max(self._shortest_s, min((self._clock() - self._last) / SHARE, LONGEST_S))


def expires_s(processes: int, role: str = "actor") -> float:
    """Seconds without a report after which a lease of a role expires: several reports."""
    return max(EXPIRES_S, 5 * report_every_s(processes, role))
