"""Policies, which choose actions for decisions, and the table that assigns a policy to each slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Array, Arrays, Decisions
from rlctl_agents.types.spaces import Spaces, leaf_array, leaves


class Chosen(NamedTuple):
    """Chosen actions of a policy, in arrays that stay valid until the next call."""

    action: dict[str, NDArray[Any]]  # leaf name -> [K, ...]
    record: dict[str, NDArray[Any]]  # further fields of the row -> [K, ...]


class Policy(Protocol):
    """Chooser of actions for some slots, numbered from 0: a network here, a client of central inference, a bot.

    Each decision of a slot is passed to `act` exactly once, in order. A user's own class derives from this one, and
    overrides `state` where the schema has fields of a memory.
    """

    def act(self, decisions: Decisions) -> Chosen:
        """Choose actions for the slots that wait.

        Args:
            decisions: K of this policy's slots; the action of a slot whose episode has ended is ignored.
        """

    def state(self, slot: NDArray[np.int64]) -> Mapping[str, NDArray[Any]]:
        """Memory of these slots before their next decision, [K, ...] per `segment` field; valid until they act."""
        return {}


class Table:
    """Assignment of slots to policies: splits decisions among policies and joins their actions.

    Args:
        spaces: of the environment.
        owner: [envs * seats] number of the policy that acts for each slot, from 0 without gaps.

    Raises:
        ValueError: a policy without a slot, or a number below 0.
    """

    def __init__(self, spaces: Spaces, owner: NDArray[np.int64]) -> None:
        owners = np.unique(owner)
        if owner.size == 0 or not np.array_equal(owners, np.arange(owners.size)):
            raise ValueError(f"owners of slots must be 0, 1, ... without gaps, got {owners[:8].tolist()}")
        self.slots = [np.flatnonzero(owner == policy) for policy in owners]
        """Slots of each policy, ascending: the policy's own slot i is slots[policy][i]."""
        self._owner = owner
        self._number = np.zeros(owner.size, np.int64)
        for owned in self.slots:
            self._number[owned] = np.arange(owned.size)
        self._leaves = [(name, *leaf_array(leaf)) for name, leaf in leaves(spaces.action, "action")]

    @classmethod
    def of_seats(cls, spaces: Spaces, envs: int, seats: Sequence[Sequence[int]]) -> Table:
        """Table with the same policy at the same seats of every environment.

        Args:
            envs: number of environments side by side.
            seats: seats of each policy; together all seats of the environment, each once.

        Raises:
            ValueError: a seat without a policy, or with two.
        """
        if sorted(seat for group in seats for seat in group) != list(range(spaces.seats)):
            raise ValueError(
                f"players sit on {[list(group) for group in seats]}, the environment has {spaces.seats} seats"
            )
        at = np.zeros(spaces.seats, np.int64)
        for policy, group in enumerate(seats):
            at[list(group)] = policy
        return cls(spaces, np.tile(at, envs))

    def split(self, decisions: Decisions) -> list[tuple[int, NDArray[np.int64], Decisions]]:
        """Split decisions by policy: for each that acts its number, its rows, and the decisions with its own slots."""
        if len(self.slots) == 1:
            return [(0, np.arange(decisions.slot.size), decisions)]
        owner = self._owner[decisions.slot]
        parts = []
        for number in range(len(self.slots)):
            rows = np.flatnonzero(owner == number)
            if rows.size:
                parts.append((number, rows, self._select(decisions, rows)))
        return parts

    def join(self, parts: Sequence[tuple[NDArray[np.int64], Mapping[str, Array]]], count: int) -> Arrays:
        """One action per decision from rows and actions of the policies."""
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
