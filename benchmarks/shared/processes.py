"""CPU seconds and memory of a process and everything below it, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """A line of /proc/PID/stat."""

    parent: int
    cpu_s: float  # its own, and that of children it has waited for
    threads: int


def stat(pid: int) -> Stat | None:
    """None when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold blanks and brackets
    return Stat(int(fields[1]), sum(map(int, fields[11:15])) / TICKS, int(fields[17]))


def tree(roots: Iterable[int]) -> list[int]:
    """The roots and all their descendants that live."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if (found := stat(pid)) is not None:
            children.setdefault(found.parent, []).append(pid)
    known: dict[int, None] = {}
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in known:
            known[pid] = None
            left += children.get(pid, [])
    return list(known)


def cpu_s(roots: Iterable[int]) -> float:
    """CPU seconds of the trees so far. Children that have ended are in their parent's figure once it has waited."""
    return sum(found.cpu_s for pid in tree(roots) if (found := stat(pid)) is not None)


class Memory(NamedTuple):
    """Over the trees."""

    processes: int
    threads: int
    sockets: int
    pss_mib: float  # shared pages counted once, by shares


def memory(pids: Iterable[int]) -> Memory:
    """Of these processes together, without their descendants."""
    alive = threads = sockets = pss_kib = 0
    for pid in pids:
        found = stat(pid)
        if found is None:
            continue
        alive += 1
        threads += found.threads
        sockets += _sockets(pid)
        pss_kib += _pss_kib(pid)
    return Memory(alive, threads, sockets, pss_kib / 1024)


def reset_peak(pid: int) -> float:
    """Forget the most memory that a process has had; MiB resident that it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_mib(pid)


def peak_mib(pid: int) -> float:
    """MiB resident at most, since `reset_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def mentioning(word: str) -> list[int]:
    """Processes with the word somewhere in their command line."""
    return [pid for pid in _pids() if word in command_line(pid)]


def command_line(pid: int) -> str:
    """With blanks between the arguments; "" when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _pss_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _sockets(pid: int) -> int:
    count = 0
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            count += os.readlink(entry.path).startswith("socket:")
    except OSError:
        return count
    return count
