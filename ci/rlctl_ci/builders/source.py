"""The user's code at a commit: the part of its spec that says where it lies, and the files themselves.

Builders call it in a process of its own; see `child`.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rlctl.errors import RlctlError, SpecError, UsageError
from rlctl.images import append as appending
from rlctl.images.append import Layer
from rlctl.images.code import IGNORE_FILE, CodeArchive, collect, ignored
from rlctl.spec import load
from rlctl.spec.schema import Spec
from rlctl_ci.config.settings import Project
from rlctl_ci.core.errors import BuildStopped

MAX_LISTED: Final = 20
MAX_LETTERS: Final = 1000
"""Characters of one problem, at most: a key may be as long as its file."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER: Final = 1024
"""Bytes of a pointer of git LFS, at most, by its specification."""


Part = Literal["spec", "code", "layer"]
"""Parts of a commit that a builder may need; each includes the one before it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """Spec and code of a commit, as a builder reads them."""

    images: Mapping[str, str | None]  # as the spec names them
    code: CodeArchive | None = None
    layer: Layer | None = None


def contents(project: Project, source: Path, into: Path, part: Part) -> Contents:
    """Read a commit.

    Args:
        source: folder of its files.
        into: a folder for the archive of the code, and for the layer.

    Raises:
        BuildStopped: it cannot be built.
    """
    spec, base = spec_at(project, source, for_images=part != "spec")
    images = spec.images.model_dump(mode="json")
    code = None if part == "spec" else _code(project, spec, base, source, into)
    if code is None or part == "code":
        return Contents(images, code)
    try:
        return Contents(images, code, appending.layer(code, into / "layer.tar.gz"))
    except UsageError as error:
        raise BuildStopped("requirements", error.message, hint=error.hint) from error


def spec_at(project: Project, source: Path, *, for_images: bool = False) -> tuple[Spec, Path]:
    """The spec of a commit, and its folder.

    Args:
        for_images: images that a cluster needs may be missing, because they are being made.

    Raises:
        BuildStopped: there is no spec, or it is invalid, or of another run.
    """
    path = inside(source, source, project.spec, "spec")
    # what the owner of the service has said comes last: a commit cannot change it
    sets = [*project.sets, f"target={'local' if for_images else project.target}"]
    try:
        loaded = load([path], sets)
    except SpecError as error:
        raise BuildStopped("spec", f"{project.spec}: {listed(error).replace(f'{source}/', '')}") from error
    if loaded.spec.run != project.run:
        raise BuildStopped(
            "spec", f"{project.spec} is of run {loaded.spec.run}, and this project may change {project.run} alone"
        )
    return loaded.spec, loaded.base


def _code(project: Project, spec: Spec, base: Path, source: Path, into: Path) -> CodeArchive | None:
    """Archive of the code that roles import; None when the spec has no `code`.

    Raises:
        BuildStopped: it lies outside the repository, or cannot be read, or some of it is not in the repository.
    """
    if spec.code is None:
        return None
    folder = inside(source, base, spec.code.path, "code.path")
    listed = spec.code.requirements
    requirements = None if listed is None else inside(source, base, listed, "code.requirements")
    try:
        spec_file = inside(source, source, project.spec, "spec")
        code = collect(folder, requirements, into=into / "code.tar", without=[spec_file])
    except RlctlError as error:
        here = f"{source.resolve()}/"
        raise BuildStopped("code", error.message.replace(here, ""), hint=error.hint.replace(here, "")) from error
    within = os.path.relpath(folder, source.resolve())
    absent = [os.path.normpath(f"{within}/{name}") for name in (*_submodules(folder), *_pointers(code))]
    if absent:
        more = f"; and {len(absent) - MAX_LISTED} more" if len(absent) > MAX_LISTED else ""
        raise BuildStopped(
            "code", f"of submodules and of git LFS nothing is fetched: {', '.join(absent[:MAX_LISTED])}{more}",
            hint=f"commit the files themselves, or name them in {IGNORE_FILE} of code.path",
        )  # fmt: skip
    return code


def _submodules(folder: Path) -> list[str]:
    """Empty folders of the code: git keeps such a folder only in the place of a submodule."""
    ignore = ignored(folder)
    empty = [os.path.relpath(path, folder) for path, folders, files in os.walk(folder) if not folders and not files]
    return sorted(name for name in empty if not ignore.leaves_out(name))


def _pointers(code: CodeArchive) -> Iterator[str]:
    """Pointers of git LFS among the files of the code."""
    with tarfile.open(code.archive, "r:") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() and member.size <= _MAX_POINTER else None
            if content is not None and content.read(len(_POINTER)) == _POINTER:
                yield member.name


def listed(error: SpecError) -> str:
    """First problems of a spec, for a line of a log."""
    more = len(error.problems) - MAX_LISTED
    first = "; ".join(str(problem)[:MAX_LETTERS] for problem in error.problems[:MAX_LISTED])
    return f"{first}; and {more} more" if more > 0 else first


def inside(source: Path, base: Path, name: str, what: str) -> Path:
    """Path that the commit names, with links resolved.

    Raises:
        BuildStopped: it leads out of the repository, or nowhere.
    """
    try:
        path = (base / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise BuildStopped("source", f"{what}: {name} leads nowhere") from error
    if not path.is_relative_to(source.resolve()):
        raise BuildStopped("source", f"{what}: {name} leads out of the repository")
    return path
