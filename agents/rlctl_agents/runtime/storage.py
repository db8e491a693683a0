"""Atomic and durable writes of files, and waits for space on the volume."""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import TypeVar

from rlctl_agents.checkpoint.parts import sync_folder
from rlctl_agents.runtime.process import UserFault

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # of a file system without hard links
LEFT_S = 3600.0
"""Age from which a temporary file counts as left by a process that was killed."""
_tidied: set[Path] = set()  # folders


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put a file in place by rename: readers see the old one or the new one.

    Args:
        durable: it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; the old one is untouched.
    """
    with _temporary(path, data, durable=durable) as temporary:
        temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Put a file in place, durably, unless there is one of that name; False when there is.

    Raises:
        OSError: it cannot be written.
    """
    with _temporary(path, data, durable=True) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            if not _is_ours(temporary, path):  # an NFS server that came back may answer so to its own success
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            temporary.replace(path)
    sync_folder(path.parent)
    return True


def _is_ours(temporary: Path, path: Path) -> bool:
    try:
        return path.samefile(temporary)
    except FileNotFoundError:
        return False


@contextmanager
def _temporary(path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    """File beside `path` that holds the data, on the disk if durable; removed at the end unless it was renamed."""
    # in containers the process id is always 1; on one machine `rlctl up` tells by it whether the writer lives
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            _tidy(path.parent, os.fstat(file.fileno()).st_mtime)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


def _tidy(folder: Path, now: float) -> None:
    """Remove temporary files of killed processes from a folder, when this process first writes there.

    Args:
        now: unix time by the clock of its file system.
    """
    if folder in _tidied:
        return
    _tidied.add(folder)
    with suppress(OSError):
        for path in folder.glob(".*.tmp"):
            if path.lstat().st_mtime < now - LEFT_S:
                path.unlink(missing_ok=True)


def append(file: FileIO, data: bytes, size: int | None = None) -> None:
    """Append all of the data to an unbuffered file, or nothing: half a record would spoil the next one.

    Args:
        size: bytes of the file that stay; None: all.

    Raises:
        OSError: it cannot be written.
    """
    whole = file.tell() if size is None else size
    if file.tell() > whole:  # half a record, of a write that could not be undone then
        file.truncate(whole)
    left = memoryview(data)
    try:
        while left:  # a full disk takes a part of it first, and says nothing
            left = left[file.write(left) :]
    except OSError:
        with suppress(OSError):
            file.truncate(whole)
            file.seek(whole)
        raise


def read_file(path: Path) -> bytes | None:
    """Read a whole file; None when there is none.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


FULL_S = 300.0
"""Longest wait of a manager that cannot go on without the volume for space on it."""
LONGEST_DELAY_S = 10.0
_WORDS = {
    errno.ENOSPC: "the volume is full",
    errno.EDQUOT: "the quota of the volume is used up",
    errno.EROFS: "the volume is read-only",
}

T = TypeVar("T")

log = logging.getLogger(__name__)


def refusal(error: OSError, path: object = None) -> str:
    """Reason why the volume takes no writes, in words that name the file; "" when the error is another.

    Args:
        path: what was to be written; None: the file that the error names.
    """
    words = _WORDS.get(error.errno or 0, "")
    where = error.filename if path is None else path
    return words if not words or where is None else f"{words}: {where}"


def patiently(
    act: Callable[[], T],
    *,
    stop: threading.Event,
    beat: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    waiting: Callable[[], None] | None = None,
) -> T:
    """Retry an action that needs the volume while the volume takes no writes.

    Args:
        act: may be done again after it has failed.
        stop: once set, the next failure is final.
        beat: reports that this process is alive; called after every failure.
        waiting: called after every failure.

    Raises:
        UserFault: the volume has taken no writes for FULL_S, and which volume.
        OSError: any other error.
    """
    until, delay_s = clock() + FULL_S, 1.0
    while True:
        try:
            return act()
        except OSError as error:
            if not (text := refusal(error)):
                raise
            if clock() >= until or stop.is_set():
                raise UserFault(text) from error
            log.error("%s; tried again in %g s", text, delay_s)
        if waiting is not None:
            waiting()
        beat()
        stop.wait(delay_s)
        delay_s = min(2 * delay_s, LONGEST_DELAY_S)
