"""Changes of a target, told as they are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlctl.cli.context import ReaderGone, World
from rlctl.errors import RlctlError

if TYPE_CHECKING:
    from rlctl.backends.base import Applied


def follow(world: World, doing: Iterable[Applied], *, heard: bool = True) -> list[Applied]:
    """Say every change as it happens, neighbours of a role in one line; returns all, the unchanged ones too.

    A target that has begun ends its work, even when the reader of our output has gone: half of it would be worse.

    Args:
        heard: what keeps a line from being written is raised once all is done.
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
        objects = first.object if len(group) == 1 else f"{first.object} to {last.object.rpartition('/')[2]}"
        world.say(f"{first.what} {objects}" + (f": {first.why}" if first.why else ""))


def nothing_done(done: Iterable[Applied]) -> bool:
    return all(applied.what == "unchanged" for applied in done)
