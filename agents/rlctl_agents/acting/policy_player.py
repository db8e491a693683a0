"""Policies that act for the slots of an environment vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl_agents.acting.random_streams import Noise
from rlctl_agents.algorithms.base import Algorithm
from rlctl_agents.types.experience import Array, Arrays, Decisions
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves

STREAMS_PER_LEASE = 1_000_000
"""Stream ids of the process with lease index i begin at i times this."""


class Chosen(NamedTuple):
    """What a policy decided, as numpy arrays."""

    action: dict[str, NDArray[Any]]  # leaf name -> [K, ...]
    record: dict[str, NDArray[Any]]  # further fields of the row -> [K, ...]


class Player:
    """One policy acting for some slots; keeps their memory between decisions.

    Args:
        algorithm: its weights may change between two calls of `act`.
        stream: [slots] ids, for the noise.
        seed: of the noise.
        rows: noise is made for so many rows at once.
        greedy: the most likely action instead of a sampled one.
    """

    def __init__(
        self, algorithm: Algorithm, stream: NDArray[np.int64], *, seed: int, rows: int, greedy: bool = False
    ) -> None:
        self.algorithm = algorithm
        self._greedy = greedy
        self._slots = stream.size
        self._noise = Noise(seed, stream, algorithm.noise_width, rows)
        self._state: dict[str, NDArray[Any]] = {
            name: values.numpy() for name, values in algorithm.initial_state(self._slots).items()
        }

    def state(self, slot: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Memory of these slots before their next decision, [K, ...]; valid until they act."""
        if slot.size == self._slots:
            return self._state
        return {name: values[slot] for name, values in self._state.items()}

    def act(self, decisions: Decisions) -> Chosen:
        """Decide for the slots that wait; their numbers are this player's own, from 0."""
        slot = decisions.slot
        act = self.algorithm.act(
            {name: as_tensor(leaf) for name, leaf in decisions.obs.items()},
            as_tensor(decisions.first),
            {name: as_tensor(values) for name, values in self.state(slot).items()},
            as_tensor(self._noise.take(slot)),
            None if decisions.legal is None else as_tensor(decisions.legal),
            greedy=self._greedy,
        )
        for name, values in act.state.items():
            if slot.size == self._slots:
                self._state[name] = values.numpy()
            else:
                self._state[name][slot] = values.numpy()
        return Chosen(
            {name: values.numpy() for name, values in act.action.items()},
            {name: values.numpy() for name, values in act.record.items()},
        )


class Table:
    """Which player sits where: splits decisions among the players and puts their actions together.

    Args:
        spaces: of the environment.
        envs: environments side by side.
        seats: seats of each player; together all seats of the environment, each once.

    Raises:
        ValueError: a seat without a player, or with two.
    """

    def __init__(self, spaces: Spaces, envs: int, seats: Sequence[Sequence[int]]) -> None:
        if sorted(seat for group in seats for seat in group) != list(range(spaces.seats)):
            raise ValueError(
                f"players sit on {[list(group) for group in seats]}, the environment has {spaces.seats} seats"
            )
        slots = np.arange(envs * spaces.seats, dtype=np.int64)
        self.slots = [slots[np.isin(slots % spaces.seats, list(group))] for group in seats]
        """Slots of each player, ascending: number i of the player is slots[i]."""
        self._owner = np.zeros(slots.size, np.int64)
        self._number = np.zeros(slots.size, np.int64)
        for player, owned in enumerate(self.slots):
            self._owner[owned] = player
            self._number[owned] = np.arange(owned.size)
        self._leaves = [(name, *leaf_array(leaf)) for name, leaf in leaves(spaces.action, "action")]

    def split(self, decisions: Decisions) -> list[tuple[int, NDArray[np.int64], Decisions]]:
        """For every player that has to act: its number, its rows of the decisions, and these with its own slots."""
        if len(self.slots) == 1:
            return [(0, np.arange(decisions.slot.size), decisions)]
        owner = self._owner[decisions.slot]
        parts = []
        for player in range(len(self.slots)):
            rows = np.flatnonzero(owner == player)
            if rows.size:
                parts.append((player, rows, self._select(decisions, rows)))
        return parts

    def join(self, parts: Sequence[tuple[NDArray[np.int64], Mapping[str, Array]]], count: int) -> Arrays:
        """One action per decision from rows and actions of the players."""
        if len(parts) == 1:
            return dict(parts[0][1])
        joined: dict[str, NDArray[Any]] = {
            name: np.zeros((count, *shape), dtype) for name, dtype, shape in self._leaves
        }
        for rows, action in parts:
            for name, values in joined.items():
                values[rows] = action[name]
        return dict(joined)

    def _select(self, decisions: Decisions, rows: NDArray[np.int64]) -> Decisions:
        return Decisions(
            slot=self._number[decisions.slot[rows]],
            obs={name: leaf[rows] for name, leaf in decisions.obs.items()},
            reward=decisions.reward[rows],
            terminated=decisions.terminated[rows],
            truncated=decisions.truncated[rows],
            first=decisions.first[rows],
            legal=None if decisions.legal is None else decisions.legal[rows],
        )


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the array's memory; a read-only array is copied, torch has no read-only tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def stream_ids(index: int, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids of the streams of slots of the process with this lease index."""
    return index * STREAMS_PER_LEASE + slots
