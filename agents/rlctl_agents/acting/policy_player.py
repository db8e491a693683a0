"""Policy of a network in this process: its current weights, and the memory, noise and last steps of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl_agents.acting.policy import Chosen, Policy
from rlctl_agents.acting.random_streams import Noise
from rlctl_agents.algorithms.base import ActInputs, Algorithm
from rlctl_agents.models.weights import unpack_into
from rlctl_agents.types.experience import Decisions
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves
from rlctl_agents.weights.client import Model

STREAMS_PER_LEASE = 1_000_000
"""Number of stream ids per process: those of the process with lease index i begin at i times this."""


class NetworkPolicy(Policy):
    """Policy of one network for some slots; keeps their memory between decisions.

    Args:
        algorithm: its weights may change between two calls of `act`.
        stream: [slots] stream ids, for the noise.
        seed: of the noise.
        rows: rows of noise made at once.
        greedy: True for the most likely action instead of a sampled one.
        spaces: of the environment; needed by an algorithm that uses last actions.

    Raises:
        ValueError: the algorithm uses last actions, and there are no spaces.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        stream: NDArray[np.int64],
        *,
        seed: int,
        rows: int,
        greedy: bool = False,
        spaces: Spaces | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.progress = 0
        """Agent steps that the weights were learned from."""
        self._greedy = greedy
        self._slots = stream.size
        self._noise = Noise(seed, stream, algorithm.noise_width, rows)
        self._stream = torch.from_numpy(stream)
        self._state: dict[str, NDArray[Any]] = {
            name: values.numpy() for name, values in algorithm.initial_state(self._slots).items()
        }
        self._keeps_action = "action" in algorithm.needs_last
        self._keeps_reward = "reward" in algorithm.needs_last
        self._last: dict[str, NDArray[Any]] = {}  # leaf -> [slots, ...] chosen last
        if self._keeps_action:
            if spaces is None:
                raise ValueError(f"{type(algorithm).__name__} looks at last actions: give the spaces")
            for name, leaf in leaves(spaces.action, "action"):
                dtype, shape = leaf_array(leaf)
                self._last[name] = np.zeros((self._slots, *shape), dtype)

    def load(self, model: Model) -> None:
        """Act with these weights from now on.

        Raises:
            WeightsError: they belong to another network.
        """
        self.progress = unpack_into(self.algorithm.net, model.data, sha256=model.sha256)

    def state(self, slot: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        if slot.size == self._slots:
            return self._state
        return {name: values[slot] for name, values in self._state.items()}

    def act(self, decisions: Decisions) -> Chosen:
        slot = decisions.slot
        act = self.algorithm.act(
            ActInputs(
                {name: as_tensor(leaf) for name, leaf in decisions.obs.items()},
                as_tensor(decisions.first),
                {name: as_tensor(values) for name, values in self.state(slot).items()},
                as_tensor(self._noise.take(slot)),
                None if decisions.legal is None else as_tensor(decisions.legal),
                self._greedy,
                self.progress,
                self._last_action(decisions) if self._keeps_action else None,
                as_tensor(np.where(decisions.first, np.float32(0), decisions.reward)) if self._keeps_reward else None,
                self._stream if slot.size == self._slots else self._stream[slot],
            )
        )
        for name, values in act.state.items():
            if slot.size == self._slots:
                self._state[name] = values.numpy()
            else:
                self._state[name][slot] = values.numpy()
        action = {name: values.numpy() for name, values in act.action.items()}
        if self._keeps_action:
            self._keep_action(slot, action)
        return Chosen(action, {name: values.numpy() for name, values in act.record.items()})

    def _last_action(self, decisions: Decisions) -> dict[str, Tensor]:
        found = {name: values[decisions.slot] for name, values in self._last.items()}
        for values in found.values():
            values[decisions.first] = 0
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def _keep_action(self, slot: NDArray[np.int64], action: Mapping[str, NDArray[Any]]) -> None:
        for name, values in action.items():
            self._last[name][slot] = values


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the array's memory; a copy where torch has no such tensors: read-only, mirrored (`array[::-1]`), or a
    field of a packed structure."""
    known = array.flags.forc or all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    return torch.from_numpy(array if known and array.flags.writeable else array.copy())


def stream_ids(index: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stream ids of these slots of the process with this lease index."""
    return index * STREAMS_PER_LEASE + slots
