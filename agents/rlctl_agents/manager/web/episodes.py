"""Recorded episodes on the volume: a bounded number, none of which is ever replaced by another of its name."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from rlctl_agents.runtime.storage import create_file
from rlctl_agents.types.control import Recorded

KEPT = 8
"""Of crashes, and of the best and worst of evaluations: the newest."""
_NAME = re.compile(r"([a-z]+)-([0-9]+)-([0-9]+)-(crash|worst|best)\.episode")


class Episodes:
    """Files `ROLE-INDEX-NUMBER-KIND.episode`: the line that describes an episode, then what was done in it.

    Numbers grow over all processes of the run, so a name is given once: the newest file is never removed, and the next
    number is above its own.

    Args:
        folder: made with the first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, process: str, recorded: Recorded) -> str:
        """Store an episode and remove those that are too many; its name, as `rlctl repro` takes it.

        Args:
            process: "actor-3".

        Raises:
            ValueError: its description is no line.
            OSError: it cannot be stored.
        """
        if b"\n" in recorded.header:
            raise ValueError("the description of an episode must be one line")
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = recorded.header + b"\n" + recorded.body
        number = max(self._numbers(), default=0) + 1
        while not create_file(self._folder / f"{process}-{number}-{recorded.kind}.episode", data):
            number += 1
        crash = recorded.kind == "crash"
        alike = {at: path for at, path in self._numbers().items() if path.stem.endswith("-crash") == crash}
        for old in sorted(alike)[:-KEPT]:
            with suppress(FileNotFoundError):
                alike[old].unlink()
        role, _, index = process.partition("-")
        return f"{role}/{index}@{number}"

    def _numbers(self) -> dict[int, Path]:
        """Number of every episode that is there."""
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return {int(name[3]): path for name, path in named if name is not None}
