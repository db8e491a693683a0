"""User code as one layer over a published image: equal content has an equal tag, on every machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from rlctl.errors import UsageError
from rlctl.image_names import Reference
from rlctl.images.bounded import read_bounded
from rlctl.images.builders.base import OVERLAY_MARK
from rlctl.images.ignore import Ignore
from rlctl.images.sbom import FILE

UID: Final = 10001
"""User id that every role runs as; see the Dockerfiles."""
FOLDER: Final = "/code"
BASE_LABEL: Final = "dev.rlctl.base"
"""Label of an image with code: its base image."""
MAX_BYTES: Final = 1 << 30
PART: Final = 1 << 20
"""Bytes held in memory at once."""
NEVER: Final = frozenset({".git", "__pycache__", ".venv"})
IGNORE_FILE: Final = ".dockerignore"
MAX_REQUIREMENTS: Final = 1 << 20
"""Bytes of requirements, at most: thousands of packages, with hashes."""
_MARK: Final = OVERLAY_MARK.encode()
PATCHES: Final = "templates/*.patch.yaml"
"""Patches of documents, which rlctl renders; in the image, a change would restart roles that it does not concern."""


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """Archive of the user's code, which is laid over a base."""

    archive: Path = field(compare=False)  # a tar, the same for the same content
    digest: str  # of the archive, sha256 in hex
    size: int  # of the archive, bytes
    requirements: bytes | None
    files: int

    def tag(self, base: str) -> str:
        """Tag `code-<hash12>`: hash of all that is in the image.

        Args:
            base: reference of the base; by digest if the tag is to mean the same everywhere.
        """
        seen = hashlib.sha256()
        for part in (base.encode(), self.requirements or b""):
            seen.update(len(part).to_bytes(8, "big") + part)
        seen.update(self.size.to_bytes(8, "big"))
        with self.archive.open("rb") as file:
            while part := file.read(PART):
                seen.update(part)
        return f"code-{seen.hexdigest()[:12]}"


class Sink:
    """File object for tarfile to write to: forwards every part, and knows size and digest.

    Args:
        write: called with every part.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write, self._size, self._seen = write, 0, hashlib.sha256()

    def write(self, part: bytes) -> int:
        self._write(part)
        self._seen.update(part)
        self._size += len(part)
        return len(part)

    def tell(self) -> int:
        return self._size

    @property
    def digest(self) -> str:
        """sha256 in hex."""
        return self._seen.hexdigest()


def tar_into(sink: Sink) -> tarfile.TarFile:
    """Open a tar for writing, in the format of all of ours."""
    return tarfile.open(fileobj=cast(IO[bytes], sink), mode="w", format=tarfile.PAX_FORMAT)


def collect(folder: Path, requirements: Path | None = None, *, into: Path, without: Iterable[Path] = ()) -> CodeArchive:
    """Pack a project into an archive; it is streamed, not held in memory.

    Args:
        folder: folder of `code.path`.
        requirements: requirements file of pip, or None.
        into: path of the archive, which is written.
        without: files in the folder that are not code: specs, and files written beside them.

    Raises:
        UsageError: a file cannot be read, there is more than a GiB of them, a link leads out of the folder, or the
            .dockerignore or the requirements are longer than they may be.
    """
    left_out = {os.path.realpath(path) for path in without}
    files = 0
    try:
        ignore, patches = ignored(folder), Ignore.parse(PATCHES)
        with into.open("wb") as file:
            sink = Sink(file.write)
            with tar_into(sink) as tar:
                for name in _walk(folder, ignore):
                    path = folder / name
                    if os.path.realpath(path) in left_out or patches.leaves_out(name) or name == IGNORE_FILE:
                        continue
                    files += _add(tar, name, path)
                    if sink.tell() > MAX_BYTES:
                        raise UsageError(
                            f"{folder} holds more than {MAX_BYTES >> 20} MiB of files, {name} the last of them",
                            hint=f"name what is no code in {folder / IGNORE_FILE}",
                        )
        listed = None if requirements is None else read_bounded(requirements, MAX_REQUIREMENTS)
    except OSError as error:
        where = error.filename or folder
        raise UsageError(f"{where} cannot be read: {(error.strerror or str(error)).lower()}") from error
    return CodeArchive(into, sink.digest, sink.tell(), listed, files)


def ignored(folder: Path) -> Ignore:
    """Exclusions by the .dockerignore of a project; see `Ignore.read`."""
    return Ignore.read(folder / IGNORE_FILE)


def _walk(folder: Path, ignore: Ignore) -> Iterator[str]:
    """Files and links below a folder that belong to it, sorted by name, with `/`."""

    def below(prefix: str) -> Iterator[str]:
        for entry in sorted(os.scandir(folder / prefix), key=lambda entry: entry.name):
            name = f"{prefix}{entry.name}"
            if entry.name in NEVER:
                continue
            if entry.is_dir(follow_symlinks=False):
                if ignore.takes_back or not ignore.leaves_out(name):
                    yield from below(f"{name}/")
            elif not ignore.leaves_out(name):
                yield name

    return below("")


def _add(tar: tarfile.TarFile, name: str, path: Path) -> int:
    """Add a file without its times, place and user; returns 1, or 0 for a file that is not code."""
    status = path.lstat()
    info = tarfile.TarInfo(name)
    info.uid = info.gid = UID
    info.mtime = 0
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
        if os.path.normpath(os.path.join(os.path.dirname(name), info.linkname)).split("/")[0] == "..":
            raise UsageError(
                f"{name} links to {info.linkname}, which leads out of the code and would lead nowhere in an image",
                hint=f"name it in {IGNORE_FILE}, or put there what it links to",
            )
        tar.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        with path.open("rb") as content:
            if content.read(len(_MARK)) == _MARK:
                return 0  # an overlay names the result: with it every push would differ
            content.seek(0)
            info.size, info.mode = os.fstat(content.fileno()).st_size, 0o755 if status.st_mode & 0o100 else 0o644
            tar.addfile(info, content)
    else:
        return 0  # a socket or a pipe means nothing on another machine
    return 1


def stage(code: CodeArchive, base: str, folder: Path) -> Path:
    """Write the build context of code over a base into an empty folder.

    Args:
        code: code to add.
        base: reference of the base image.
        folder: build context, which is filled.

    Returns:
        The Dockerfile.
    """
    # named by content: a builder that compares sizes and times alone would take an older archive for this one
    archive = f"code-{code.digest[:12]}.tar"
    shutil.copyfile(code.archive, folder / archive)
    # builders take a tag or a digest; the label keeps both, so that the next push knows which tag was meant
    named = Reference.parse(base)
    lines = [f"FROM {named.by_digest() if named.digest else named}", "USER 0"]
    if code.requirements is not None:
        (folder / "requirements.txt").write_bytes(code.requirements)
        lines += [
            "COPY requirements.txt /opt/requirements/code.txt",
            # packages that the roles were tested with stay: a requirement of another version is refused
            "RUN export SOURCE_DATE_EPOCH=315532800 \\",
            " && python -m pip list --format=freeze --exclude rlctl > /opt/requirements/installed.txt \\",
            " && python -m pip install --no-cache-dir -c /opt/requirements/installed.txt \\",
            "      -r /opt/requirements/code.txt \\",
            # update the list of packages; an image of an older rlctl cannot
            " && if [ -f /opt/requirements/sbom.py ]; then \\",
            f"      python /opt/requirements/sbom.py /{FILE}; fi",
        ]
    lines += [
        f"ADD --chown={UID}:{UID} {archive} {FOLDER}/",
        f"ENV PYTHONPATH={FOLDER}",
        f"USER {UID}:{UID}",
        f'LABEL {BASE_LABEL}="{base}"',
    ]
    file = folder / "Dockerfile"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
