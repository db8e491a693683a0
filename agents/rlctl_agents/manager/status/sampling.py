"""Processes listed in the status: all of a small run; of ten thousand, the silent ones and a sample."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rlctl_agents.manager.membership.leases import Holder

LISTED = 100
"""Members of a role that are listed one by one."""
UNWELL = 50
"""Of these, at most so many because they are silent, when there are more members than that."""


def listed(members: Sequence[Holder], silent: Container[str]) -> list[Holder]:
    """The members of a role that are shown, by index.

    Args:
        members: all of them, by index.
        silent: boots that have not been heard for too long.
    """
    if len(members) <= LISTED:
        return list(members)
    shown = {one.index: one for one in [one for one in members if one.boot in silent][:UNWELL]}
    room = LISTED - len(shown)
    for number in range(room):  # evenly over all of them
        one = members[number * len(members) // room]
        shown.setdefault(one.index, one)
    return [shown[index] for index in sorted(shown)]


def counts(members: Sequence[Holder], silent: Container[str]) -> dict[str, int]:
    """How many there are, and how many of them are silent."""
    return {"live": len(members), "silent": sum(one.boot in silent for one in members)}
