"""What the threads of this process are doing: their stacks, looked at a hundred times a second from within.

It needs no right that a process has not got anyway, so it works in a restricted pod, where ptrace is refused. Time is
wall time, waiting included: in a process of a training, whom it waits for is half of the answer.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

PERIOD_S = 0.01
MAIN = "MainThread"
NATIVE = "native threads"
"""Those that libraries start outside Python: what Python's threads leave of the CPU time of the process."""
IDLE = 0.01
"""A thread other than the main one that used a smaller share of a core is left out."""
MOST_STACKS = 4000
"""Of what was seen less long, only the thread and its outermost functions are told."""
MOST_FRAMES = 18_000
DEPTH = 150
LABEL = 300
RARE, DEEPER = "(rare)", "(deeper)"
TICKS = os.sysconf("SC_CLK_TCK")
_UNFIT = re.compile(r"[;\x00-\x1f\x7f-\x9f]")

Stack = tuple[str, ...]


class Seen(NamedTuple):
    """Of one look that lasted a while."""

    seconds: float
    samples: int
    threads: dict[str, float]  # name -> CPU seconds; {} where the system does not say
    stacks: dict[Stack, int]  # thread, outermost function, ..., innermost -> microseconds


class Stacks:
    """Adds up stacks. Threads of one name are one."""

    def __init__(self) -> None:
        self.found: dict[Stack, int] = {}
        self._labels: dict[int, tuple[CodeType, str]] = {}  # the code too: its id is taken as long as it is kept

    def add(self, thread: str, frame: FrameType | None, microseconds: int) -> None:
        """A thread was there for so long."""
        inward: list[str] = []
        while frame is not None:
            inward.append(self._label(frame.f_code))
            frame = frame.f_back
        inward.append(label(thread))
        inward.reverse()
        if len(inward) > DEPTH:
            inward[DEPTH - 1 :] = [DEEPER]
        stack = tuple(inward)
        self.found[stack] = self.found.get(stack, 0) + microseconds

    def _label(self, code: CodeType) -> str:
        known = self._labels.get(id(code))
        if known is None:
            text = label(f"{code.co_qualname} ({short(code.co_filename)}:{code.co_firstlineno})")
            known = self._labels[id(code)] = (code, text)
        return known[1]


def look(
    seconds: float,
    stopped: Callable[[float], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Seen:
    """Look at every thread but the calling one.

    A look that comes late, because a library held the interpreter's lock, counts for the whole time since the last one.

    Args:
        seconds: how long.
        stopped: waits so many seconds; True ends it early.
        clock: monotonic seconds.
        cpu_clock: CPU seconds of this process, all its threads together.
    """
    stacks, own, samples = Stacks(), threading.get_ident(), 0
    cpu_before, all_before = cpu_seconds(), cpu_clock()
    began = last = clock()
    while last - began < seconds and not stopped(PERIOD_S * random.uniform(0.5, 1.5)):  # no rhythm but its own
        names = {one.ident: one.name for one in threading.enumerate()}
        now = clock()
        for ident, frame in sys._current_frames().items():
            if ident != own:
                stacks.add(names.get(ident, "thread without a name"), frame, round((now - last) * 1e6))
        samples, last = samples + 1, now
    used = {name: max(value - cpu_before.get(name, 0.0), 0.0) for name, value in cpu_seconds().items()}
    native_s = cpu_clock() - all_before - sum(used.values())
    used.pop(threading.current_thread().name, None)
    if used and native_s >= IDLE * (last - began):
        used[NATIVE] = native_s
    return Seen(last - began, samples, used, fewer(awake(stacks.found, used, last - began)))


def awake(stacks: Mapping[Stack, int], cpu_s: Mapping[str, float], seconds: float) -> dict[Stack, int]:
    """Without threads that only waited, as far as that is known."""
    return {
        stack: value
        for stack, value in stacks.items()
        if stack[0] == MAIN or not cpu_s or cpu_s.get(stack[0], 0.0) >= IDLE * seconds
    }


def fewer(stacks: Mapping[Stack, int]) -> dict[Stack, int]:
    """What was seen longest, and the rest put together, so that a message can hold it."""
    found: dict[Stack, int] = {}
    names: set[str] = set()
    for stack, value in sorted(stacks.items(), key=lambda one: (-one[1], one[0])):
        if len(found) >= MOST_STACKS or len(names | set(stack)) > MOST_FRAMES:
            stack = (stack[0], RARE)
        names |= set(stack)
        found[stack] = found.get(stack, 0) + value
    return found


def cpu_seconds() -> dict[str, float]:
    """Name of each thread of Python -> CPU seconds so far; {} where the system does not say."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        try:
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except OSError:  # it has just ended, or this is no Linux
            continue
        user, system = stat.rpartition(")")[2].split()[11:13]  # proc(5): fields 14 and 15, in ticks
        name = label(thread.name)
        found[name] = found.get(name, 0.0) + (int(user) + int(system)) / TICKS
    return found


def label(text: str) -> str:
    """As it can stand in a stack: no separator, no control character, not too long."""
    return _UNFIT.sub("_", text)[:LABEL]


def short(path: str) -> str:
    """A file as it is imported: without the folder of `sys.path` that it lies in."""
    folders = [folder.rstrip("/") + "/" for folder in sys.path if folder]
    longest = max((folder for folder in folders if path.startswith(folder)), key=len, default="")
    return path[len(longest) :] or path
