"""What the kernel says of this machine's processes, in /proc."""

from __future__ import annotations

import os
from pathlib import Path

_START = 19
"""Where `starttime` stands in /proc/PID/stat behind the name, which may hold spaces."""


def boot_time() -> float:
    """Unix time of the machine's start by the clock as it is now; 0 when the kernel does not say."""
    try:
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0.0


def started(pid: int, booted: float) -> float | None:
    """Unix time of a process's start by the clock as it is now, up to a second early; None: the kernel does not say.

    Args:
        booted: what `boot_time` says now: a clock that is set moves it, and with it what is written from then on.
    """
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[_START])
    except (OSError, ValueError, IndexError):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK") if booted else None
