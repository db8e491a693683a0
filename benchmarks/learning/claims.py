"""Claims on seeds: of several `make learn` at once, one trains a seed, and one at a time writes a file."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from benchmarks.shared import product

LOCKS = ".locks"
"""Folder of the locks, in that of results; in no commit."""


@contextlib.contextmanager
def writing(results: Path, name: str) -> Iterator[None]:
    """Wait until no other process changes the file of this name, and keep others from it inside the block."""
    with _opened(results, name) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def claim(results: Path, row: str, seed: int) -> Iterator[Callable[[Path], None] | None]:
    """The right to train a seed, until the end of this process at most; None: another process has it.

    Yields:
        A function to call with the folder of the run. When this process is killed, the next that claims the seed ends
        that run.
    """
    with _opened(results, f"{row}-{seed}") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        file.seek(0)
        if left := file.read():
            product.remove(Path(left))

        def tell(folder: Path | str) -> None:
            file.seek(0)
            file.truncate()
            file.write(str(folder))
            file.flush()

        tell("")
        yield tell
        tell("")


def _opened(results: Path, name: str) -> IO[str]:
    folder = results / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / name).open("a+")
