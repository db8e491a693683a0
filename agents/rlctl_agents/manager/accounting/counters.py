"""Counters of a role over all its processes, living and dead: what each boot says of itself, summed up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec


class Cpu(NamedTuple):
    """CPU seconds since the beginning of the run, as processes have reported them: each its own, all its threads."""

    evaluators: float
    everything: float


class Boot(msgspec.Struct):
    """Newest counters of one process."""

    role: str
    counters: dict[str, float]


class StoredTotals(msgspec.Struct):
    """What outlives the manager."""

    closed: dict[str, dict[str, float]] = {}  # role -> counters of boots that never come back
    boots: dict[str, Boot] = {}


class Totals:
    """Sums that never fall: a boot's counters only grow, a new boot begins from 0 beside the old one."""

    def __init__(self) -> None:
        self._stored = StoredTotals()

    def hear(self, role: str, boot: str, counters: Mapping[str, float]) -> None:
        """Counters since boot; an older report, come late, changes nothing."""
        present = self._stored.boots.setdefault(boot, Boot(role, {})).counters
        for name, value in counters.items():
            if value > present.get(name, 0.0) or name not in present:
                present[name] = value

    def close(self, boot: str) -> None:
        """It never comes back."""
        ended = self._stored.boots.pop(boot, None)
        if ended is not None:
            sums = self._stored.closed.setdefault(ended.role, {})
            for name, value in ended.counters.items():
                sums[name] = sums.get(name, 0.0) + value

    def sum(self, role: str, name: str) -> float:
        """One counter over all boots."""
        open_sum = sum(boot.counters.get(name, 0.0) for boot in self._stored.boots.values() if boot.role == role)
        return self._stored.closed.get(role, {}).get(name, 0.0) + open_sum

    def of(self, role: str) -> dict[str, float]:
        """Every counter of a role."""
        found = dict(self._stored.closed.get(role, {}))
        for boot in self._stored.boots.values():
            if boot.role == role:
                for name, value in boot.counters.items():
                    found[name] = found.get(name, 0.0) + value
        return found

    def roles(self) -> list[str]:
        """Roles that have reported, in alphabetical order."""
        return sorted({*self._stored.closed, *(boot.role for boot in self._stored.boots.values())})

    def boots(self) -> set[str]:
        """Boots that are not closed."""
        return set(self._stored.boots)

    def store(self) -> StoredTotals:
        """For the next manager."""
        return self._stored

    def restore(self, stored: StoredTotals) -> None:
        """Go on from what another manager stored."""
        self._stored = stored
