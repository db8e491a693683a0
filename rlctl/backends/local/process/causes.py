"""Cause of a process's death in words: exit code or signal, lifetime, and the last error in its log."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlctl.backends.crashes import SIGNALS
from rlctl.backends.local.names import split_name
from rlctl.backends.local.proc import figure
from rlctl.backends.local.process.restart_policy import Death
from rlctl.backends.records.tail import TAIL_BYTES, last_error, read_tail, readable, record_of, unix_of
from rlctl.spec.words import clock

LAST_LINES = 20
_FULL_BYTES = 2**20

_SIGNALS = {**SIGNALS, signal.SIGKILL: "out of memory, or another process's kill"}


@dataclass(frozen=True, slots=True)
class DeathReport:
    """Description of one death."""

    text: str  # "actor 7 exited 1 after 00:03:12: EnvError: step returned NaN reward"
    last_lines: tuple[str, ...]
    error: str = ""  # last logged error; empty unless the process exited by itself with a code above 0


def free_bytes(folder: Path) -> int | None:
    """Bytes that a user may still write to the disk of a folder; None: the system does not say."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def describe(
    death: Death,
    logs: Path,
    *,
    started: float,
    error: str,
    out_of_memory: bool,
    free: Callable[[Path], int | None] = free_bytes,
) -> DeathReport:
    """Describe one death in a sentence, with the end of its log.

    Args:
        logs: the folder of the log files, supervisord's own among them.
        started: unix time of the process's start, whole seconds; older log lines are an earlier life's.
        error: the supervisor's message when it could not start the process.
        out_of_memory: the kernel killed a process of this machine for memory since the last death.
        free: free bytes on the disk of a folder.
    """
    role, index = split_name(death.name)
    lines = read_tail(logs / f"{death.name}.log")
    said = last_error(lines, started)
    if death.exit_status is None:
        how = f"could not be started: {error}"
    else:
        how = f"{_ended(death, logs, out_of_memory)} after {clock(death.lived_s)}"
    text = f"{role} {index} {how}" + (f": {said}" if said else "")
    full = next((path for path in (logs.parent, logs) if (left := free(path)) is not None and left < _FULL_BYTES), None)
    if full is not None:  # the process may have been unable to log it
        text += f"; the disk of {full} is full"
    by_itself = death.exit_status is not None and death.exit_status > 0
    return DeathReport(text, tuple(readable(lines)[-LAST_LINES:]), said if by_itself else "")


def startup_s(name: str, logs: Path, started: float) -> float | None:
    """Seconds from the start of a process until it joined the run, by its log; None: the log does not say so (yet).

    Args:
        started: unix time of the process's start, whole seconds; older log lines are an earlier life's.
    """
    path = logs / f"{name}.log"
    said = "listening" if split_name(name)[0] == "manager" else "lease granted"
    lines = read_tail(path)
    for line in reversed(lines):
        record = record_of(line) if said in line else None
        if record is not None and record.get("msg") == said:
            return max(0.0, unix_of(record) - started) if unix_of(record) >= started else None
    first = next((record for line in lines if (record := record_of(line)) is not None), None)
    if first is not None and unix_of(first) >= started and path.stat().st_size > TAIL_BYTES:
        return 0.0  # the log is so long that the line is before its tail
    return None


def _ended(death: Death, logs: Path, out_of_memory: bool) -> str:
    if death.exit_status != -1:
        return f"exited {death.exit_status}"
    name = signal_name(death.name, read_tail(logs / "supervisord.log"))
    try:
        number = signal.Signals[name]
    except KeyError:
        return "was killed by a signal"
    if number == signal.SIGKILL and out_of_memory:
        return "was killed by signal 9 (the kernel ran out of memory)"
    return f"was killed by signal {number.value} ({_SIGNALS.get(number, name)})"


def signal_name(process: str, supervisor_log: list[str]) -> str:
    """Signal that last ended a process, by the supervisor's log: its RPC tells only that it was one. "": not logged."""
    pattern = re.compile(rf"exited: {re.escape(process)} \(terminated by (SIG[A-Z0-9]+)")
    return next((found[1] for line in reversed(supervisor_log) if (found := pattern.search(line))), "")


def oom_kills() -> int:
    """Number of processes that this machine's kernel has killed for memory since boot; 0 when it does not say."""
    return figure("/proc/vmstat", "oom_kill")
