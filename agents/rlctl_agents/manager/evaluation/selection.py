"""Model selection: the best model and the one that reached the goal, kept with the evaluation that made them so."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from rlctl_agents.checkpoint.policy import kept_name
from rlctl_agents.manager.state_store import Evaluation, StateStore
from rlctl_agents.runtime.storage import read_file
from rlctl_agents.types.experience import ModelRef

FORMAT = 1
NAMES: tuple[Name, ...] = ("best", "goal")

Name = Literal["best", "goal"]

log = logging.getLogger(__name__)


class Selected(msgspec.Struct, frozen=True, kw_only=True):
    """Content of models/best.json or models/goal.json, written once the two files that it names are on the disk."""

    format: int = FORMAT
    policy: str  # file beside it that describes the model: `policy.json`
    tensors: str  # file beside it that holds the weights
    sha256: str = ""  # of `policy`, which holds that of the weights; "": from a release that did not store it
    evaluation: Evaluation  # by which it was selected
    other: Evaluation | None = None  # of the same model, in the other mode
    goal: float | None = None  # return that it reached


class _Described(msgspec.Struct):
    """Fields of a policy's description that are read here."""

    ref: ModelRef
    tensors: str


def read_selected(folder: Path, name: Name) -> Selected | None:
    """The selected model of that name; None if there is none, or its file is damaged.

    Args:
        folder: models/.

    Raises:
        OSError: the volume refuses.
    """
    data = read_file(_file(folder, name))
    try:
        return None if data is None else msgspec.json.decode(data, type=Selected)
    except msgspec.MsgspecError as error:
        log.error("%s is damaged and not used: %s", _file(folder, name), error)
        return None


def reached(goal: Selected | None, mode: str) -> Evaluation | None:
    """The confirming evaluation of the model that reached the goal, if it was played in this mode."""
    return goal.evaluation if goal is not None and goal.evaluation.mode == mode else None


class Selection:
    """The best model and the one that reached the goal. Evaluators have models stored; this decides which of them stay.

    The best has the highest mean in the mode that `stop.eval_return` looks at; of equal ones the first stays. As the
    maximum of many means it is biased upwards; once the model is evaluated on fresh seeds, the fresh mean counts.

    Args:
        folder: models/.
        state: stores the two files.
        stands: no other manager has taken over; may raise OSError.
    """

    failure: str = ""
    """Why old models could not be removed; "" when they could."""

    def __init__(self, folder: Path, state: StateStore, stands: Callable[[], bool]) -> None:
        self._folder, self._state, self._stands = folder, state, stands
        self._unstored: set[Name] = set()
        self.models: dict[Name, Selected] = {}
        for name in NAMES:
            if (found := read_selected(folder, name)) is not None:
                self.models[name] = found

    @property
    def best(self) -> Selected | None:
        """The best model."""
        return self.models.get("best")

    @property
    def goal(self) -> Selected | None:
        """The model that has reached the goal, confirmed."""
        return self.models.get("goal")

    def better_than(self, mode: str) -> float:
        """Mean above which a model becomes the best; -inf if there is no best one in this mode."""
        best = self.best
        return best.evaluation.mean if best is not None and best.evaluation.mode == mode else -float("inf")

    def candidate(self, goal: float | None, mode: str) -> Evaluation | None:
        """Evaluation of the best model, if it has reached the goal and no model is confirmed to have reached it.

        Args:
            goal: mean to be reached; None: no goal.
            mode: mode that counts.
        """
        confirmed = reached(self.goal, mode)
        if goal is None or self.best is None or (confirmed is not None and confirmed.mean >= goal):
            return None
        found = self.best.evaluation
        return found if found.mode == mode and found.mean >= goal else None

    def choose(self, evaluation: Evaluation, policy: str, playing: Collection[ModelRef]) -> None:
        """Make a model the best, and remove models that are no longer selected.

        Args:
            policy: file that describes the model.
            playing: models that are being evaluated, and may just be written.

        Raises:
            ValueError: the model is not on the volume, or the file describes another one.
            OSError: the volume refuses.
        """
        try:
            data = (self._folder / Path(policy).name).read_bytes()
            described = msgspec.json.decode(data, type=_Described)
            if described.ref != evaluation.ref or not (self._folder / Path(described.tensors).name).is_file():
                raise ValueError(f"{policy} is not of {evaluation.ref}, or lacks its weights")
        except (FileNotFoundError, msgspec.MsgspecError) as error:
            raise ValueError(f"{policy} cannot be read: {error}") from error
        digest = hashlib.sha256(data).hexdigest()
        self._put("best", Selected(policy=policy, tensors=described.tensors, sha256=digest, evaluation=evaluation))
        self.tidy(playing)

    def measured_again(self, evaluation: Evaluation) -> None:
        """Attach a further evaluation to a selected model: its mean on fresh seeds, or that of the other mode."""
        for name, found in list(self.models.items()):
            if found.evaluation.ref != evaluation.ref:
                continue
            if found.evaluation.mode != evaluation.mode:
                self._put(name, replace(found, other=evaluation))
            elif name == "best":
                self._put(name, replace(found, evaluation=evaluation))

    def reach(self, goal: float, confirmed: Selected) -> None:
        """Record a model as the one that has reached the goal: its mean is confirmed."""
        self._put("goal", replace(confirmed, goal=goal))

    def store(self, playing: Collection[ModelRef]) -> None:
        """Retry files that could not be stored, and old models that could not be removed, before.

        Args:
            playing: as that of `choose`.
        """
        for name in list(self._unstored):
            self._put(name, self.models[name])
        if self.failure:
            self.tidy(playing)

    def _put(self, name: Name, selected: Selected) -> None:
        self.models[name] = selected
        self._unstored.add(name)
        try:
            if not self._stands():
                return  # the succeeding manager selects
        except OSError:
            return
        data = msgspec.json.format(msgspec.json.encode(selected)) + b"\n"
        if self._state.save(_file(self._folder, name), data, durable=True):
            self._unstored.discard(name)

    def tidy(self, playing: Collection[ModelRef]) -> None:
        """Remove models that neither file names and that are not just being written."""
        try:
            there = {path.name for path in self._folder.iterdir()}
            own = {_file(self._folder, name).name: name for name in NAMES}
            damaged = any(file in there and name not in self.models for file, name in own.items())
            # checked after listing: all files listed are from before a successor
            if self._unstored or damaged or not self._stands():
                return
            kept = own.keys() | {file for one in self.models.values() for file in (one.policy, one.tensors)}
            brought = tuple(kept_name(ref, "") for ref in playing)
            for file in sorted(there - kept):  # .json before .safetensors: a description never lacks its weights
                if not file.lstrip(".").startswith(brought):  # temporary files begin with a dot
                    (self._folder / file).unlink(missing_ok=True)
            self.failure = ""
        except OSError as error:
            self.failure = f"cannot remove old models: {error.strerror}"


def _file(folder: Path, name: Name) -> Path:
    return folder / f"{name}.json"
