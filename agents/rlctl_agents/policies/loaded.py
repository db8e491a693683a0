"""Stored policies in Python: loaded without a run, they map observations to actions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from rlctl import signing
from rlctl.errors import BadSignature, UsageError
from rlctl.spec.layout import Layout
from rlctl.spec.runs import run_index
from rlctl.spec.runs.model_names import TRIES, is_folder, split
from rlctl.spec.runs.run_index import Torn
from rlctl_agents.algorithms.base import ActInputs, Algorithm, AlgorithmError
from rlctl_agents.checkpoint.parts import Corrupt, PartError, read_part
from rlctl_agents.checkpoint.policy import PolicyFile, PolicyFileError
from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.envs.check import outside
from rlctl_agents.envs.masks import flattened
from rlctl_agents.models.weights import WeightsError
from rlctl_agents.training.stored_policy import load_kept, load_policy
from rlctl_agents.types.control import Generation
from rlctl_agents.types.spaces import Box, Dict, Space, Tuple, choices, leaf_array, leaves

DESCRIPTION = "policy.json"
Tensors = dict[str, torch.Tensor]


class State(NamedTuple):
    """Memory of a policy between two decisions of an episode. Opaque; None begins an episode."""

    memory: Tensors
    last_action: Tensors


class LoadedPolicy:
    """A stored policy that acts on one observation, or on many side by side.

    Observations are as the environment shows them in training: `frame_stack`, `resize` and the like are not applied
    here. Numbers of Discrete, MultiDiscrete and MultiBinary spaces count from 0, whatever `start` they have.
    """

    def __init__(self, described: PolicyFile, algorithm: Algorithm, *, seed: int = 0) -> None:
        self.described = described
        """Spaces, network, algorithm, version and agent steps of the policy."""
        self._algorithm = algorithm
        self._rng = np.random.default_rng(seed)
        self._observed = list(leaves(described.spaces.obs, "obs"))
        self._acted = list(leaves(described.spaces.action, "action"))

    def act(
        self,
        obs: Any,
        state: State | None = None,
        *,
        first: NDArray[np.bool_] | None = None,
        greedy: bool = True,
        legal: NDArray[np.bool_] | None = None,
        reward: float | NDArray[np.float32] | None = None,
    ) -> tuple[Any, State]:
        """Choose an action.

        Args:
            obs: an observation, in the nesting of its space; or K of them, each leaf with an axis [K] in front.
            state: returned by the decision before, for as many observations; None: an episode begins.
            first: [K] bool, True where an episode begins: the state is ignored there.
            greedy: the most likely action; False: a sampled one.
            legal: [n] or [K, n] bool, the legal options of all choices, needed where the environment has masks; of one
                observation also in the form that the environment gives.
            reward: after the decision before, one or [K], for a policy that looks at it, as those of r2d2 do.

        Returns:
            The action in the nesting of its space, boxes clipped to their bounds, and the state for the next decision.

        Raises:
            ValueError: the observation is not of the space or not finite, the state is of another number of
                observations, `legal` is missing where the environment has masks, `greedy` is not a bool, or `reward`
                is missing where the policy looks at it, or is not as many finite numbers.
        """
        if not isinstance(greedy, (bool, np.bool_)):
            raise ValueError(f"greedy is {greedy!r}, not True or False")
        arrays, many = self._arrays(obs)
        count = len(next(iter(arrays.values())))
        begun = np.full(count, state is None)
        if first is not None:
            begun |= self._rows("first", first, count, ())
        state = self._begin(count) if state is None else state
        for name, values in (*state.memory.items(), *state.last_action.items()):
            if len(values) != count:
                raise ValueError(f"the state is of {len(values)} observations, and these are {count} ({name})")
        is_first = torch.from_numpy(begun)
        wants = self._algorithm.needs_last
        if "reward" in wants and reward is None and not begun.all():
            raise ValueError("the policy looks at the last reward: act(obs, state, reward=...)")
        width = self._algorithm.noise_width
        noise = self._rng.random((count, width), dtype=np.float32).clip(1e-7, 1 - 1e-7)
        act = self._algorithm.act(
            ActInputs(
                {name: torch.from_numpy(values) for name, values in arrays.items()},
                is_first,
                state.memory,
                torch.from_numpy(noise),
                self._legal(legal, count),
                greedy,
                self.described.steps,
                {name: _since(is_first, last) for name, last in state.last_action.items()}
                if "action" in wants
                else None,
                _since(is_first, self._rewards(reward, count)) if "reward" in wants else None,
            )
        )
        chosen = {name: values.clone() for name, values in act.action.items()}
        action = self._nested(self.described.spaces.action, "action", chosen, many=many)
        return action, State({name: values.clone() for name, values in act.state.items()}, chosen)

    def _legal(self, legal: NDArray[np.bool_] | None, count: int) -> torch.Tensor | None:
        """Masks [count, n]; None where none are given."""
        if legal is None:
            if self.described.spaces.legal:
                raise ValueError("the environment has masks of legal options: act(obs, state, legal=...)")
            return None
        space = self.described.spaces.action
        try:
            rows = self._rows("legal", legal, count, (sum(choices(space)),))
        except ValueError:
            if count > 1:
                raise
            rows = flattened(space, legal)[None]
        return torch.from_numpy(rows)

    @staticmethod
    def _rewards(given: float | NDArray[np.float32] | None, count: int) -> torch.Tensor:
        """Rewards [count], given as one for all or one of each."""
        try:
            values = np.asarray(0.0 if given is None else given, np.float32)
        except (TypeError, ValueError):
            values = np.array(np.nan, np.float32)
        if values.shape not in ((), (count,)) or not np.isfinite(values).all():
            raise ValueError(f"reward is {given!r}, not one finite number or {count} of them")
        return torch.from_numpy(np.broadcast_to(values, count).copy())

    @staticmethod
    def _rows(name: str, given: NDArray[np.bool_], count: int, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Values [count, *shape], given for one observation or for many."""
        values = np.array(given, np.bool_)
        if values.shape not in ((count, *shape), *([shape] if count == 1 else [])):
            raise ValueError(f"{name} is {list(values.shape)}, not {[count, *shape]}")
        return values.reshape(count, *shape)

    def _begin(self, count: int) -> State:
        last: Tensors = {}
        for name, leaf in self._acted:
            dtype, shape = leaf_array(leaf)
            last[name] = torch.from_numpy(np.zeros((count, *shape), dtype))
        return State(self._algorithm.initial_state(count), last)

    def _arrays(self, obs: Any) -> tuple[dict[str, NDArray[Any]], bool]:
        """Leaves [K, ...], and whether there were many observations."""
        found: dict[str, NDArray[Any]] = {}
        extra: dict[str, int] = {}
        for name, leaf in self._observed:
            dtype, shape = leaf_array(leaf)
            value = np.asarray(_at(obs, name))
            entries = value.shape[1:] if value.ndim == len(shape) + 1 else value.shape
            if entries != shape:
                raise ValueError(
                    f"{name} is {list(value.shape)}, not {list(shape)} or [K{''.join(f', {n}' for n in shape)}]"
                )
            extra[name] = value.ndim - len(shape)
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                given = value.astype(dtype)
            if np.dtype(dtype).kind in "iu" and not np.array_equal(given, value):
                raise ValueError(f"{name} holds {value.dtype}, of which {dtype} cannot hold every value")
            if given.dtype.kind == "f" and not np.isfinite(given).all():  # a fault in training as well
                raise ValueError(f"{name} holds NaN, or what is infinite as {dtype}")
            if not isinstance(leaf, Box) and (odd := outside(leaf, given)).any():
                raise ValueError(
                    f"{name} holds {given[odd][0]}, which {leaf} has not: numbers go from 0, whatever `start` was"
                )
            found[name] = np.ascontiguousarray(given if extra[name] else given[None])
        sizes = {len(values) for values in found.values()}
        if len(set(extra.values())) > 1 or len(sizes) > 1:
            raise ValueError(f"leaves of the observation are not of equally many: {sorted(sizes)}")
        return found, bool(next(iter(extra.values())))

    def _nested(self, space: Space, name: str, chosen: Mapping[str, torch.Tensor], *, many: bool) -> Any:
        if isinstance(space, Dict):
            return {key: self._nested(item, f"{name}.{key}", chosen, many=many) for key, item in space.items.items()}
        if isinstance(space, Tuple):
            return tuple(
                self._nested(item, f"{name}.{index}", chosen, many=many) for index, item in enumerate(space.items)
            )
        values = chosen[name].numpy()
        if isinstance(space, Box):
            bounds = np.array([(low if low is not None else -np.inf, high if high is not None else np.inf)
                               for low, high in space.bounds()], np.float32)  # fmt: skip
            values = values.clip(bounds[:, 0].reshape(space.shape), bounds[:, 1].reshape(space.shape))
        return values if many else values[0]


def _since(first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Values [K, ...] of the decision before, zeros where an episode begins."""
    return last.masked_fill(first.view(-1, *[1] * (last.ndim - 1)), 0)


def load(where: str | Path, *, seed: int = 0, verify: str | Path | None = None) -> LoadedPolicy:
    """Load a stored policy; see `rlctl_agents.load`."""
    if verify is not None:
        where = Path(where)
        require_signed(where, Path(verify))
    return LoadedPolicy(*stored(where), seed=seed)


def stored(where: str | Path) -> tuple[PolicyFile, Algorithm]:
    """Description and algorithm of a stored policy, as `load` finds it.

    Raises:
        LookupError, ValueError: as `rlctl_agents.load`.
    """
    try:
        if isinstance(where, str) and not is_folder(where):
            for _ in range(TRIES - 1):
                with suppress(FileNotFoundError, Corrupt):  # a live run removes models that others have replaced
                    return _of_run(*split(where))
            return _of_run(*split(where))
        return load_kept(_file(Path(where)))
    except UsageError as error:
        raise LookupError(f"{error.message}, {error.hint}") from error
    except (PolicyFileError, PartError, StateError, WeightsError, AlgorithmError, RecursionError, OSError) as error:
        raise ValueError(f"{where}: {error}") from error


def require_signed(folder: Path, key: Path) -> None:
    """Require that a folder is signed.

    Raises:
        LookupError: there is no such folder.
        ImportError: the extra `signing` is not installed.
        ValueError: its signature is missing, or not valid for the key.
    """
    if not folder.is_dir():
        raise LookupError(f"verify is for a folder of `rlctl pull`, and there is none at {folder}")
    try:
        signing.verify(folder, key)
    except (UsageError, BadSignature) as error:
        kind = ImportError if isinstance(error.__cause__, ModuleNotFoundError) else ValueError
        raise kind(f"{error.message}: {error.hint}") from error


def _file(folder: Path) -> Path:
    if folder.is_file():
        raise LookupError(f"{folder} is a file: name the folder that `rlctl pull RUN@best DIR` made")
    file = folder / DESCRIPTION
    if not file.is_file():
        raise LookupError(f"{folder} holds no {DESCRIPTION}: `rlctl pull RUN@best DIR` makes such a folder")
    return file


def _of_run(run: str, which: str | None) -> tuple[PolicyFile, Algorithm]:
    layout = _layout(run)
    for name in ("goal", "best"):
        file = layout.models / f"{name}.json"
        if which in (None, name) and file.is_file():
            return load_kept(_selected(file))
    numbers = {int(path.stem.rpartition("-")[2]): path for path in layout.checkpoints.glob("generation-*.json")}
    wanted = max(numbers, default=0) if which in (None, "last") else int(which) if which.isdigit() else 0
    if wanted not in numbers:
        raise LookupError(f"run {run} has no model {which or ''}".rstrip() + f": see `rlctl models {run}`")
    try:
        stored = msgspec.json.decode(numbers[wanted].read_bytes(), type=dict[str, msgspec.Raw])["generation"]
        found = msgspec.json.decode(stored, type=Generation)
    except (msgspec.MsgspecError, KeyError) as error:
        raise ValueError(f"{numbers[wanted].name} is damaged: {error}") from error
    return load_policy(layout.checkpoints, found)


def _selected(file: Path) -> Path:
    """Path of the description of the model that was kept as goal or best; it has not changed since.

    Raises:
        PartError: it is missing, or its sha256 is another.
        ValueError: the file does not name one.
    """
    try:
        selected = json.loads(file.read_bytes())
        policy, stated = str(selected["policy"]), selected.get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} names no model: {type(error).__name__}: {error}") from error
    if stated:  # release 0.1 did not state it
        read_part(file.parent, policy, str(stated))
    return file.parent / policy


def _layout(run: str) -> Layout:
    """Folders of a run of this machine."""
    try:
        entry = run_index.read(run)
    except Torn as error:
        raise ValueError(error.message) from error
    if entry is None:
        beside = f"; the folder is ./{run}" if Path(run).is_dir() else ""
        raise LookupError(f"there is no run {run} on this machine{beside}")
    if entry.target != "local":
        raise LookupError(f"run {run} is on a cluster: `rlctl pull {run}@best DIR`, then load DIR")
    if not entry.uid or not entry.storage:
        raise ValueError(Torn(run, "uid or storage is missing").message)
    return Layout.of(Path(entry.storage), run, entry.uid)


def _at(obs: Any, name: str) -> Any:
    """Leaf of a nested observation, by its dotted name."""
    for key in name.split(".")[1:]:
        try:
            obs = obs[int(key)] if isinstance(obs, (tuple, list)) else obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the observation has no {name}") from error
    return obs
