"""Stored models of a run: its generations, the best one and the one that reached the goal, with their evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rlctl.errors import RlctlError, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Folder, StoredFiles

PIECE_BYTES: Final = 8 * 2**20
_CHOSEN: Final = ("goal", "best")
_MANIFEST = re.compile(r"generation-([0-9]{6,})\.json")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model, and the files that hold it."""

    name: str  # "best", "goal", or the number of a generation
    policy: str
    lineage: int
    version: int
    steps: int  # agent steps that it was learned from
    folder: Folder
    description: str  # file, JSON
    tensors: str  # file, safetensors
    sha256: Mapping[str, str]  # file -> 64 hex digits, where they are known
    bytes: int  # of the tensors
    created: float | None = None  # unix time; of a generation
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # mode -> the newest of this version

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.policy, self.lineage, self.version)


def whole(files: StoredFiles, folder: Folder, name: str) -> bytes:
    """All of a file."""
    found = bytearray()
    while piece := files.read(folder, name, len(found), PIECE_BYTES):
        found += piece
    return bytes(found)


def stored_models(files: StoredFiles, complain: Callable[[str], object]) -> list[StoredModel]:
    """Every model that is whole: goal and best first, then generations, newest first.

    Args:
        complain: told of a file that cannot be understood, whose model is left out.

    Raises:
        RlctlError: the volume cannot be read.
    """
    measured = _evaluations(files)
    found = []
    kept, parts = files.sizes("models"), files.sizes("checkpoints")
    for name in _CHOSEN:
        if f"{name}.json" in kept:
            with _understood(f"models/{name}.json", complain):
                found.append(_selected(files, name, kept))
    for file in sorted(parts, reverse=True):
        if _MANIFEST.fullmatch(file):
            with _understood(f"checkpoints/{file}", complain):
                found.append(_generation(files, file, parts, measured))
    return found


def chosen(models: list[StoredModel], run: str, which: str | None) -> StoredModel:
    """The model that is meant.

    Args:
        which: goal, best, last (the newest generation) or the number of a generation; None: the first of those that
            there is.

    Raises:
        UsageError: there is none of that name.
    """
    generations = [one for one in models if one.name.isdigit()]
    wanted = generations[:1] if which == "last" else [one for one in models if which in (None, one.name)]
    if wanted:
        return wanted[0]
    if not models:
        raise UsageError(f"run {run} has stored no model yet", hint="the first is stored with its first evaluation")
    names = ", ".join(one.name for one in models)
    raise UsageError(f"run {run} has no model {which}", hint=f"it has {names}; see `rlctl models {run}`")


def split(text: str) -> tuple[str, str | None]:
    """Run and model of `RUN` or `RUN@WHICH`.

    Raises:
        UsageError: neither.
    """
    run, at, which = text.partition("@")
    if not run or (at and not re.fullmatch(r"goal|best|last|[0-9]{1,9}", which)):
        raise UsageError(
            f"{text!r} names no model", hint="as in cartpole@best, cartpole@goal, cartpole@last, cartpole@7"
        )
    return run, (str(int(which)) if which.isdigit() else which) or None


class _understood:
    """Leaves a model out whose files say something else than they should."""

    def __init__(self, file: str, complain: Callable[[str], object]) -> None:
        self._file, self._complain = file, complain

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
            return False
        self._complain(f"warning: {self._file} is damaged, and its model left out: {type(error).__name__}: {error}")
        return True


def _selected(files: StoredFiles, name: str, sizes: Mapping[str, int]) -> StoredModel:
    selected = json.loads(whole(files, "models", f"{name}.json"))
    if selected["policy"] not in sizes:
        raise ValueError(f"it names {str(selected['policy'])[:100]!r}, which is not there")
    described = json.loads(whole(files, "models", selected["policy"]))
    ref, tensors = described["ref"], described["tensors"]
    shown = [one for one in (selected["evaluation"], selected.get("other")) if one is not None]
    return StoredModel(
        name, ref["policy"], ref["lineage"], ref["version"], described["steps"], "models", selected["policy"], tensors,
        {tensors: described["sha256"]}, sizes[tensors], evaluations={one["mode"]: one for one in shown},
    )  # fmt: skip


def _generation(
    files: StoredFiles, file: str, sizes: Mapping[str, int], measured: Mapping[tuple[str, int, int], dict[str, Any]]
) -> StoredModel:
    one = json.loads(whole(files, "checkpoints", file))["generation"]
    ref, parts, sha256 = one["ref"], one["parts"], one["sha256"]
    if "policy" not in parts:
        raise ValueError("it does not describe its policy: release 0.1 did not")
    return StoredModel(
        str(one["number"]), one["policy"], ref["lineage"], ref["version"], one["steps"], "checkpoints", parts["policy"],
        parts["learner"], {parts[part]: sha256[part] for part in ("policy", "learner")}, sizes[parts["learner"]],
        created=one["created"], evaluations=measured.get((one["policy"], ref["lineage"], ref["version"]), {}),
    )  # fmt: skip


def _evaluations(files: StoredFiles) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Newest evaluation of each version in each mode, without the returns of single episodes."""
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    if "evaluations.jsonl" not in files.sizes("results"):
        return found
    for one in _lines(whole(files, "results", "evaluations.jsonl")):
        try:
            ref = one["ref"]
            modes = found.setdefault((ref["policy"], ref["lineage"], ref["version"]), {})
            modes[one["mode"]] = {key: value for key, value in one.items() if key not in ("returns", "lengths")}
        except (KeyError, TypeError):
            continue
    return found


def _lines(data: bytes) -> Iterator[Any]:
    """Values of the lines that are JSON: the last may be half-written."""
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def require_described(model: StoredModel, described: Mapping[str, Any]) -> None:
    """
    Raises:
        RlctlError: the description is of another release.
    """
    if described.get("format") != 1:
        raise RlctlError(
            f"{model.description} is in format {described.get('format')}; this release reads format 1",
            hint="use the rlctl that the run was started with",
        )
