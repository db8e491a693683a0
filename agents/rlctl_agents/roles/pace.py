"""Time as the manager has it: where it comes from, how often processes report, how long they may be silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REPORT_EVERY_S = 1.0
EXPIRES_S = 15.0
REPORTS_PER_S = 500
"""The more processes, the rarer each reports."""


@dataclass(frozen=True)
class Clock:
    """Where time comes from."""

    monotonic: Callable[[], float]
    unix: Callable[[], float]


def report_every_s(processes: int) -> float:
    """Between two reports of each."""
    return max(REPORT_EVERY_S, processes / REPORTS_PER_S)


def expires_s(processes: int) -> float:
    """Of silence, until a lease is lost: several reports."""
    return max(EXPIRES_S, 5 * report_every_s(processes))
