"""Progress lines of the changes that a target makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlctl.cli.context import ReaderGone, World
from rlctl.errors import RlctlError

if TYPE_CHECKING:
    from rlctl.backends.base import Applied


def follow(world: World, doing: Iterable[Applied], *, heard: bool = True) -> list[Applied]:
    """Print each change as it happens, consecutive ones of a role in one line; returns all, unchanged ones included.

    A target finishes what it has begun, even after a broken pipe on our output: half of a change would be worse.

    Args:
        heard: raise the error that kept a line from being written, once all is done.
    """
    done: list[Applied] = []
    group: list[Applied] = []
    unheard: list[RlctlError | ReaderGone] = []

    def say() -> None:
        if not unheard:
            try:
                _say(world, group)
            except (RlctlError, ReaderGone) as error:
                unheard.append(error)
        group.clear()

    try:
        for applied in doing:
            done.append(applied)
            if group and not _continues(group[-1], applied):
                say()
            if applied.what != "unchanged":
                group.append(applied)
    finally:
        say()
    if heard and unheard:
        raise unheard[0]
    return done


def _continues(last: Applied, applied: Applied) -> bool:
    role, slash, _ = applied.object.partition("/")
    return bool(slash) and (last.what, last.why, last.object.partition("/")[0]) == (applied.what, applied.why, role)


def _say(world: World, group: list[Applied]) -> None:
    if group:
        first, last = group[0], group[-1]
        objects = first.object if len(group) == 1 else f"{first.object} to {last.object}"
        world.say(f"{first.what} {objects}" + (f": {first.why}" if first.why else ""))


def nothing_done(done: Iterable[Applied]) -> bool:
    return all(applied.what == "unchanged" for applied in done)
