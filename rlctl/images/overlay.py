"""images.yaml: a spec file with only images. `push` writes it, `rlctl up spec.yaml images.yaml` merges it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlctl.errors import Refused, UsageError
from rlctl.images.builders.base import NAMES, OVERLAY_MARK
from rlctl.spec import yaml

NO_NOTES: Final[Mapping[str, str]] = {}
_NOTE = re.compile(r"^  # (.+)\n  (\w+): ", re.MULTILINE)
_HEAD = f"{OVERLAY_MARK} Use it after the spec: rlctl up spec.yaml %s\n"


def read(path: Path) -> dict[str, str] | None:
    """The images that an overlay names; None when the file is not there or is empty.

    Raises:
        Refused: the file holds something else.
        UsageError: it cannot be read.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _foreign(path) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    tree = yaml.read(content, str(path))
    if tree.value is None and not tree.problems:
        return None
    images = tree.value.get("images") if isinstance(tree.value, dict) else None
    if tree.problems or not isinstance(images, dict) or set(tree.value) != {"images"} or not set(images) <= set(NAMES):
        raise _foreign(path)
    return {name: image for name, image in images.items() if isinstance(image, str)}


def write(path: Path, images: Mapping[str, str], *, force: bool, notes: Mapping[str, str] = NO_NOTES) -> dict[str, str]:
    """Write an overlay; images that it has already and that are not given stay.

    Args:
        path: replaced atomically.
        images: name -> reference by digest.
        force: overwrite whatever is there.
        notes: name -> comment line above it; that of an unchanged image stays.

    Returns:
        All images that it names now.

    Raises:
        Refused: the file is no overlay, and not `force`.
        UsageError: it cannot be read or written.
    """
    before = {} if force else read(path) or {}
    after: dict[str, str] = {name: image for name in NAMES if (image := images.get(name) or before.get(name))}
    kept = {name: line for name, line in _notes(path).items() if not force and after.get(name) == before.get(name)}
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(_HEAD % path.name + text(after, {**kept, **notes}), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}") from error
    return after


def check_folder(path: Path) -> None:
    """Require that a file can be created at a path.

    Raises:
        UsageError: its folder is not there, or nothing may be written to it.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written: permission denied")


def text(images: Mapping[str, str], notes: Mapping[str, str] = NO_NOTES) -> str:
    """Text of an overlay, in the order of NAMES."""
    lines = ["images:"]
    for name in NAMES:
        if name in images:
            lines += [f"  # {notes[name]}"] if notes.get(name) else []
            lines.append(f"  {name}: {json.dumps(images[name])}")
    return "".join(f"{line}\n" for line in lines)


def _notes(path: Path) -> dict[str, str]:
    """Comment line above each image of an overlay."""
    try:
        return {name: line for line, name in _NOTE.findall(path.read_text(encoding="utf-8"))}
    except (OSError, UnicodeDecodeError):
        return {}


def _foreign(path: Path) -> Refused:
    return Refused(
        f"{path} holds more than images; nothing was written",
        hint="choose another file, or overwrite it with --force",
        objects=(str(path),),
    )
