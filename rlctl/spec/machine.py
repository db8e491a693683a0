"""Cores and memory of this machine, or the part that control groups leave to this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores and memory of one machine."""

    cores: float
    memory_mib: float

    @classmethod
    def here(cls, groups: Path = GROUPS, own: Path = OWN_GROUPS) -> Machine:
        """This machine, as far as this process may use it: by its affinity and the limits of its control groups.

        Args:
            groups: where control groups are mounted.
            own: says in which groups this process is.
        """
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cores, limits = float(len(os.sched_getaffinity(0))), [float(memory)]
        for folder in _folders(groups, own):
            if quota := _cpu(folder):
                cores = min(cores, quota)
            limits += _numbers(folder / "memory.max") + _numbers(folder / "memory.limit_in_bytes")
        return cls(cores, min(limits) / 2**20)


def left_bytes(groups: Path = GROUPS, own: Path = OWN_GROUPS, meminfo: Path = MEMINFO) -> int:
    """Bytes of memory left for this process: the least of what the machine and each control group have left.

    File pages that the kernel may reclaim count as left.
    """
    left = [
        int(words[1]) * 1024
        for line in _text(meminfo).splitlines()
        if (words := line.split()) and words[0] == "MemAvailable:"
    ]
    for folder in _folders(groups, own):
        kept = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
        for limit, usage, prefix in (
            ("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):  # fmt: skip
            for most, used in zip(_numbers(folder / limit), _numbers(folder / usage), strict=False):
                files = sum(int(kept.get(f"{prefix}{name}_file", 0)) for name in ("inactive", "active"))
                left.append(int(most - max(used - files, 0)))
    return max(min(left, default=sys.maxsize), 0)


def _folders(groups: Path, own: Path) -> Iterator[Path]:
    """Folders of every group that this process is in, and of those above it: each may set a limit.

    In a container a path of version 1 may be that of the host, of which only the last folder is mounted: as the root.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = PurePosixPath(path.lstrip("/"))
        mounted = [name for name in controllers.split(",") if name in ("cpu", "memory")] if controllers else [""]
        for mount in mounted:
            yield from (groups / mount / part for part in (below, *below.parents))


def _cpu(folder: Path) -> float | None:
    """Quota of a group, in cores; None: it has none."""
    words = _words(folder / "cpu.max")  # "200000 100000" or "max 100000"
    if not words:
        words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")  # -1: no quota
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):
        return None
    return int(words[0]) / int(words[1])


def _numbers(file: Path) -> list[float]:
    return [float(word) for word in _words(file) if word.isdigit()]


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii")
    except OSError:
        return ""
