"""Parts too large to be held twice: safetensors files of bytes, written piece by piece and read into place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.checkpoint.parts import (
    FORMAT,
    KEY,
    LENGTH_BYTES,
    TEMPORARY,
    Corrupt,
    NoRoom,
    Part,
    StateError,
    persistently,
    refused,
    require_name,
    sync_folder,
)

LEFT_BYTES = 64 << 20
"""Bytes of the volume that stay free: other processes have to write as well."""
HASHED_BYTES = 1 << 24
"""Bytes that are read at once for a checksum."""


class StreamedPart:
    """A part that is written piece by piece. Whole and on the disk once it is finished, or not there.

    Args:
        folder: an existing folder on one file system.
        name: without folder; the beginning of the checksum is put before its suffix.
        arrays: name -> rows, and bytes of each.
        plain: what JSON can hold; not NaN.

    Raises:
        NoRoom: it would leave less than LEFT_BYTES of the disk.
        PartError: any other refusal of the file system.
        ValueError: the name holds a folder, or `plain` a NaN.
    """

    def __init__(
        self, folder: Path, name: str, arrays: Mapping[str, tuple[int, int]], plain: Mapping[str, Any]
    ) -> None:
        require_name(name)
        self._folder, self._name = folder, name
        self._row_bytes = {one: size for one, (_, size) in arrays.items()}
        header: dict[str, Any] = {
            "__metadata__": {KEY: json.dumps({"format": FORMAT, "plain": dict(plain)}, allow_nan=False)}
        }
        end = 0
        for one, (rows, size) in arrays.items():
            header[one] = {"dtype": "U8", "shape": [rows, size], "data_offsets": [end, end + rows * size]}
            end += rows * size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % LENGTH_BYTES)
        self._begin = LENGTH_BYTES + len(text)
        self._offsets = {one: self._begin + header[one]["data_offsets"][0] for one in arrays}
        self.nbytes = self._begin + end
        self._path = folder / f"{name}{TEMPORARY}{socket.gethostname()}.{os.getpid()}"
        self._file = -1
        with self._or_nothing():
            self._path.unlink(missing_ok=True)  # of a predecessor in a container, with this process's number
            self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            os.ftruncate(self._file, self.nbytes)  # other writers that begin now count it as taken
            free, promised = shutil.disk_usage(folder).free, _promised(folder, but=self._path)
            if free < self.nbytes + LEFT_BYTES + promised:
                raise NoRoom(
                    f"cannot write {folder / name}: {free} bytes are free, it needs {self.nbytes} beside the "
                    f"{LEFT_BYTES} that stay free for others"
                    + (f" and {promised} of parts that are being written" if promised else "")
                )
        self._write(0, len(text).to_bytes(LENGTH_BYTES, "little") + text)

    def put(self, name: str, first: int, values: bytes | memoryview) -> None:
        """Write rows of an array, beginning with row `first`.

        Raises:
            PartError: the file system refuses; nothing half-written stays.
        """
        self._write(self._offsets[name] + first * self._row_bytes[name], values)

    def finish(self) -> Part:
        """Sync the file and rename it into place, once everything has been put; returns the part.

        Raises:
            PartError: the file system refuses; nothing half-written stays.
        """
        with self._or_nothing():
            os.fsync(self._file)
            os.lseek(self._file, 0, os.SEEK_SET)
            digest = hashlib.sha256()
            while data := os.read(self._file, HASHED_BYTES):
                digest.update(data)
            sha256 = digest.hexdigest()
            final = self._folder / f"{Path(self._name).stem}-{sha256[:12]}{Path(self._name).suffix}"
            self._path.replace(final)
            sync_folder(self._folder)
        self._close()
        return Part(final.name, sha256)

    def abandon(self) -> None:
        """Remove what was written."""
        self._close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _write(self, offset: int, data: bytes | memoryview) -> None:
        left = memoryview(data).cast("B")
        with self._or_nothing():
            while left:
                written = os.pwrite(self._file, left, offset)
                left, offset = left[written:], offset + written

    @contextlib.contextmanager
    def _or_nothing(self) -> Any:
        try:
            with refused(self._path, self.nbytes):
                yield
        except BaseException:
            self.abandon()
            raise

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _promised(folder: Path, *, but: Path) -> int:
    """Bytes that unfinished parts in a folder will take, and do not take yet."""
    found = 0
    for path in folder.glob(f"*{TEMPORARY}*"):
        with contextlib.suppress(FileNotFoundError):  # it is whole by now, or was given up
            told = path.lstat()
            found += 0 if path == but else max(0, told.st_size - 512 * told.st_blocks)
    return found


class StoredArrays:
    """Arrays and plain data of a streamed part, read where they are wanted: not mapped, so that a volume that fails is
    an error and not the end of the process. Closed by the caller that made it.

    Raises:
        Corrupt: missing, cut short or changed.
        PartError: the file system refuses.
        StateError: it holds no such arrays.
        ValueError: the name holds a folder.
    """

    def __init__(self, folder: Path, file: str, sha256: str) -> None:
        require_name(file)
        self._path = folder / file
        persistently(self._path, lambda: self._open(sha256))

    def _open(self, sha256: str) -> None:
        self._file = self._path.open("rb", buffering=0)
        try:
            self._read_header(sha256)
        except BaseException:
            self.close()
            raise

    def _read_header(self, sha256: str) -> None:
        try:
            found = hashlib.file_digest(self._file, "sha256").hexdigest()
            if found != sha256:
                raise Corrupt(f"{self._path} is damaged: its sha256 is {found[:12]}, not {sha256[:12]}")
            self._file.seek(0)
            length = int.from_bytes(self._file.read(LENGTH_BYTES), "little")
            header = json.loads(self._file.read(length))
            stored = json.loads(header.pop("__metadata__")[KEY])
            number, plain = stored["format"], dict(stored["plain"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{self._path} holds no stored arrays: {error}") from error
        if number != FORMAT:
            raise StateError(f"{self._path}: stored in format {number}; this release reads format {FORMAT}")
        self.plain: dict[str, Any] = plain
        self._begin = LENGTH_BYTES + length
        self._header = header

    def close(self) -> None:
        """Close the file; nothing is read afterwards."""
        self._file.close()

    def rows(self, name: str) -> StoredRows:
        """Rows of an array.

        Raises:
            StateError: there is no such array.
        """
        if name not in self._header:
            raise StateError(f"{self._path} holds no {name}")
        rows, size = self._header[name]["shape"]
        return StoredRows(self._file, self._path, self._begin + self._header[name]["data_offsets"][0], (rows, size))


class StoredRows:
    """Rows of an array of bytes in a file.

    Attributes:
        shape: rows, and bytes of each.
    """

    def __init__(self, file: FileIO, path: Path, offset: int, shape: tuple[int, int]) -> None:
        self._file, self._path, self._offset, self.shape = file, path, offset, shape

    def read(self, first: int, out: NDArray[np.uint8]) -> None:
        """Read rows, beginning with row `first`, as many as `out` has room for.

        Args:
            out: [rows, bytes of each], contiguous.

        Raises:
            Corrupt: the file ends before.
            PartError: the file system refuses.
        """
        assert out.flags.c_contiguous, "what is read goes into the array itself"
        persistently(self._path, lambda: self._read(self._offset + first * self.shape[1], out.reshape(-1).data))

    def _read(self, offset: int, left: memoryview) -> None:
        try:
            self._file.seek(offset)
            while left:
                if not (count := self._file.readinto(left)):
                    raise Corrupt(f"{self._path} is cut short")
                left = left[count:]
        except OSError:
            with contextlib.suppress(OSError):  # a stale handle stays stale
                fresh = os.open(self._path, os.O_RDONLY)
                os.dup2(fresh, self._file.fileno())
                os.close(fresh)
            raise

    def all(self) -> NDArray[np.uint8]:
        """Copy of all rows."""
        return self.take(np.arange(self.shape[0]))

    def take(self, at: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Copy of the rows at these indices: one read for each run of consecutive ones."""
        found = np.empty((at.size, self.shape[1]), np.uint8)
        runs = np.flatnonzero(np.diff(at) != 1) + 1
        for first, end in zip([0, *runs.tolist()], [*runs.tolist(), at.size], strict=True):
            if end > first:
                self.read(int(at[first]), found[first:end])
        return found
