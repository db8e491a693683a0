"""One SQLite file, a connection for each thread, and transactions whose errors say what failed."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rlctl_ci.core.errors import Busy, CiError
from rlctl_ci.store.schema import MIGRATIONS

BUSY_TIMEOUT_S: Final = 5.0
ROOM_BYTES: Final = 1 << 20
"""Free bytes below which the disk counts as full: the database may have room in its own files when nothing else has."""
_DAMAGED: Final = (
    "stop the service, then restore a copy of the file or save what `sqlite3 ci.db .recover` reads; moved away with its"
    " -wal and -shm, it is begun anew, without builds, pins and tokens"
)
_SHARED: Final = ("nfs", "cifs", "smb", "9p", "fuse.", "ceph", "lustre", "glusterfs")
"""Filesystems on which SQLite's locks, or its memory-mapped index, cannot be relied on."""


class Database:
    """The SQLite file, migrated to the current schema when it is opened.

    Args:
        path: created when it is not there; on a local disk.
        mounts: where the kernel lists filesystems.
        synced: commits survive a power cut, not only a crash of this process; for tests False.

    Raises:
        CiError: the filesystem is a shared one, or the file was written by a newer release, or is damaged.
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
        self._connections: set[sqlite3.Connection] = set()
        self._writing = threading.Lock()
        self._migrate()

    def connection(self) -> sqlite3.Connection:
        """Connection of this thread; closed when the thread has ended.

        Raises:
            Busy: it cannot be opened.
        """
        held: _Held | None = getattr(self._local, "held", None)
        if held is None:
            with self._in_words("opened"):
                held = _Held(self._opened())
            self._connections.add(held.connection)
            weakref.finalize(held, _close, held.connection, self._connections).atexit = False
            self._local.held = held
        return held.connection

    def _opened(self) -> sqlite3.Connection:
        found = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA journal_mode=WAL")
            found.execute(f"PRAGMA synchronous={'FULL' if self._synced else 'OFF'}")
            found.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error:
            found.close()
            raise
        return found

    def read(self, statement: str, *values: Any) -> list[Any]:
        """Rows of a query.

        Raises:
            Busy: they cannot be read.
        """
        with self._in_words("read"):
            return self.connection().execute(statement, values).fetchall()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Transaction around a block; inside another one, a part of that.

        Raises:
            Busy: another connection writes for too long, or the disk is full.
        """
        connection = self.connection()
        if connection.in_transaction:
            yield connection
            return
        with self._writing:  # a lock: SQLite itself waits by sleeps that grow, and not fairly
            yield from self._transaction(connection)

    def _transaction(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        with self._in_words("written"):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def check(self) -> None:
        """Check that the database can be written.

        Raises:
            Busy: the database cannot be written, or no file of ROOM_BYTES beside it.
        """
        with self.write() as db:
            (version,) = db.execute("PRAGMA user_version").fetchone()  # a newer release may have migrated it meanwhile
            db.execute(f"PRAGMA user_version={version}")  # a transaction that changes nothing writes nothing
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as file:
                file.write(bytes(ROOM_BYTES))
        except OSError as error:
            raise Busy(f"{self.path.parent} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the connections of all threads; none may use its own any more."""
        for connection in list(self._connections):
            _close(connection, self._connections)
        self._local = threading.local()

    @contextmanager
    def _in_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise Busy(f"the database cannot be {what}: {error}") from error
            if type(error) is not sqlite3.DatabaseError:
                raise
            raise Busy(f"{self.path} is damaged, and cannot be {what}: {error}", hint=_DAMAGED) from error

    def _migrate(self) -> None:
        ((version,),) = self.read("PRAGMA user_version")
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


class _Held:
    """Holder of a thread's connection: it is finalized when the thread ends; a connection cannot be watched itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection


def _close(connection: sqlite3.Connection, connections: set[sqlite3.Connection]) -> None:
    connections.discard(connection)
    connection.close()


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
