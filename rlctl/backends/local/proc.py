"""Kernel figures about processes of this machine, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_START = 19
"""Index of `starttime` in `stat`."""


def boot_time() -> float:
    """Unix time of the machine's start by the clock as it is now; 0 when the kernel does not say."""
    return float(figure("/proc/stat", "btime"))


def figure(path: str, name: str) -> int:
    """The number after a name at the beginning of a line of a file; 0 when the kernel does not say."""
    with suppress(OSError, ValueError):
        for line in Path(path).read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


def stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat after the name, which may hold spaces; the first is the state. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def started(pid: int, booted: float) -> float | None:
    """Unix time of a process's start by the clock as it is now, up to a second early; None: the kernel does not say.

    Args:
        booted: `boot_time` of now: setting the clock moves it, and with it every time that is written from then on.
    """
    try:
        ticks = int(stat(pid)[_START])
    except (ValueError, IndexError):
        return None
    return booted + ticks / os.sysconf("SC_CLK_TCK") if booted else None
