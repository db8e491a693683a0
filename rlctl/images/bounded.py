"""Files of a project that are read whole: they have an end, wherever they come from."""

from __future__ import annotations

from pathlib import Path

from rlctl.errors import UsageError


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a file, and never more than one byte beyond its limit in memory.

    Args:
        most_bytes: a multiple of 1024.

    Raises:
        UsageError: it is longer; with the line in which it passes the limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        line = found.count(b"\n", 0, most_bytes) + 1
        raise UsageError(f"{path}:{line}: the file goes on beyond {most_bytes >> 10} KiB, and at most that is read")
    return found
