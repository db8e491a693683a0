"""`rlctl init`: a folder with a spec and a small environment of the user's own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import rlctl
from rlctl.cli.context import World
from rlctl.cli.options import verb
from rlctl.errors import Refused, UsageError


def scaffold() -> Path:
    """The folder that is copied: inside the installed package, or at the root of a working copy."""
    package = Path(rlctl.__file__).parent
    packaged = package / "templates" / "init"
    return packaged if packaged.is_dir() else package.parent / "templates" / "init"


@verb()
def init(
    world: World,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made when it is not there.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> int:
    """Write a spec and a small environment to begin with.

    A file of yours is never overwritten without --force (exit 9).
    """
    source = scaffold()
    files = sorted(
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    try:
        new = _copy(source, folder, files, force=force)
    except OSError as error:
        raise UsageError(f"cannot write below {folder}: {(error.strerror or str(error)).lower()}") from error
    for name in files:
        world.data(str(folder / name) + ("" if name in new else "  unchanged"))
    world.say("next:")
    if folder != Path("."):
        world.say(f"  cd {shlex.quote(str(folder))}")
    world.say("  rlctl up spec.yaml")
    world.document(
        {
            "folder": str(folder),
            "files": [{"name": str(name), "what": "written" if name in new else "unchanged"} for name in files],
        }
    )
    return 0


def _copy(source: Path, folder: Path, files: list[Path], *, force: bool) -> list[Path]:
    """Copy the files; returns those that were not there yet.

    Raises:
        Refused: others are in their place.
        OSError: one cannot be looked at or written.
    """
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file", hint="choose another folder", objects=(str(folder),))
    new = [name for name in files if not _same(source / name, folder / name)]
    there = [name for name in new if (folder / name).exists()]
    if there and not force:
        listed = ", ".join(str(folder / name) for name in there)
        raise Refused(
            f"not overwritten: {listed}; nothing was written",
            hint="choose another folder, or overwrite with --force",
            objects=tuple(str(folder / name) for name in there),
        )
    for name in new:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((source / name).read_bytes())
    return new


def _same(source: Path, copy: Path) -> bool:
    return copy.is_file() and copy.read_bytes() == source.read_bytes()
