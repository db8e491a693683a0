"""File writes that survive a kill and a full disk: written aside, then renamed; errors name the file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlctl.errors import BackendUnreachable, Refused, UsageError
from rlctl.spec.layout import state_home

_HINTS = {
    errno.ENOSPC: "Free some space, then run the same command again.",
    errno.EDQUOT: "Your quota is used up: free some space, then run the same command again.",
    errno.EACCES: "Change its owner or mode, or set storage.path to a folder of your own.",
    errno.EPERM: "Change its owner or mode, or set storage.path to a folder of your own.",
    errno.EISDIR: "A folder lies where a file has to be: move it away.",
    errno.EROFS: "Set storage.path to a folder on a file system that can be written.",
}

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn an OSError inside the block into an error for the user: `what`, the file, and why.

    Raises:
        BackendUnreachable: instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise unusable(what, error) from error


def unusable(what: str, error: OSError) -> BackendUnreachable:
    """The error for a failed `what`, in one sentence with the file and the reason; the hint says what to do."""
    file = f"{error.filename}: " if error.filename else ""
    why = error.strerror or str(error) or type(error).__name__
    hint = _HINTS.get(error.errno or 0, "")
    if "storage.path" in hint and error.filename and _at_home(os.fsdecode(error.filename)):
        hint = "Change its owner or mode, or set XDG_STATE_HOME to a folder of your own that can be written."
    return BackendUnreachable(f"{what}: {file}{why}", hint=hint)


def _at_home(file: str) -> bool:
    """Whether a file lies in the state folder of this user, as index, locks and records of sweeps do."""
    with suppress(UsageError):  # this user has none
        return Path(file).is_relative_to(state_home())
    return False


@contextmanager
def writing(path: Path, hint: str = "name another place") -> Iterator[None]:
    """Like `reported`, for a file or folder that the user names: the fault lies in the command line.

    Raises:
        UsageError: instead of any OSError.
        BackendUnreachable: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise unusable(f"cannot write {path}", error) from error
        file = f"{error.filename}: " if error.filename not in (None, str(path)) else ""
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot write {path}: {file}{why}", hint=hint) from error


def write(path: Path, text: str) -> None:
    """Replace a file atomically: a reader, also after a kill, sees the old text or the new one.

    Raises:
        OSError: it cannot be written; the old file is untouched.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is reported by write(2), which knows no name
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_changed(path: Path, text: str) -> bool:
    """Write unless the file already holds this text; returns whether it wrote."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    write(path, text)
    return True


def copy_policy(folder: Path, to: Path) -> None:
    """Copy the policy that `rlctl pull` has written to a new folder, atomically.

    Raises:
        BackendUnreachable: a file cannot be read or written.
    """
    with reported(f"cannot copy {folder}"):
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as unfinished:
            made = Path(unfinished) / "policy"
            made.mkdir(mode=0o700)
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.name in POLICY_FILES:
                    shutil.copyfile(path, made / path.name)
            made.rename(to)


POLICY_FILES = ("policy.json", "policy.safetensors", "run.json")
"""Files of a folder that `rlctl pull` writes."""
RESERVE = "reserve"
_RESERVE_BYTES = 64 * 1024


def reserve(folder: Path) -> None:
    """Reserve disk space for the last records of a run."""
    path = folder / RESERVE
    if not path.exists():
        write(path, "\0" * _RESERVE_BYTES)


def write_at_last(folder: Path, writing: Callable[[], object]) -> None:
    """Write a record that must not be lost, once nothing of the run writes any more; on a full disk, in its reserve.

    Raises:
        OSError: it cannot be written even then.
    """
    try:
        writing()
    except OSError:
        (folder / RESERVE).unlink(missing_ok=True)
        writing()


def remove_asides(folder: Path) -> None:
    """Remove temporary files of killed writers. Not every live writer holds a lock, so the pid in the name decides."""
    for aside in folder.glob(".*.tmp"):
        if not Path("/proc", aside.name.split(".")[-2]).exists():  # its writer
            aside.unlink(missing_ok=True)


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def read_json(path: Path, what: str) -> dict[str, Any] | None:
    """The object in a JSON file, or None when there is no file.

    Args:
        what: what it should hold, for the message: "the state of run cartpole".

    Raises:
        BackendUnreachable: it cannot be read, or holds something else.
    """
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unusable(f"cannot read {what}", error) from error
    except (ValueError, RecursionError) as error:
        raise broken(path, what, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise broken(path, what, "not a JSON object")
    return value


def broken(path: Path, what: str, why: str) -> BackendUnreachable:
    """The error for a torn or foreign file."""
    return BackendUnreachable(
        f"{path} does not hold {what}: {why}",
        hint="Another program wrote it, or the disk was full. Move it away; what the run learned lies beside it.",
        objects=(str(path),),
    )


def link_or_copy(made: Path, file: Path) -> None:
    """Link a finished file to a free name; copy it on file systems without hard links (exFAT, many of FUSE).

    Raises:
        OSError: the name is not free, or cannot be written.
    """
    try:
        os.link(made, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with made.open("rb") as source, file.open("xb") as target:
            try:
                shutil.copyfileobj(source, target)
            except BaseException:
                file.unlink(missing_ok=True)
                raise


def require_free(file: Path, *, force: bool) -> None:
    """Check that a file may be written at a path that the user names.

    Args:
        file: its path.
        force: allow an existing file to be overwritten.

    Raises:
        Refused: a folder is there, or a file that may not be overwritten.
    """
    folder = os.path.isdir(file)  # unlike Path.is_dir, False as well for what cannot be looked at
    if folder or (not force and os.path.lexists(file)):
        hint = "name another file" + ", or overwrite with --force" * (not folder)
        raise Refused(f"{file} is there, and is not overwritten", hint=hint)
