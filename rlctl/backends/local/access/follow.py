"""Follower of one log file, over rotations."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from rlctl.backends.base import LogRecord
from rlctl.backends.local.access.logfiles import rotations, shortened
from rlctl.backends.local.names import shown
from rlctl.backends.records.entries import Entry, Grouper, Parser

_MOST_BYTES = 1 << 22
"""Bytes read per poll, at most: the rest of a flood comes with the next poll."""


class Follower:
    """Reader of the new output of one process since the last poll.

    Args:
        inode, position: where earlier reading ended; 0, 0: the file is new, from its beginning.
    """

    def __init__(self, logs: Path, name: str, inode: int = 0, position: int = 0) -> None:
        self._path = logs / f"{name}.log"
        self._file: BinaryIO | None = None
        self._start = (inode, position)
        self._partial = b""
        self._grouper = Grouper()
        self._parser = Parser(shown(name), lambda: datetime.now(UTC))

    def records(self, maybe: Callable[[Entry], bool], *, last: bool) -> list[LogRecord]:
        """Complete records since the last call.

        Args:
            maybe: False for an entry that is certainly not wanted; it is not parsed.
            last: no more output will come: return incomplete records too.
        """
        lines = self._lines()
        fresh = [entry for line in lines for entry in self._grouper.add(line)]
        if last and self._partial:
            fresh += self._grouper.add(self._partial)
            self._partial = b""
        if not lines or last:  # a traceback is complete when nothing follows it
            fresh += self._grouper.flush()
        found = []
        for entry in fresh:
            self._parser.see(entry)
            if maybe(entry):
                found.append(self._parser.parse(entry))
        return found

    def _lines(self) -> list[bytes]:
        data = b""
        if self._file is None:
            self._open_first()
        while self._file is not None:
            data += self._file.read(_MOST_BYTES)
            if len(data) >= _MOST_BYTES or not self._rotated():
                break
            data += self._file.read(_MOST_BYTES)  # written between reading and rotating
            done, self._file = self._file, self._after(os.fstat(self._file.fileno()).st_ino)
            done.close()
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = shortened(self._partial)
        return [shortened(line.rstrip(b"\r")) for line in lines]

    def _open_first(self) -> None:
        inode, position = self._start
        paths = [self._path] if not inode else reversed(rotations(self._path))
        for path in paths:
            file = self._open(path)
            if file is not None and inode in (0, os.fstat(file.fileno()).st_ino):
                file.seek(position)
                self._file = file
                return
            if file is not None:
                file.close()
        self._start = (0, 0)  # rotated away: the present file from its beginning, at the next poll

    def _after(self, inode: int) -> BinaryIO | None:
        """Open the file that was begun after one; where that is gone, the oldest that is left."""
        oldest: BinaryIO | None = None
        for path in rotations(self._path):
            file = self._open(path)
            if file is None:
                continue
            if os.fstat(file.fileno()).st_ino == inode:  # those before it were read
                file.close()
                if oldest is not None:
                    oldest.close()
                oldest = None
            elif oldest is None:
                oldest = file
            else:
                file.close()
        return oldest

    def _open(self, path: Path) -> BinaryIO | None:
        try:
            return path.open("rb", buffering=0)
        except FileNotFoundError:
            return None

    def _rotated(self) -> bool:
        assert self._file is not None
        ours = os.fstat(self._file.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if there.st_ino == ours.st_ino and ours.st_size < self._file.tell():
            self._file.seek(0)  # cut short in place
        return there.st_ino != ours.st_ino

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
