"""Recorded episodes of a run: its environments' failures, and the worst and best of its evaluations."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rlctl.cli.models.listing import LAST_MOMENT, PIECE_BYTES
from rlctl.errors import RlctlError, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import StoredFiles

_FILE: Final = re.compile(r"([a-z]+)-([0-9]+)-([0-9]+)-(crash|worst|best)\.episode")
_NAME: Final = re.compile(r"[a-z]+/[0-9]+@[0-9]+")
_LARGEST_LINE_BYTES: Final = 2**20
_LARGEST_BYTES: Final = 2**24
_KINDS: Final = {
    "actions": (int,), "begin": (int,), "created": (int, float), "returned": (int, float, type(None)), "error": (str,),
    "model": (dict, type(None)), "starts": (list,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Episode:
    """A recorded episode, from the header of its file."""

    name: str  # "actor/3@17"
    kind: str  # crash, worst or best
    file: str
    number: int
    bytes: int
    header: dict[str, Any] = field(default_factory=dict)
    damaged: str = ""

    @property
    def steps(self) -> int:
        """Steps of the episode, with the one that failed."""
        return max(0, int(self.header["actions"]) - int(self.header["begin"]))


def is_name(text: str) -> bool:
    """Whether a text names an episode, as in actor/3@17."""
    return _NAME.fullmatch(text) is not None


def recorded(files: StoredFiles) -> list[Episode]:
    """Every recorded episode of a run, newest first.

    Raises:
        RlctlError: the volume cannot be read.
    """
    found = []
    for file, size in files.sizes("episodes").items():
        if named := _FILE.fullmatch(file):
            header, damaged = _header(files, file, size)
            name = f"{named[1]}/{named[2]}@{named[3]}"
            found.append(Episode(name, named[4], file, int(named[3]), size, header, damaged))
    return sorted(found, key=lambda one: -one.number)


def chosen(episodes: list[Episode], run: str, name: str) -> Episode:
    """The episode of that name.

    Raises:
        UsageError: there is none.
    """
    for one in episodes:
        if one.name == name:
            return one
    if not episodes:
        raise UsageError(f"run {run} has recorded no episode yet", hint=WHEN)
    names = ", ".join(f"{one.name} ({one.kind})" for one in episodes)
    raise UsageError(f"run {run} has no episode {name}", hint=f"it has {names}; older ones are removed")


WHEN: Final = "one is recorded where an environment fails, and the worst and best of each evaluation"


def _header(files: StoredFiles, file: str, size: int) -> tuple[dict[str, Any], str]:
    """Header in the first line of a file, or the reason why there is none."""
    line = b""
    if size > _LARGEST_BYTES:
        return {}, f"it is damaged: no episode is larger than {_LARGEST_BYTES >> 20} MiB"
    try:
        while b"\n" not in line and len(line) < _LARGEST_LINE_BYTES:
            piece = files.read("episodes", file, len(line), PIECE_BYTES if line else 2**14)
            if not piece:
                break
            line += piece
        header = json.loads(line.partition(b"\n")[0])
        if header["format"] != 1:
            raise ValueError(f"it is in format {str(header['format'])[:40]}, this release reads format 1")
        for key, kinds in _KINDS.items():
            if type(header[key]) not in kinds:
                raise ValueError(f"{key} is {str(header[key])[:40]!r}")
        if not 0 <= header["created"] < LAST_MOMENT:
            raise ValueError("it was recorded at no time that has a date")
    except RlctlError as error:  # removed just now
        return {}, error.message
    except KeyError as error:
        return {}, f"it is damaged: it lacks {error}"
    except (ValueError, TypeError, RecursionError) as error:
        return {}, f"it is damaged: {error}"
    return header, ""
