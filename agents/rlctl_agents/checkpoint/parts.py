"""Parts of a checkpoint: immutable files, whole or absent, named by policy, generation, content and checksum."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

LEARNER = "learner"
"""Name of the part that holds a learner."""
SHARD = "replay"
"""Name of the part that holds a shard of the replay, before its number."""
POLICY = "policy"
"""Name of the part that describes the tensors."""

_NAME = re.compile(r"(.+)-([0-9]{6,})-[a-z]+[0-9]*-[0-9a-f]{12}\.(?:safetensors|json)")
_HALF = re.compile(r"(.+)-([0-9]{6,})-[a-z]+[0-9]*(?:-[0-9a-f]{12})?\.(?:safetensors|json)\.tmp\..+")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEMPORARY = ".tmp."
"""Mark in the names of files that are being written."""
READS, READ_AGAIN_S = 180, 1.0
"""Attempts to read a part that the file system does not give at present, and the seconds between two."""
AT_PRESENT = (
    errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENOTCONN, errno.ECONNRESET, errno.ECONNREFUSED,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.EREMOTEIO, errno.EBUSY,
)  # fmt: skip
"""Errors that pass by themselves; others, such as missing rights, do not."""
WAY_OUT = "look at the volume; with that file moved away, the newest generation before it is read"
"""Remedy for a part of a generation that cannot be read."""

T = TypeVar("T")

log = logging.getLogger(__name__)


FORMAT = 1
KEY = "rlctl"
"""Key of the plain data in the header of a safetensors file, as JSON with its FORMAT."""
LENGTH_BYTES = 8
"""Bytes before that header that hold its length."""


class StateError(ValueError):
    """Bytes that hold no state, or one of another format."""


class PartError(Exception):
    """A part could not be written or read; the text names the file and the reason."""


class NoRoom(PartError):
    """The volume, or this user's quota of it, is full. Nothing half-written stays."""


class Corrupt(PartError):
    """The part is missing, or its bytes are not those that were written."""


class Part(NamedTuple):
    """A file below the folder of checkpoints."""

    file: str
    sha256: str  # 64 hex digits


def name_of(policy: str, number: int, part: str, suffix: str = "safetensors") -> str:
    """Name of a part of a generation, before its checksum is known.

    Args:
        part: one word, and perhaps a number: what the file holds.
        suffix: of the file, "safetensors" or "json".

    Example:
        `name_of("main", 7, "learner")` is `main-000007-learner.safetensors`.
    """
    return f"{policy}-{number:06d}-{part}.{suffix}"


def generation_of(file: str) -> tuple[str, int] | None:
    """Policy and number of the generation that a part was written for; None: not a file of that kind.

    Example:
        `generation_of("main-000007-learner-e3b0c44298fc.safetensors")` is `("main", 7)`.
    """
    found = _NAME.fullmatch(file)
    return (found[1], int(found[2])) if found else None


def begun_for(file: str) -> tuple[str, int] | None:
    """Policy and number of the generation that a half-written part is meant for; None: not a file of that kind.

    Example:
        `begun_for("main-000007-replay0.safetensors.tmp.replay-0.1")` is `("main", 7)`.
    """
    found = _HALF.fullmatch(file)
    return (found[1], int(found[2])) if found else None


def write_part(folder: Path, name: str, data: bytes | memoryview) -> Part:
    """Write a part so that it is either whole and on the disk, or not there.

    The bytes go to a temporary file beside it, to the disk, and into place by rename.

    Args:
        folder: an existing folder on one file system.
        name: without folder; the beginning of the checksum is put before its suffix.

    Raises:
        NoRoom: the disk is full.
        PartError: any other refusal of the file system.
        ValueError: the name holds a folder.

    Example:
        `write_part(folder, "main-7-learner.safetensors", b"")` is `main-7-learner-e3b0c44298fc.safetensors`.
    """
    require_name(name)
    sha256 = hashlib.sha256(data).hexdigest()
    final = folder / f"{Path(name).stem}-{sha256[:12]}{Path(name).suffix}"
    temporary = folder / f"{final.name}{TEMPORARY}{socket.gethostname()}.{os.getpid()}"
    with refused(final, len(data)):
        try:
            with temporary.open("xb", buffering=0) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            temporary.replace(final)
            sync_folder(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    return Part(final.name, sha256)


@contextlib.contextmanager
def refused(path: Path, size: int) -> Iterator[None]:
    """Turn a refusal of the file system inside the block into an error of a part.

    Raises:
        NoRoom: the disk is full.
        PartError: any other refusal of the file system.
    """
    try:
        yield
    except OSError as error:
        kind = NoRoom if error.errno in _NO_ROOM else PartError
        raise kind(f"cannot write {path} ({size} bytes): {error.strerror}") from error


def persistently(path: Path, read: Callable[[], T]) -> T:
    """Read a part with `read`, again for minutes where an NFS server that comes back does not give it yet.

    Raises:
        Corrupt: it is missing.
        PartError: the file system refuses.
    """
    for left in reversed(range(READS)):
        try:
            return read()
        except FileNotFoundError as error:
            raise Corrupt(f"{path} is missing") from error
        except OSError as error:
            if not left or error.errno not in AT_PRESENT:
                raise PartError(f"cannot read {path}: {error.strerror}") from error
            if left == READS - 1:
                log.warning("cannot read %s: %s; trying again for %g s", path, error.strerror, left * READ_AGAIN_S)
        time.sleep(READ_AGAIN_S)
    raise AssertionError("it is read at least once")


def read_part(folder: Path, file: str, sha256: str) -> bytes:
    """The bytes of a part, checked.

    Raises:
        Corrupt: missing, cut short or changed.
        PartError: the file system refuses.
        ValueError: the name holds a folder.
    """
    require_name(file)
    data = persistently(folder / file, (folder / file).read_bytes)
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise Corrupt(f"{folder / file} is damaged: {len(data)} bytes have sha256 {found[:12]}, not {sha256[:12]}")
    return data


def remove_leftovers(folder: Path) -> int:
    """Remove half-written parts of dead processes of this host, before this one writes; returns how many files."""
    removed = 0
    for path in folder.glob(f"*{TEMPORARY}{socket.gethostname()}.*"):
        pid = path.name.rpartition(".")[2]
        # a predecessor in a container had this process's number: each is process 1
        if pid.isdigit() and (int(pid) == os.getpid() or not _alive(int(pid))):
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
    return removed


def require_name(name: str) -> None:
    """Check that the name of a part has no folder.

    Raises:
        ValueError: it has.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise ValueError(f"the name of a part is a plain file name, got {name!r}")


def sync_folder(folder: Path) -> None:
    """Sync a folder: its names survive a power cut from now on.

    Raises:
        OSError: the file system refuses.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
