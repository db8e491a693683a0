"""A model to act with on this machine: a temporary copy of a run's, or a folder that `rlctl pull` has made."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rlctl import signing
from rlctl.cli.context import World
from rlctl.cli.models.pull import DESCRIPTION, ORIGIN, pull_chosen
from rlctl.cli.options import complete_run
from rlctl.cli.run.target import find
from rlctl.errors import UsageError
from rlctl.spec.runs.model_names import is_folder, split

LARGEST_SEED = 2**31
_NAME = re.compile("[a-z0-9][-a-z0-9]{0,39}")
_NAME_ONE = "name a run of `rlctl status`, or a folder from `rlctl pull RUN DIR`"
_NAME_IT = "--code DIR names the folder that `code.path` means"

ModelOrFolder = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@MODEL]|DIR",
        help="As for `rlctl pull`; or a folder that it has made, with a / in its name.",
        autocompletion=complete_run,
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Of the episodes; default: a fresh one, which is printed.")
]
Code = Annotated[
    Path | None,
    typer.Option("--code", metavar="DIR", help="Where `code.path` of the spec lies here, if not where it did."),
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", metavar="KEY", help="Private key, PEM: sign what is written. needs the extra `signing`."),
]
Verify = Annotated[
    Path | None,
    typer.Option("--verify", metavar="KEY", help="Public key: refuse a DIR that it has not signed (exit 1)."),
]


def drawn(seed: int | None) -> int:
    """The given seed, or a random one.

    Raises:
        UsageError: it is out of range.
    """
    if seed is not None and not 0 <= seed < LARGEST_SEED:
        raise UsageError(f"--seed must be from 0 to {LARGEST_SEED - 1}, got {seed}")
    return secrets.randbelow(LARGEST_SEED) if seed is None else seed


@contextmanager
def fetched(
    world: World, model: str, target: str | None, verify: Path | None = None
) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Provide a model in a folder while the block lasts: the folder, a display name, and the content of run.json.

    Args:
        verify: public key that must have signed the folder.

    Raises:
        UsageError: the folder was not made by `rlctl pull`, or a run's own model is to be verified.
        BadSignature: its signature is not of this key.
    """
    if is_folder(model):
        folder = Path(os.path.realpath(model))
        if verify is not None and not os.path.isdir(folder):
            raise UsageError(f"there is no folder {folder}", hint=_NAME_ONE)
        if verify is not None:
            signing.verify(folder, verify)
        yield folder, model, origin_of(folder)
        return
    if verify is not None:
        raise UsageError(f"--verify is for a folder, and {model} is a run, whose models have no signature")
    name, which = split(model)
    backend, state = find(world, name, target)
    with tempfile.TemporaryDirectory(prefix="rlctl-model-") as beside:
        folder = Path(beside) / "model"
        with backend.stored_files(state.run) as files:
            found, _ = pull_chosen(files, state, which, folder, world.complain)
        yield folder, f"{state.run}@{found.name} (version {found.version})", origin_of(folder)


def origin_of(folder: Path) -> dict[str, Any]:
    """Content of run.json of a pulled folder.

    Raises:
        UsageError: the folder was not made by `rlctl pull`.
    """
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        if origin["format"] != 1 or not isinstance(origin["spec"]["env"]["id"], str):
            raise ValueError("of another format")
        for key in ("run", "model"):  # files are named after them
            if not _NAME.fullmatch(origin[key]):
                raise ValueError(f"{key} {str(origin[key])[:100]!r} is no name")
        (folder / DESCRIPTION).stat()
        return dict(origin)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{folder} is no folder that `rlctl pull` has made: {ORIGIN}: {why}",
            hint=_NAME_ONE,
        ) from error


def code_of(origin: Mapping[str, Any], stated: Path | None) -> Path | None:
    """Folder of the user's own modules; None: the spec names none.

    Args:
        stated: value of --code; None: the folder recorded when the run was last started on this machine.

    Raises:
        UsageError: the folder is not on this machine.
    """
    section = origin["spec"].get("code")
    if stated is None and not section:
        return None
    recorded = origin.get("code")
    folder = Path(recorded) if stated is None and isinstance(recorded, str) else stated
    if folder is None:
        raise UsageError(f"the spec of run {origin['run']} has `code`, which is in its image", hint=_NAME_IT)
    if not os.path.isdir(folder) or not (folder.is_absolute() or stated):
        raise UsageError(f"there is no folder {folder} with the modules of run {origin['run']}", hint=_NAME_IT)
    return folder.resolve()
