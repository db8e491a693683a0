"""Stored models of a run: its generations, the best one and the one that reached the goal, with their evaluations."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rlctl.errors import RlctlError, UsageError
from rlctl.spec.layout import EVALUATIONS

if TYPE_CHECKING:
    from rlctl.backends.base import Folder, StoredFiles

PIECE_BYTES: Final = 2**19
"""Bytes of one read, at most: a slow connection to a cluster has ten seconds for it."""
_LISTINGS: Final = 4
"""Attempts at a consistent listing: a live run stores and removes models meanwhile."""
_CHOSEN: Final = ("goal", "best")
_LARGEST_COUNT: Final = 2**63
LAST_MOMENT: Final = 253_402_300_000  # end of the year 9999
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
    created: float  # unix time; of goal and best that of the evaluation that chose them
    evaluations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # mode -> the newest of this version

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.policy, self.lineage, self.version)


def read_whole(files: StoredFiles, folder: Folder, name: str) -> bytes:
    """Read a whole file of a run's storage."""
    found = bytearray()
    while piece := files.read(folder, name, len(found), PIECE_BYTES):
        found += piece
    return bytes(found)


@dataclass(frozen=True, slots=True)
class Stored:
    """All stored models of a run."""

    models: list[StoredModel]  # goal and best first, then generations, newest first
    damaged: Mapping[str, str]  # goal, best or the number of a generation -> what is wrong with it


def stored_models(files: StoredFiles) -> Stored:
    """All models of a run at one moment: the listing is repeated where files changed meanwhile.

    Raises:
        RlctlError: the volume cannot be read.
    """
    for left in reversed(range(_LISTINGS)):
        sizes = files.sizes("models"), files.sizes("checkpoints")
        try:
            found = _listed(files, *sizes)
        except RlctlError:
            if not left or sizes == (files.sizes("models"), files.sizes("checkpoints")):
                raise
            continue
        if not left or not found.damaged or sizes == (files.sizes("models"), files.sizes("checkpoints")):
            return found
    raise AssertionError("the last listing is given as it is")


def _listed(files: StoredFiles, kept: Mapping[str, int], parts: Mapping[str, int]) -> Stored:
    measured = _evaluations(files)
    found: list[StoredModel] = []
    damaged: dict[str, str] = {}

    def add(name: str, file: str, read: Callable[[], StoredModel]) -> None:
        try:
            found.append(read())
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            damaged[name] = f"{file} cannot be used: {why}"

    for name in _CHOSEN:
        if f"{name}.json" in kept:
            add(name, f"models/{name}.json", partial(_selected, files, name, kept))
    for file in sorted(parts, reverse=True):
        if number := _MANIFEST.fullmatch(file):
            add(str(int(number[1])), f"checkpoints/{file}", partial(_generation, files, file, parts, measured))
    return Stored(found, damaged)


def warn(stored: Stored, complain: Callable[[str], object]) -> None:
    """Print a warning for each model that is left out."""
    for what in stored.damaged.values():
        complain(f"warning: {what}; its model is left out")


def chosen(stored: Stored, run: str, which: str | None) -> StoredModel:
    """The model of a given name.

    Args:
        which: goal, best, last (the newest generation) or the number of a generation; None: the first of those that
            there is.

    Raises:
        UsageError: there is none of that name.
        RlctlError: it is damaged; no other is substituted.
    """
    models = stored.models
    known = [*(one.name for one in models), *stored.damaged]
    names = ", ".join(one.name for one in models)
    newest = max((name for name in known if name.isdigit()), key=int, default=None)
    if which == "last":
        which = newest or which
    first = next((name for name in _CHOSEN if name in known), newest)
    wanted = first if which is None else which
    if wanted is not None and wanted in stored.damaged:
        hint = f"it has {names}: name one, as in {run}@{models[0].name}" if models else "it has no other"
        raise RlctlError(f"run {run}: {stored.damaged[wanted]}", hint=hint)
    for one in models:
        if wanted in (None, one.name):
            return one
    if not models and not stored.damaged:
        raise UsageError(
            f"run {run} has stored no model yet",
            hint="checkpoint.every or an evaluation brings the first",
        )
    whole = names or "none that is whole"
    raise UsageError(f"run {run} has no model {which}", hint=f"it has {whole}; see `rlctl models {run}`")


def _selected(files: StoredFiles, name: str, sizes: Mapping[str, int]) -> StoredModel:
    selected = json.loads(read_whole(files, "models", f"{name}.json"))
    policy = selected["policy"]
    if policy not in sizes:
        raise ValueError(f"it names {str(policy)[:100]!r}, which is not there")
    description = read_whole(files, "models", policy)
    digests = {} if not (stated := selected.get("sha256")) else {policy: _text(stated)}
    if digests and digests[policy] != hashlib.sha256(description).hexdigest():
        raise ValueError(f"{policy} has changed since it was stored: its sha256 is another")
    described = json.loads(description)
    tensors = _text(described["tensors"])
    evaluation = selected["evaluation"]
    shown = [one for one in (evaluation, selected.get("other")) if one is not None]
    return StoredModel(
        name, *_ref(described["ref"]), _count(described["steps"]), "models", policy, tensors,
        {**digests, tensors: _text(described["sha256"])}, sizes[tensors],
        created=_moment(evaluation["time"]), evaluations=dict(map(_measured, shown)),
    )  # fmt: skip


def _generation(
    files: StoredFiles, file: str, sizes: Mapping[str, int], measured: Mapping[tuple[str, int, int], dict[str, Any]]
) -> StoredModel:
    one = json.loads(read_whole(files, "checkpoints", file))["generation"]
    parts, sha256 = one["parts"], one["sha256"]
    if "policy" not in parts:
        raise ValueError("it does not describe its policy: release 0.1 did not")
    key = _ref({**one["ref"], "policy": one["policy"]})
    described, tensors = _text(parts["policy"]), _text(parts["learner"])
    digests = {described: _text(sha256["policy"]), tensors: _text(sha256["learner"])}
    return StoredModel(
        str(_count(one["number"])), *key, _count(one["steps"]), "checkpoints", described, tensors, digests,
        sizes[tensors], created=_moment(one["created"]), evaluations=measured.get(key, {}),
    )  # fmt: skip


def _evaluations(files: StoredFiles) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Newest evaluation of each version in each mode, without the returns of single episodes."""
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    if EVALUATIONS not in files.sizes("results"):
        return found
    for one in _lines(read_whole(files, "results", EVALUATIONS)):
        try:
            mode, told = _measured(one)
            modes = found.setdefault(_ref(one["ref"]), {})
            modes[mode] = {key: value for key, value in told.items() if key not in ("returns", "lengths")}
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _measured(evaluation: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Mode and figures of an evaluation."""
    for key in ("mean", "std"):
        if type(evaluation[key]) not in (int, float) or not math.isfinite(evaluation[key]):
            raise TypeError(f"{key} is no number")
    _count(evaluation["episodes"])
    return _text(evaluation["mode"]), dict(evaluation)


def _ref(ref: Mapping[str, Any]) -> tuple[str, int, int]:
    return _text(ref["policy"]), _count(ref["lineage"]), _count(ref["version"])


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:100]!r} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST_COUNT:
        raise TypeError(f"{str(value)[:100]} is no count")
    return value


def _moment(value: Any) -> float:
    """Unix time that has a date."""
    if type(value) not in (int, float) or not 0 <= value < LAST_MOMENT:
        raise TypeError(f"{str(value)[:100]} is no time")
    return float(value)


def _lines(data: bytes) -> Iterator[Any]:
    """Values of the lines that are JSON: the last may be half-written."""
    for line in data.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue


def require_described(model: StoredModel, described: Mapping[str, Any]) -> None:
    """Require a description that this release reads.

    Raises:
        RlctlError: the description is of another release.
    """
    if described.get("format") != 1:
        raise RlctlError(
            f"{model.description} is in format {described.get('format')}; this release reads format 1",
            hint="use the rlctl that the run was started with",
        )
