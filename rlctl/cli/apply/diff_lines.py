"""Differences that an `apply` would make: per object + ~ - =, and a unified diff."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlctl.cli.context import World
from rlctl.cli.text import plain

if TYPE_CHECKING:
    from rlctl.backends.base import Difference
    from rlctl.changes import Change

_MARKS = {"add": "+", "change": "~", "remove": "-", "same": "="}


def say_changes(world: World, changes: Iterable[Change]) -> None:
    """Print the effect of each changed field: live, restart of its roles, refused."""
    for change in changes:
        world.data(f"{change.action + (' ' + change.role if change.role else ''):<18} {change.why}")


def tell(world: World, differences: Iterable[Difference]) -> list[Difference]:
    """Print differing objects as they are found, and the number of equal ones; returns all."""
    found = []
    for difference in differences:
        found.append(difference)
        if difference.what != "same":
            world.data(f"{_MARKS[difference.what]} {plain(difference.object)}")
            for line in difference.lines:
                world.data(plain(line))
    same = sum(difference.what == "same" for difference in found)
    if found:
        world.say(f"= {same} of {len(found)} objects are the same")
    return found


def differ(differences: Iterable[Difference]) -> bool:
    return any(difference.what != "same" for difference in differences)
