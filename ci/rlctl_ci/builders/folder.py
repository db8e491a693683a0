"""Builder for a local target: a commit's code in a folder named by its content, from which the roles import it."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl.images.code import CodeArchive
from rlctl_ci.builders.child import Reader, read
from rlctl_ci.builders.provenance import statement
from rlctl_ci.core.build_attempt import Job, Stop
from rlctl_ci.core.errors import BuildStopped
from rlctl_ci.git.tars import lay
from rlctl_ci.sandbox.locks import held
from rlctl_ci.store.records import Artifact


@dataclass(frozen=True, slots=True)
class Folder:
    """`ArtifactBuilder` of code folders. Nothing is executed; equal content is the same folder, whichever commit it
    comes from.

    Args:
        store: holds the folders; they stay for as long as a run's history needs them.
        read: reads the commit.
    """

    store: Path
    read: Reader = read

    def make(self, job: Job, source: Path) -> CodeArchive | None:
        found = self.read(job, source, "code").code
        if found is not None:
            job.say(f"code: {found.files} files, {found.size / 1e6:.1f} MB")
            if found.requirements is not None:
                job.say("note: requirements are not installed on this machine; rlctl only names what is missing")
        return found

    def push(self, job: Job, made: Any) -> Sequence[Artifact]:
        if made is None:
            return []
        folder = self.store / made.digest
        self.store.mkdir(parents=True, exist_ok=True)
        with held(self.store / ".lock", job.stop):
            for left in self.store.glob(".*.part"):  # left by killed builds: the lock excludes any other
                remove(left)
            if not folder.is_dir():
                self._lay(made, folder, job.stop)
            artifact = Artifact("code", str(folder), bytes=made.size)
            proof = folder.with_name(f"{made.digest}.provenance.json")
            about = statement(job, [(artifact.reference, f"sha256:{made.digest}")], {})
            proof.write_text(json.dumps(about, indent=2) + "\n")
        return [artifact]

    def _lay(self, made: CodeArchive, folder: Path, stop: Stop) -> None:
        part = self.store / f".{made.digest}.part"
        part.mkdir(mode=0o700)
        try:
            with tarfile.open(made.archive, "r:") as tar:
                for member in tar:
                    stop()
                    lay(tar, member, part)
        except (tarfile.TarError, OSError, ValueError) as error:
            remove(part)
            raise BuildStopped("code", f"the code cannot be unpacked: {error}") from error
        for path in (*part.rglob("*"), part):
            if not path.is_symlink():
                path.chmod(0o500 if path.is_dir() or path.stat().st_mode & 0o100 else 0o400)
        for path in (*part.rglob("*"), part):  # a power cut must not leave a folder of that name with empty files
            if not path.is_symlink():
                _sync(path)
        os.rename(part, folder)
        _sync(self.store)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder of code, complete or partial; what is in it is read-only."""
    for path in (folder, *(each for each in folder.rglob("*") if each.is_dir() and not each.is_symlink())):
        path.chmod(0o700)
    shutil.rmtree(folder)
