"""The user's own code as one layer over a published image: equal content has an equal name, on every machine."""

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
"""Label of an image with code: the image that it was laid over."""
MAX_BYTES: Final = 1 << 30
PART: Final = 1 << 20
"""Bytes that are in memory at once."""
NEVER: Final = frozenset({".git", "__pycache__", ".venv"})
IGNORE_FILE: Final = ".dockerignore"
MAX_REQUIREMENTS: Final = 1 << 20
"""Bytes: thousands of packages, with hashes."""
_MARK: Final = OVERLAY_MARK.encode()
PATCHES: Final = "templates/*.patch.yaml"
"""Files that change documents, which rlctl renders; in the image they would restart roles that they do not concern."""


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """Archive of the user's code, which is laid over a base."""

    archive: Path = field(compare=False)  # a tar, the same for the same content
    digest: str  # of it, sha256 in hex
    size: int  # of it, bytes
    requirements: bytes | None
    files: int

    def tag(self, base: str) -> str:
        """`code-<hash12>` over all that is in the image.

        Args:
            base: by digest, where the tag shall mean the same everywhere.
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
    """As much of a file as tarfile writes to: it passes on what comes, and knows its size and digest.

    Args:
        write: gets every part.
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
    """A tar in the format of all of ours."""
    return tarfile.open(fileobj=cast(IO[bytes], sink), mode="w", format=tarfile.PAX_FORMAT)


def collect(folder: Path, requirements: Path | None = None, *, into: Path, without: Iterable[Path] = ()) -> CodeArchive:
    """Read a project; its size is not held in memory.

    Args:
        folder: of `code.path`.
        requirements: a file that pip reads, or None.
        into: becomes the archive.
        without: files that are not code although they lie there: specs, and what is written beside them.

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
    """Add a file with nothing of the time, place and user that made it; 0 for what is no code."""
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
                return 0  # it names the result: with it every push would be another
            content.seek(0)
            info.size, info.mode = os.fstat(content.fileno()).st_size, 0o755 if status.st_mode & 0o100 else 0o644
            tar.addfile(info, content)
    else:
        return 0  # a socket or a pipe says nothing to another machine
    return 1


def stage(code: CodeArchive, base: str, folder: Path) -> Path:
    """Write what a builder needs into an empty folder.

    Args:
        code: what is laid over.
        base: the image below it.
        folder: becomes the context of the build.

    Returns:
        The Dockerfile.
    """
    # a name by content: a builder that compares sizes and times alone would take an older archive for this one
    archive = f"code-{code.digest[:12]}.tar"
    shutil.copyfile(code.archive, folder / archive)
    # builders take a tag or a digest; the label keeps both, so that the next push knows which tag was meant
    named = Reference.parse(base)
    lines = [f"FROM {named.by_digest() if named.digest else named}", "USER 0"]
    if code.requirements is not None:
        (folder / "requirements.txt").write_bytes(code.requirements)
        lines += [
            "COPY requirements.txt /opt/requirements/code.txt",
            # what the roles were tested with stays as it is: a requirement that wants another version is refused
            "RUN export SOURCE_DATE_EPOCH=315532800 \\",
            " && python -m pip list --format=freeze --exclude rlctl > /opt/requirements/installed.txt \\",
            " && python -m pip install --no-cache-dir -c /opt/requirements/installed.txt \\",
            "      -r /opt/requirements/code.txt \\",
            # lists what is installed anew; an image of an older rlctl cannot
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
