"""Build context of our own images: the same files whether rlctl was installed or runs from a working copy."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import rlctl
from rlctl.images.builders.base import Name

PACKAGE: Final = Path(rlctl.__file__).parent
FILES: Final = ("Dockerfile.actor", "Dockerfile.learner", "LICENSE", "README.md", "pyproject.toml", "requirements.lock")
"""Files at the root of a working copy, beside the packages; in an installed package they are in the folder PACKED."""
PACKED: Final = Path("images", "packed")


DOCKERFILES: Final[dict[Name, str]] = {
    "core": "Dockerfile.actor", "actor": "Dockerfile.actor", "learner": "Dockerfile.learner", "ci": "Dockerfile.actor",
}  # fmt: skip
"""Our images -> the Dockerfile with a target of that name."""


def usual_base(file: Path) -> str:
    """Default base of a Dockerfile."""
    found = re.search(r"^ARG BASE=(\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, file
    return found[1]


def sources(package: Path = PACKAGE) -> Iterator[tuple[str, Path]]:
    """Files and folders to copy: name in the context, path on this machine.

    Args:
        package: the folder of the package rlctl.
    """
    packed = package / PACKED
    installed = packed.is_dir()
    root = package.parent
    yield "rlctl", package
    yield "agents/rlctl_agents", root / "rlctl_agents" if installed else root / "agents" / "rlctl_agents"
    yield "ci/rlctl_ci", root / "rlctl_ci" if installed else root / "ci" / "rlctl_ci"
    yield "templates", package / "templates" if installed else root / "templates"
    for name in FILES:
        yield name, (packed if installed else root) / name


def stage(to: Path, package: Path = PACKAGE) -> None:
    """Create the context of a build.

    Modes and times depend on nothing but content: builders compare them to see whether a step can be skipped.

    Args:
        to: folder to create.
        package: the folder of the package rlctl.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    for name, source in sources(package):
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=_not_copied(package))
        else:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / name)
    for folder, _, files in os.walk(to):
        for file in files:
            path = os.path.join(folder, file)
            os.chmod(path, 0o644)
            with open(path, "rb") as opened:
                seconds = zlib.crc32(opened.read()) >> 2
            os.utime(path, (seconds, seconds))
        os.chmod(folder, 0o755)
        os.utime(folder, (0, 0))


def _not_copied(package: Path) -> Callable[[str, list[str]], set[str]]:
    """Filter of copytree: leaves out bytecode, and folders of an installed package that `sources` has elsewhere."""
    elsewhere = {package / PACKED, package / "templates"}
    bytecode = shutil.ignore_patterns("__pycache__", "*.pyc")

    def left_out(folder: str, names: list[str]) -> set[str]:
        return bytecode(folder, names) | {name for name in names if Path(folder, name) in elsewhere}

    return left_out
