"""Files that are whole or not there, and survive a power cut when they must."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # of a file system without hard links


def replace_file(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put a file in place by rename: readers see the old one or the new one.

    Args:
        durable: it is on the disk when this returns.

    Raises:
        OSError: it cannot be written; the old one is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def create_file(path: Path, data: bytes) -> bool:
    """Put a file in place, durably, unless there is one of that name; False when there is.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Names in a folder survive a power cut from now on.

    Raises:
        OSError: the file system refuses.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path) -> bytes | None:
    """All of a file; None when there is none.

    Raises:
        OSError: it is there and cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
