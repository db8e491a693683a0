"""Recorded episodes on the volume: a bounded number, under names that are never used twice."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rlctl_agents.runtime.storage import create_file
from rlctl_agents.types.control import Recorded

KEPT: Final = {"crash": 64, "extreme": 8}
"""Episodes kept, the newest: a run that fails for good has seen five crashes of each of its processes, and names the
first."""
REMEMBERED: Final = 10_000
KEPT_BYTES: Final = 1 << 26
"""Bytes of all crashes together, and of the worst and best episodes of evaluations together, at most."""
AT_ONCE_S: Final = 60.0
"""Seconds within which no more crashes are stored than are kept: crashes of one cause come together."""
_NAME = re.compile(r"([a-z]+)-([0-9]+)-([0-9]+)-(crash|worst|best)\.episode")


class Episodes:
    """Files `ROLE-INDEX-NUMBER-KIND.episode`: a line that describes an episode, then its body.

    Numbers grow over all processes of the run, so no name is used twice: the newest file is never removed, and the next
    number is above its own.

    Args:
        folder: created with the first episode.
        clock: monotonic seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._times: deque[float] = deque(maxlen=KEPT["crash"])  # at which crashes were kept
        self._crashed: deque[str] = deque(maxlen=REMEMBERED)  # boots: a process ends with its first crash
        self._reserved: deque[str] = deque(maxlen=REMEMBERED)  # boots that may send theirs

    def reserve(self, boot: str) -> None:
        """Reserve a place for the crash of a process; a repeated call changes nothing.

        Raises:
            ValueError: the process has reported a crash before, or so many others crashed just now that storing it
                would push out theirs.
        """
        if boot in self._reserved:
            return
        now = self._clock()
        if boot in self._crashed:
            raise ValueError("this process has told its crash already")
        if len(self._times) == self._times.maxlen and now - self._times[0] < AT_ONCE_S:
            raise ValueError(f"{len(self._times)} others that crashed within {AT_ONCE_S:g} s are kept")
        self._times.append(now)
        self._reserved.append(boot)

    def keep(self, process: str, recorded: Recorded) -> str:
        """Store an episode and remove those that are too many; returns its name, as `rlctl repro` takes it.

        Args:
            process: "actor-3".

        Raises:
            ValueError: the description is not one line; or of a crash as `reserve`.
            OSError: it cannot be stored.
        """
        if b"\n" in recorded.header:
            raise ValueError("the description of an episode must be one line")
        if crash := recorded.kind == "crash":
            self.reserve(recorded.boot)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = recorded.header + b"\n" + recorded.body
        number = max(self._numbers(), default=0) + 1
        while not create_file(self._folder / f"{process}-{number}-{recorded.kind}.episode", data):
            number += 1
        if crash:
            self._reserved.remove(recorded.boot)
            self._crashed.append(recorded.boot)
        self._tidy(crash)
        role, _, index = process.partition("-")
        return f"{role}/{index}@{number}"

    def _tidy(self, crash: bool) -> None:
        """Remove the oldest of those that are too many, or too large together."""
        alike = {at: path for at, path in self._numbers().items() if path.stem.endswith("-crash") == crash}
        total, most = 0, KEPT["crash" if crash else "extreme"]
        for place, number in enumerate(sorted(alike, reverse=True)):
            with suppress(FileNotFoundError):
                total += alike[number].stat().st_size
                if place and (place >= most or total > KEPT_BYTES):
                    alike[number].unlink()

    def _numbers(self) -> dict[int, Path]:
        """Stored episodes by number."""
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return {int(name[3]): path for name, path in named if name is not None}
