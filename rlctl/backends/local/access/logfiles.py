"""Log files of one process, over rotations, read in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from rlctl.backends.records.entries import TIMESTAMP

LONGEST_LINE = 1 << 20
"""Bytes of a line, at most; of a longer one the middle is dropped: it may be text that ends with a record."""
_BLOCK = 1 << 16


def rotations(path: Path) -> list[Path]:
    """All files of one log, oldest first: actor-3.log.2, actor-3.log.1, actor-3.log."""
    numbered = []
    for other in path.parent.glob(f"{path.name}.*"):
        if other.suffix[1:].isdigit():
            numbered.append((int(other.suffix[1:]), other))
    return [other for _, other in sorted(numbered, reverse=True)] + ([path] if path.exists() else [])


def shortened(line: bytes) -> bytes:
    """A line of at most LONGEST_LINE bytes; of a longer one its beginning and its end."""
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else line[:half] + line[-half:]


def read_lines(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    """Lines without their ends, up to position `end`, each shortened."""
    position = file.tell()
    while end is None or position < end:
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        found = line
        position += len(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
            position += len(line)
            found = shortened(found + line)
        yield found.rstrip(b"\r\n")


def complete_size(path: Path) -> int:
    """Bytes of a file up to and including its last line end: the rest is still being written."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        position = size
        while position > 0:
            start = max(0, position - _BLOCK)
            file.seek(start)
            found = file.read(position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position = start
    return 0


def first_time(path: Path) -> datetime:
    """The time of the first JSON line near the beginning of a file, else the file's modification time."""
    with path.open("rb") as file:
        found = TIMESTAMP.search(file.read(_BLOCK))
        if found is not None:
            try:
                return datetime.fromisoformat(found[1].decode())
            except ValueError:
                pass
        return datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
