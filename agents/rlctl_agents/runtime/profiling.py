"""Sampling profiler of this process, run by order of the manager in a thread of its own."""

from __future__ import annotations

import logging
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

from rlctl_agents.types.control import Sampled, Sampling
from rlctl_agents.wire.rpc.client import RemoteError

NAME = "profile"
ANSWER_S = 30.0
"""Time to send a profile, after the period that is sampled."""
CLOSE_S = 1.0
"""Time for one that is being sent to be given up."""
AGAIN_S = 1.0
"""Time between two attempts to send it."""

log = logging.getLogger(__name__)


class Profiler:
    """Profiler that obeys one order at a time.

    Args:
        role, boot: of this process.
        stop: ends a profile early; what was sampled until then is sent.
        clock: monotonic seconds.
    """

    def __init__(
        self, role: str, boot: str, stop: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._role, self._boot, self._stop, self._clock = role, boot, stop, clock
        self._newest = ""
        self._thread: threading.Thread | None = None

    def obey(self, order: Sampling, tell: Callable[[Sampled], object]) -> None:
        """Start a profile, unless this order has come before: each reply brings it until the manager has the profile.

        Args:
            tell: sends the profile, from the thread that sampled; retried for a while when the manager does not reply.
                Any other exception of it, or the last one, is logged.
        """
        if order.id == self._newest:
            return
        self._newest = order.id
        self._thread = threading.Thread(target=self._run, args=(order, tell), name=NAME, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait until a profile is sent or given up; one that is still sampled is left alone."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self, order: Sampling, tell: Callable[[Sampled], object]) -> None:
        log.info("profiling for %g s", order.seconds)
        try:
            self._say(packed(order.id, self._role, self._boot, look(order.seconds, self._stop.wait)), tell)
        except Exception as error:
            log.warning("the profile %s was lost: %s: %s", order.id, type(error).__name__, error)

    def _say(self, sampled: Sampled, tell: Callable[[Sampled], object]) -> None:
        until = self._clock() + ANSWER_S
        while True:
            try:
                tell(sampled)
                return
            except (TimeoutError, RemoteError):
                if self._clock() >= until or self._stop.is_set():
                    raise
                self._stop.wait(AGAIN_S)


def packed(id: str, role: str, boot: str, seen: ProfiledPeriod) -> Sampled:
    """Encode a profile for the wire: the name of each function once."""
    numbers: dict[str, int] = {}
    stacks = [([numbers.setdefault(name, len(numbers)) for name in stack], us) for stack, us in seen.stacks.items()]
    return Sampled(
        id, role, boot,
        seconds=seen.seconds, samples=seen.samples, threads=seen.threads, frames=list(numbers), stacks=stacks,
    )  # fmt: skip


def unpacked(sampled: Sampled) -> dict[tuple[str, ...], int]:
    """Decode the stacks of a profile.

    Raises:
        ValueError: a number, a time or a depth is out of range.
    """
    count, found = len(sampled.frames), dict[tuple[str, ...], int]()
    for numbers, us in sampled.stacks:
        if not numbers or us < 0 or len(numbers) > DEPTH or not all(0 <= number < count for number in numbers):
            raise ValueError(f"profile {sampled.id}: a stack of frames that are not there, or of no time")
        stack = tuple(sampled.frames[number] for number in numbers)
        found[stack] = found.get(stack, 0) + us
    return found


PERIOD_S = 0.01
MAIN = "MainThread"
NATIVE = "native threads"
"""Label of threads that libraries start outside Python: CPU time of the process less that of Python's threads."""
IDLE = 0.01
"""Share of a core below which a thread other than the main one is left out."""
MOST_STACKS = 4000
"""Most stacks of a profile; those seen for a shorter time are merged into one stack `RARE` for each thread."""
MOST_FRAMES = 18_000
DEPTH = 150
LABEL = 300
RARE, DEEPER = "(rare)", "(deeper)"
TICKS = os.sysconf("SC_CLK_TCK")
_UNFIT = re.compile(r"[;\x00-\x1f\x7f-\x9f]")

Stack = tuple[str, ...]


class ProfiledPeriod(NamedTuple):
    """Profile of a period."""

    seconds: float
    samples: int
    threads: dict[str, float]  # name -> CPU seconds; {} where the system does not say
    stacks: dict[Stack, int]  # thread, outermost function, ..., innermost -> microseconds


class Stacks:
    """Sums the time of each stack. Threads of one name count as one."""

    def __init__(self) -> None:
        self.found: dict[Stack, int] = {}
        self._labels: dict[int, tuple[CodeType, str]] = {}  # the code too: its id is unique as long as it is kept

    def add(self, thread: str, frame: FrameType | None, microseconds: int) -> None:
        """Add the time that a thread spent at a frame."""
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
) -> ProfiledPeriod:
    """Sample the stacks of all threads but the calling one.

    A sample that comes late, because a library held the interpreter's lock, counts for the whole time since the last.

    Args:
        seconds: length of the profile.
        stopped: waits so many seconds; True ends it early.
        clock: monotonic seconds.
        cpu_clock: CPU seconds of this process, all its threads together.
    """
    stacks, own, samples = Stacks(), threading.get_ident(), 0
    cpu_before, all_before = cpu_seconds(), cpu_clock()
    began = last = clock()
    while last - began < seconds and not stopped(PERIOD_S * random.uniform(0.5, 1.5)):  # random, so without aliasing
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
    return ProfiledPeriod(last - began, samples, used, fewer(awake(stacks.found, used, last - began)))


def awake(stacks: Mapping[Stack, int], cpu_s: Mapping[str, float], seconds: float) -> dict[Stack, int]:
    """Stacks without those of threads that only waited, as far as that is known."""
    return {
        stack: value
        for stack, value in stacks.items()
        if stack[0] == MAIN or not cpu_s or cpu_s.get(stack[0], 0.0) >= IDLE * seconds
    }


def fewer(stacks: Mapping[Stack, int]) -> dict[Stack, int]:
    """Stacks that were seen longest, and the rest merged for each thread, so that a message can hold them."""
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
    """Text fit for a stack: no separator, no control character, not too long."""
    return _UNFIT.sub("_", text)[:LABEL]


def short(path: str) -> str:
    """Path of a source file relative to the folder of `sys.path` that holds it."""
    folders = [folder.rstrip("/") + "/" for folder in sys.path if folder]
    longest = max((folder for folder in folders if path.startswith(folder)), key=len, default="")
    return path[len(longest) :] or path
