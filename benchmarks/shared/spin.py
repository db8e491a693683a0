"""The calibration loop: what this machine gives right now, before and after every cell."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

TOLERANCE = 0.05
"""A cell is discarded when the machine moved by more between the spins around it."""

_LOOP = """
import sys, time
end = time.perf_counter() + float(sys.argv[1])
began, cpu, count = time.perf_counter(), time.process_time(), 0
while time.perf_counter() < end:
    value = 1
    for _ in range(2000):
        value = (value * 1103515245 + 12345) & 2147483647
    count += 2000
print(count, time.perf_counter() - began, time.process_time() - cpu)
"""


class Spin(NamedTuple):
    """Iterations of the loop over all cores, one process each."""

    per_s: float  # per second of wall: falls when others use the machine
    per_cpu_s: float  # per CPU second: falls when the clock does, or when a sibling thread shares the core


def spin(seconds: float, cores: int | None = None) -> Spin:
    """Turn every core for that long."""
    count = cores or len(os.sched_getaffinity(0))
    command = [sys.executable, "-S", "-E", "-c", _LOOP, str(seconds)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    per_s = per_cpu_s = 0.0
    for child in children:
        told, _ = child.communicate()
        iterations, wall_s, cpu_s = map(float, told.split())
        per_s += iterations / wall_s
        per_cpu_s += iterations / cpu_s / count
    return Spin(per_s, per_cpu_s)


def moved(before: float, after: float) -> float:
    """Relative change, seen from the larger: 0.05 is five percent.

    Example:
        `moved(100, 95)` and `moved(95, 100)` are both 0.05.
    """
    return abs(before - after) / max(before, after)


def keeps(before: Spin, after: Spin) -> tuple[bool, bool]:
    """Whether figures taken between the two count: those per second, and those per CPU second.

    Others on the machine change the first long before they change the second.
    """
    steady = moved(before.per_cpu_s, after.per_cpu_s) <= TOLERANCE
    return steady and moved(before.per_s, after.per_s) <= TOLERANCE, steady
