"""Bounded reads of a project's files, which need not be trusted."""

from __future__ import annotations

from pathlib import Path

from rlctl.errors import UsageError


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a whole file; memory never holds more than one byte beyond its limit.

    Args:
        most_bytes: a multiple of 1024.

    Raises:
        UsageError: it is longer; the message has the line at which it exceeds the limit.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        line = found.count(b"\n", 0, most_bytes) + 1
        raise UsageError(f"{path}:{line}: the file goes on beyond {most_bytes >> 10} KiB, and at most that is read")
    return found
