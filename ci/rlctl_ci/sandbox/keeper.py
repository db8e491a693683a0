"""Parent process of a program: what the program has started ends with it, and all of it with the service.

    python -I -S keeper.py LIFE WHOLE GRACE_S NICE MEMORY_BYTES FILE_BYTES CPU_S PROGRAM ARGUMENT...

LIFE is the read end of a pipe whose write end the service alone has: a byte asks for a graceful end, end of file means
that the service is gone, whatever has killed it. A parent-death signal would not do: it does not reach what a program
starts, and it comes when the *thread* that started it ends.

WHOLE is 1 where no process may be left, not even one in a session of its own; 0 where the program may leave a daemon.
A limit of 0 is none. Started by file, with nothing but the standard library, because every call of git pays for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

UNKILLABLE_S: Final = 10.0
"""Seconds to wait for a process that hangs in the kernel; no more can be done about it."""
FILE_SIGNAL: Final = int(signal.SIGXFSZ)
"""Signal that ends a process that writes a file of more than FILE_BYTES."""
PROCESSOR_SIGNAL: Final = int(signal.SIGXCPU)
"""Signal that ends a process after CPU_S seconds of processor time."""
STOP_SIGNALS: Final = (int(signal.SIGTERM), int(signal.SIGINT))
"""Signals by which a machine that stops, or a person, ends a process."""
_SET_PARENT_DEATH_SIGNAL: Final = 1
_SET_CHILD_SUBREAPER: Final = 36


def main(arguments: Sequence[str]) -> int:
    """Run the program; returns its exit code, or 128 plus the signal that ended it."""
    life, whole, grace_s, nice, memory, file, cpu_s = (int(one) for one in arguments[:7])
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if whole:
        _prctl(_SET_CHILD_SUBREAPER, 1)  # a process that loses its parent becomes our child, and no other's
    program = os.fork()
    if program == 0:
        _become(arguments[7:], nice, memory, file, cpu_s)
    os.close(0)
    deadline: float | None = None
    code: int | None = None
    while code is None:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = select.select([life, woken], [], [], left_s)[0]
        if woken in ready:
            os.read(woken, 4096)
            code = _reaped(program)
        if code is None and life in ready:
            if not os.read(life, 1):
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)
            deadline = time.monotonic() + grace_s
        elif not ready:
            break  # the graceful end took too long
    _end(program, bool(whole))
    return 128 + signal.SIGKILL if code is None else code if code >= 0 else 128 - code


def _become(argv: Sequence[str], nice: int, memory: int, file: int, cpu_s: int) -> None:
    try:
        os.setsid()
        _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        os.nice(nice)
        limits = ((resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, file), (resource.RLIMIT_CPU, cpu_s))
        for kind, most in limits:
            if most:
                resource.setrlimit(kind, (most, most + (kind == resource.RLIMIT_CPU)))  # beyond the second: SIGKILL
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):  # Python has changed them
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], list(argv))
    except (OSError, ValueError) as error:
        print(f"{argv[0]}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _reaped(program: int) -> int | None:
    """Reap all that has ended; exit code of the program, if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1])
    return code


def _end(program: int, whole: bool) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    deadline = time.monotonic() + UNKILLABLE_S
    while whole and time.monotonic() < deadline:
        _reaped(program)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # nothing of what it has started is left
        for pid in _below(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _below(parent: int) -> set[int]:
    """Descendants of a process."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_bytes().rpartition(b")")[2].split()[1])
    found, more = set[int](), {parent}
    while more:
        more = {pid for pid, above in parents.items() if above in more} - found
        found |= more
    return found


def _prctl(what: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # Linux alone; elsewhere the group has to do
        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
