"""Log lines of all processes of a run, stored on the volume by the manager: pods go, and their logs go with them.

Lines come with reports and are written by a thread, in a batch per role each second. A full disk costs lines, which are
counted, and never the run; lines that come faster than the thread can write cost the oldest waiting ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlctl.spec.base import ROLES
from rlctl_agents.manager.logs.log_files import LogFile, files, hour, line_of
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.storage import append

BATCH_S = 1.0
BATCH_CHARACTERS = 64 * 1024
FILE_BYTES = 16 << 20
"""Bytes of a file, at most; then another file begins."""
ROLE_BYTES = 512 << 20
"""Bytes of all files of one role, at most; the oldest are removed."""
WAITING_CHARACTERS = 16 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """Extent of the lines that have been written."""

    number: int = 0  # number of the newest line
    sizes: Mapping[str, int] = field(default_factory=dict)  # name -> bytes, of the files that are being written


class LogStore:
    """Store of log lines. Thread-safe.

    Args:
        folder: logs/; it exists.
        boot: boot of the manager.
        unix: Unix time in seconds.
        file_bytes, role_bytes, waiting_characters: bounds of a file, of a role's files, and of lines not written yet.
    """

    def __init__(
        self,
        folder: Path,
        boot: str,
        *,
        unix: Callable[[], float] = time.time,
        file_bytes: int = FILE_BYTES,
        role_bytes: int = ROLE_BYTES,
        waiting_characters: int = WAITING_CHARACTERS,
    ) -> None:
        self._folder, self._boot, self._unix = folder, boot[:8], unix
        self._began = int(unix())
        self._file_bytes, self._role_bytes, self._waiting_characters = file_bytes, role_bytes, waiting_characters
        self._turn = threading.Condition()
        self._writing = threading.Lock()
        self._waiting: deque[tuple[str, str]] = deque()  # role, line
        self._characters = 0
        self._stop = False
        self._current: dict[str, LogFile] = {}
        self._sizes: dict[str, int] = {}  # name -> bytes
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self.lost = 0
        """Lines that could not be stored."""
        self.failure = ""
        """Why the newest lines could not be stored; "" if they were."""

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def add(self, role: str, lines: Sequence[str]) -> None:
        """Queue lines of a process of that role, oldest first. Does not block."""
        if role not in ROLES:
            return
        with self._turn:
            for line in lines:
                self._waiting.append((role, line))
                self._characters += len(line)
            while self._characters > self._waiting_characters and self._waiting:
                self._characters -= len(self._waiting.popleft()[1])
                self.lost += 1
            if self._characters >= BATCH_CHARACTERS:
                self._turn.notify()

    def flush(self, lines: Lines | None = None) -> Mark:
        """Write waiting lines. As far as the mark says, the files hold the lines up to its number, and no others.

        Args:
            lines: source of the lines, which numbers them.
        """
        with self._writing:
            waiting, number = (self._take(), 0) if lines is None else lines.frozen(self._take)
            by_role: dict[str, list[str]] = {}
            for role, line in waiting:
                by_role.setdefault(role, []).append(line)
            for role, of_role in by_role.items():
                self._write(role, of_role)
            return Mark(number, dict(self._sizes))

    def close(self) -> None:
        """Write waiting lines, and stop the thread."""
        with self._turn:
            self._stop = True
            self._turn.notify()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._stop or self._characters >= BATCH_CHARACTERS, BATCH_S)
                stop = self._stop
            self.flush()
            if stop:
                return

    def _take(self) -> deque[tuple[str, str]]:
        with self._turn:
            waiting, self._waiting, self._characters = self._waiting, deque(), 0
            return waiting

    def _write(self, role: str, lines: Iterable[str]) -> None:
        now = self._unix()
        left = deque(line_of(role, line, now) for line in lines)
        while left:
            file = self._file_of(role, now, len(left[0]))
            size = self._sizes[file.name]
            batch = [left.popleft()]
            room = self._file_bytes - size - len(batch[0])
            while left and len(left[0]) <= room:
                room -= len(left[0])
                batch.append(left.popleft())
            try:
                with (self._folder / file.name).open("ab", buffering=0) as opened:
                    append(opened, data := b"".join(batch), size)
                self._sizes[file.name] = size + len(data)
            except OSError as error:
                self.lost += len(batch) + len(left)
                if not self.failure:
                    log.error("cannot keep logs: %s", error)
                self.failure = f"cannot write {self._folder / file.name}: {error.strerror}; {self.lost} lines are lost"
                return
            self.failure = ""

    def _file_of(self, role: str, now: float, room: int) -> LogFile:
        """File of a role with so many bytes of room."""
        present = self._current.get(role)
        if present is not None and present.hour == hour(now) and self._sizes[present.name] + room <= self._file_bytes:
            return present
        part = present.part + 1 if present is not None else 0
        file = self._current[role] = LogFile(role, hour(now), self._began, self._boot, part)
        if present is not None:
            del self._sizes[present.name]
        self._sizes[file.name] = 0
        self._trim(role)
        return file

    def _trim(self, role: str) -> None:
        """Remove the oldest files of a role beyond its bound; another manager may be removing them too."""
        with suppress(OSError):
            sized = [(file, _size(self._folder / file.name)) for file in files(self._folder, role)]
            over = sum(size for _, size in sized) + self._file_bytes - self._role_bytes
            for file, size in sized:
                if over <= 0 or file == self._current[role]:
                    return
                over -= size
                with suppress(OSError):
                    (self._folder / file.name).unlink()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
