"""Locks of a run, for the verb that changes it and for its live supervisor: flocks, which end with their holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlctl.errors import Conflict, Locked
from rlctl.waiting import Waiting

_ASKING_S = 1.0
"""Seconds to wait for the life lock: other commands take it only briefly, to test whether it is held."""


@contextmanager
def held(path: Path, run: str, verb: str, clock: Callable[[], float] = time.time) -> Iterator[None]:
    """Hold the lock of a run. The file stays: removing it would let two holders have two files.

    Args:
        clock: unix time.

    Raises:
        Locked: another command holds it; the message has its process and for how long.
        OSError: the file cannot be opened.
    """
    handle = _opened(path)
    try:
        if not _taken(handle):
            raise Locked(
                f"run {run} is being changed by {_holder(handle, clock())}",
                hint="Wait until it has finished, then run the same command again.",
                objects=(run,),
            )
        note = json.dumps({"pid": os.getpid(), "verb": verb, "since": clock()}).encode()
        with suppress(OSError):  # it only names the holder of the lock
            os.pwrite(handle, note + b"\n", 0)
            os.ftruncate(handle, len(note) + 1)
        yield
    finally:
        os.close(handle)


def _taken(handle: int, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(path: Path) -> int:
    """Open for writing, or for reading if that is denied: the lock is as good, so that a run there can be stopped."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES) or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _holder(handle: int, now: float) -> str:
    """Holder of the lock, as far as its note can be read: the holder may be writing it at this moment."""
    try:
        note = json.loads(os.pread(handle, 4096, 0))
        age_s = max(0.0, now - float(note["since"]))
        return f"another command: process {int(note['pid'])} (rlctl {note['verb']}) since {age_s:.0f} s"
    except (ValueError, KeyError, TypeError):
        return "another command"


@contextmanager
def life(path: Path) -> Iterator[int]:
    """A locked descriptor to hand to the supervisor: the process that inherits it keeps the lock until it dies.

    Raises:
        Conflict: a supervisor lives.
        OSError: the file cannot be written.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not Waiting(_ASKING_S).until(lambda: _taken(handle), 0.05):
            raise Conflict(
                f"{path} is locked: a supervisor of this run lives",
                hint="`rlctl down` ends it; then the same command again.",
            )
        yield handle
    finally:
        os.close(handle)


def alive(path: Path) -> bool:
    """Whether the process that inherited `life` still lives, here or on a host that shares the folder."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _taken(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
