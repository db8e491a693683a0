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
    """Wait for the lock of a file, which is made and stays.

    Args:
        path: its folder is there.
        stop: raises when the work has to end.
    """
    with path.open("a") as lock:
        while not _taken(lock.fileno()):
            stop()
            time.sleep(_LOOK_S)
        yield


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
