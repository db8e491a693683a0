"""Unpacking of untrusted tars: their members go below a folder and nowhere else.

`tarfile` has a filter for that from Python 3.11.4 on, and Debian 12 brings 3.11.2.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Final

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
"""Flags that create a file: neither a link nor another file of that name is written to."""


def lay(tar: tarfile.TarFile, member: tarfile.TarInfo, to: Path) -> None:
    """Write one file, folder or link; of its mode only the executable bit is kept.

    Raises:
        ValueError: it leads out of the folder, lies behind a link, or is of another kind.
        OSError: it cannot be written, or there are two of that name.
    """
    parts = PurePosixPath(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise ValueError(f"{member.name} leads out of the folder")
    folder = to
    for part in parts if member.isdir() else parts[:-1]:
        folder /= part
        if folder.is_symlink():
            raise ValueError(f"{member.name} lies behind a link")
        folder.mkdir(exist_ok=True)
    if member.isdir():
        return
    path = folder / parts[-1]
    if member.issym():
        if not _stays(member.linkname, len(parts) - 1):
            raise ValueError(f"{member.name} links to {member.linkname}, which may lead out of the folder")
        path.symlink_to(member.linkname)
    elif member.isreg():
        source = tar.extractfile(member)
        assert source is not None
        with source, os.fdopen(os.open(path, _NEW, 0o755 if member.mode & 0o100 else 0o644), "wb") as file:
            shutil.copyfileobj(source, file)
    else:
        raise ValueError(f"{member.name} is neither file, folder nor link")


def _stays(link: str, depth: int) -> bool:
    """Whether a link at this depth below the folder ends inside it, whatever links it passes.

    `..` is allowed at its beginning alone. The folders that it then passes may be links, which end inside as well; `..`
    behind one of those would start from where that one ends.
    """
    parts = PurePosixPath(link).parts
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and ups <= depth and ".." not in parts[ups:]
