"""One SQLite file, a connection for each thread, and transactions that say what they could not do."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rlctl_ci.errors import Busy, CiError
from rlctl_ci.store.schema import MIGRATIONS

BUSY_TIMEOUT_S: Final = 5.0
_SHARED: Final = ("nfs", "cifs", "smb", "9p", "fuse.", "ceph", "lustre", "glusterfs")
"""Filesystems on which SQLite's locks, or its memory-mapped index, cannot be relied on."""


class Database:
    """A file of our tables, brought to the present version when it is opened.

    Args:
        path: created when it is not there; on a local disk.
        mounts: where the kernel lists filesystems.
        synced: what is committed survives a power cut, not only the death of this process; for tests False.

    Raises:
        CiError: the disk is shared, or the file is of a newer release.
    """

    def __init__(self, path: Path, mounts: Path = Path("/proc/self/mounts"), *, synced: bool = True) -> None:
        self.path = path
        self._synced = synced
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = filesystem(path.parent, mounts)
        if kind.startswith(_SHARED):
            raise CiError(
                f"{path.parent} lies on {kind}; the database needs a local disk", hint="choose another `state:`"
            )
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        self._migrate()

    def connection(self) -> sqlite3.Connection:
        """This thread's."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA journal_mode=WAL")
            found.execute(f"PRAGMA synchronous={'FULL' if self._synced else 'OFF'}")
            found.execute("PRAGMA foreign_keys=ON")
            self._local.connection = found
            with self._guard:
                self._connections.append(found)
        return found

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """All of the block, or nothing of it; inside another one, a part of that.

        Raises:
            Busy: somebody else writes for too long, or the disk is full.
        """
        connection = self.connection()
        if connection.in_transaction:
            yield connection
            return
        with self._writing:  # a queue: SQLite's own waiting is a sleep that grows, and fair to nobody
            yield from self._transaction(connection)

    def _transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Busy(f"the database cannot be written: {error}") from error
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise Busy(f"the database cannot be written: {error}") from error
            raise

    def check(self) -> None:
        """
        Raises:
            Busy: it cannot be written.
        """
        with self.write() as db:
            db.execute("PRAGMA user_version").fetchone()

    def close(self) -> None:
        """Every thread's connection; nobody may use them any more."""
        with self._guard:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
        self._local = threading.local()

    def _migrate(self) -> None:
        connection = self.connection()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise CiError(
                f"{self.path} was written by a newer rlctl (tables {version}, this one knows {len(MIGRATIONS)})",
                hint="use that release",
            )
        for number in range(version, len(MIGRATIONS)):
            with self.write() as open_:
                if open_.execute("PRAGMA user_version").fetchone()[0] != number:
                    continue  # another process was faster
                for statement in filter(str.strip, MIGRATIONS[number].split(";")):
                    open_.execute(statement)
                open_.execute(f"PRAGMA user_version={number + 1}")


def filesystem(folder: Path, mounts: Path) -> str:
    """The kind of filesystem that a folder lies on; empty when the kernel does not say."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    resolved = folder.resolve()
    for line in lines:
        fields = line.split(" ")
        if len(fields) > 2:
            point = fields[1].replace("\\040", " ")
            if resolved.is_relative_to(point) and len(point) >= best:
                best, kind = len(point), fields[2]
    return kind
