"""`rlctl eval`: a stored model plays whole episodes on this machine."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rlctl.cli.context import World
from rlctl.cli.display.text import number, table
from rlctl.cli.models.listing import chosen, split, stored_models
from rlctl.cli.models.player import played
from rlctl.cli.models.pull import DESCRIPTION, ORIGIN
from rlctl.cli.models.pull import pull as copy
from rlctl.cli.options import Target, complete_run, verb
from rlctl.cli.run.target import find
from rlctl.errors import UsageError

_LARGEST_SEED = 2**31


class Mode(StrEnum):
    """How actions are chosen."""

    both = "both"
    greedy = "greedy"
    sample = "sample"


@verb("namespace", "context")
def evaluate(
    world: World,
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@MODEL]|DIR",
            help="As for `rlctl pull`; or a folder that it has made, with a / in its name.",
            autocompletion=complete_run,
        ),
    ],
    episodes: Annotated[int, typer.Option("--episodes", metavar="N", help="Whole episodes in each mode.")] = 100,
    mode: Annotated[Mode, typer.Option("--mode", help="The most likely action, a sampled one, or both.")] = Mode.both,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of the episodes; default: a fresh one, which is printed.")
    ] = None,
    target: Target = None,
) -> int:
    """Evaluate a stored model again, on this machine.

    The model plays whole episodes of the environment that its spec names, raw returns, on fresh seeds. The run may be
    live, over, or on a cluster: its model is copied first. The interval is of the mean: 95 %, percentile bootstrap.
    """
    if not 1 <= episodes <= 1_000_000:
        raise UsageError(f"--episodes must be from 1 to 1,000,000, got {episodes}")
    if seed is not None and not 0 <= seed < _LARGEST_SEED:
        raise UsageError(f"--seed must be from 0 to {_LARGEST_SEED - 1}, got {seed}")
    seed = secrets.randbelow(_LARGEST_SEED) if seed is None else seed
    modes = ["greedy", "sample"] if mode is Mode.both else [mode.value]
    results: dict[str, Any] = {}
    with fetched(world, model, target) as (folder, name, origin):
        world.say(f"{name}: {episodes} episodes each, {' and '.join(modes)}, seed {seed}")
        question = {
            "folder": str(folder),
            "env": origin["spec"]["env"],
            "episodes": episodes,
            "modes": modes,
            "seed": seed,
        }
        for answer in played(question, code_of(origin)):
            results[answer.pop("mode")] = answer
    rows: list[tuple[str, ...]] = [("MODE", "MEAN", "95 %", "IQM", "STD", "LOWEST", "HIGHEST", "LENGTH", "EPISODES")]
    for name_of_mode, one in results.items():
        low, high = one["interval"]
        figures = [number(one[key]) for key in ("iqm", "std", "min", "max", "length")]
        span = f"{number(low)} to {number(high)}"
        rows.append((name_of_mode, number(one["mean"]), span, *figures, str(one["episodes"])))
    world.lines(table(rows))
    world.document({"model": name, "seed": seed, "results": results})
    return 0


@contextmanager
def fetched(world: World, model: str, target: str | None) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """A model in a folder for as long as the block lasts: its folder, its name for people, and where it comes from.

    Raises:
        UsageError: the folder is none that `rlctl pull` has made.
    """
    if "/" in model or model.startswith("."):
        folder = Path(model).resolve()
        yield folder, model, origin_of(folder)
        return
    name, which = split(model)
    backend, state = find(world, name, target)
    files = backend.stored_files(state.run)
    found = chosen(stored_models(files, world.complain), state.run, which)
    with tempfile.TemporaryDirectory(prefix="rlctl-model-") as beside:
        folder = Path(beside) / "model"
        copy(files, found, state, folder)
        yield folder, f"{state.run}@{found.name} (version {found.version})", origin_of(folder)


def origin_of(folder: Path) -> dict[str, Any]:
    """What run.json of a pulled folder holds.

    Raises:
        UsageError: it is none.
    """
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
        if origin["format"] == 1 and isinstance(origin["spec"]["env"], dict) and (folder / DESCRIPTION).is_file():
            return dict(origin)
        raise ValueError("of another format")
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{folder} is no folder that `rlctl pull` has made: {ORIGIN}: {why}") from error


def code_of(origin: Mapping[str, Any]) -> Path | None:
    """Folder of the user's own modules, if it is on this machine."""
    code = (origin["spec"].get("code") or {}).get("path")
    path = None if not code else Path(code)
    return path if path is not None and path.is_absolute() and path.is_dir() else None
