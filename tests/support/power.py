"""A disk that can lose its power: what was written and not synced is gone, and so is a name in a folder not synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


class Disk:
    """Follows what one process syncs, links and renames below a folder.

    The model is the weakest that POSIX allows: the bytes of a file are kept as they were at its last fsync, and a name
    (made, replaced or removed) is kept as it was at the last fsync of its folder.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._bytes: dict[int, bytes] = {}  # inode -> what is on the disk
        self._names: dict[Path, dict[str, int]] = {}  # folder -> name -> inode, as on the disk
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                self._keep_names(path)
            elif path.is_file():
                self._bytes[path.stat().st_ino] = path.read_bytes()
        fsync = os.fsync

        def synced(handle: int) -> None:
            fsync(handle)
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path.is_dir():
                self._keep_names(path)
            else:
                self._bytes[os.fstat(handle).st_ino] = path.read_bytes()

        patch.setattr(os, "fsync", synced)

    def _keep_names(self, folder: Path) -> None:
        self._names[folder] = {entry.name: entry.inode() for entry in os.scandir(folder)}

    def lose_power(self, to: Path) -> Path:
        """Write what a reboot would find into a new folder, and return that."""
        shutil.rmtree(to, ignore_errors=True)
        for folder, names in self._names.items():
            there = to / folder.relative_to(self._folder)
            if folder == self._folder or folder.is_dir():
                there.mkdir(parents=True, exist_ok=True)
            for name, inode in names.items():
                if not (folder / name).is_dir():
                    (there / name).write_bytes(self._bytes.get(inode, b""))
        return to
