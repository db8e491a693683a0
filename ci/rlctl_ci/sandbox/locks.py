"""Lock over threads and processes, which ends with its holder."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_LOOK_S: Final = 0.1


@contextmanager
def held(path: Path, stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file, after waiting for it; the file is created and stays.

    Args:
        path: file in a folder that exists.
        stop: raises when the work has to end.
    """
    with path.open("a") as lock:
        while not taken(lock.fileno()):
            stop()
            time.sleep(_LOOK_S)
        yield


def taken(lock: int) -> bool:
    """Take the lock of an open file if it is free; returns whether it is ours."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
