"""`rlctl init`: a folder to begin with, from one of the scaffolds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import rlctl
from rlctl.backends.files import writing
from rlctl.cli.context import World
from rlctl.cli.options import verb
from rlctl.errors import Refused, UsageError

DEFAULT = "environment"


def scaffolds() -> dict[str, Path]:
    """The folders that can be copied, by name: inside the installed package, or in a working copy."""
    package = Path(rlctl.__file__).parent
    places = (package / "templates" / "init", package.parent / "templates" / "init")
    place = next(folder for folder in places if folder.is_dir())
    return {folder.name: folder for folder in sorted(place.iterdir()) if (folder / "README.md").is_file()}


def _complete(incomplete: str) -> list[str]:
    return [name for name in scaffolds() if name.startswith(incomplete)]


def _purpose(scaffold: Path) -> str:
    """Purpose of a scaffold: the paragraph after the title of its README."""
    return (scaffold / "README.md").read_text(encoding="utf-8").split("\n\n")[1].replace("\n", " ")


@verb()
def init(
    world: World,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made when it is not there.")] = Path("."),
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="NAME", help="What to begin with; see --list.", autocompletion=_complete),
    ] = DEFAULT,
    show: Annotated[bool, typer.Option("--list", help="Print what there is to begin with, and write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> int:
    """Write a project to begin with: spec, code, README.

    A file of yours is never overwritten without --force (exit 9).
    """
    known = scaffolds()
    if show:
        found = [{"name": name, "purpose": _purpose(scaffold)} for name, scaffold in known.items()]
        world.lines(f"{one['name']:<13}{one['purpose']}" for one in found)
        world.document({"scaffolds": found, "default": DEFAULT})
        return 0
    if kind not in known:
        raise UsageError(f"--kind: there is no {kind!r}; there is {', '.join(known)}", hint="rlctl init --list")
    source = known[kind]
    files = sorted(
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    with writing(folder):
        new = _copy(source, folder, files, force=force)
    for name in files:
        world.data(str(folder / name) + ("" if name in new else "  unchanged"))
    (spec,) = (name for name in files if name.name == "spec.yaml")
    world.say(f"next, as {folder / 'README.md'} says:")
    if (there := folder / spec.parent) != Path("."):
        world.say(f"  cd {shlex.quote(str(there))}")
    world.say("  rlctl up spec.yaml")
    world.document(
        {
            "folder": str(folder),
            "kind": kind,
            "files": [{"name": str(name), "what": "written" if name in new else "unchanged"} for name in files],
        }
    )
    return 0


def _copy(source: Path, folder: Path, files: list[Path], *, force: bool) -> list[Path]:
    """Copy the files; returns those that were not there yet.

    Raises:
        Refused: other files are in their place.
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
