"""Events of a run, newest last: in memory for watchers, and in a file for good."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlctl_agents.runtime.storage import append

REMEMBERED = 2000
BURST, BURST_S = 100, 10.0
"""Events of one kind and role that are reported singly within BURST_S seconds; any more are counted."""
_TAIL_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class JsonLines:
    """Append-only file of one JSON object per line. A full disk costs lines, never the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.failure = ""
        """Why the newest line is not in the file; "" if it is."""
        self._mend()

    def append(self, value: dict[str, Any]) -> None:
        """Append a whole line or none; never raises: see `failure`."""
        try:
            with self._path.open("ab", buffering=0) as file:
                append(file, json.dumps(value).encode() + b"\n")
            self.failure = ""
        except OSError as error:
            self.failure = f"cannot write {self._path}: {error.strerror}"
            log.error("%s", self.failure)

    def last(self) -> dict[str, Any] | None:
        """Newest line that can be read; None: none."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(file.seek(0, 2) - _TAIL_BYTES, 0))
                lines = file.read().splitlines()
        except OSError:
            return None
        for line in reversed(lines):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
        return None

    def _mend(self) -> None:
        """Terminate a line that a power cut left open."""
        try:
            with self._path.open("r+b") as file:
                if file.seek(0, 2) and file.seek(-1, 2) is not None and file.read(1) != b"\n":
                    file.write(b"\n")
        except OSError:
            pass


LONGEST = 4000
"""Characters of an event's text, at most: the file is never cut, and is on the volume of the models."""


@dataclass
class _Burst:
    """Events of one kind and role within BURST_S."""

    since: float
    told: int = 0
    more: int = 0
    last: str = ""  # text of the newest one that was only counted


class Events:
    """Events, numbered from 1 over all managers of a run. Of ten thousand at once, the first hundred are reported
    singly and the others counted.

    Args:
        path: file, events.jsonl.
        unix: Unix time in seconds.
    """

    def __init__(self, path: Path, unix: Callable[[], float]) -> None:
        self._file = JsonLines(path)
        self._unix = unix
        self._lock = threading.Lock()
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._bursts: dict[tuple[str, str], _Burst] = {}  # (kind, role)
        number = (self._file.last() or {}).get("n", 0)
        self._number = number if isinstance(number, int) else 0

    def add(self, kind: str, text: str, **values: Any) -> None:
        """Report an event.

        Args:
            kind: one word for machines, such as "lease".
            text: a sentence.
            values: further fields of the event.
        """
        now, of = self._unix(), (kind, str(values.get("role", "")))
        burst = self._bursts.setdefault(of, _Burst(now))
        if not 0 <= now - burst.since < BURST_S:
            self._sum_up(kind, burst)
            self._bursts[of] = burst = _Burst(now)
        if burst.told == BURST:
            burst.more, burst.last = burst.more + 1, text
            return
        burst.told += 1
        self._add(kind, text, values)

    def settle(self) -> None:
        """Report the events that were only counted, once their burst is over; to be called now and then."""
        now = self._unix()
        for of, burst in list(self._bursts.items()):
            if not 0 <= now - burst.since < BURST_S:
                self._sum_up(of[0], burst)
                del self._bursts[of]

    def since(self, number: int) -> tuple[list[dict[str, Any]], int]:
        """Remembered events after that number, and the number of the newest. Thread-safe."""
        with self._lock:
            return [event for event in self._recent if event["n"] > number], self._number

    @property
    def failure(self) -> str:
        """Failure to write the newest event to the file, in words; "" without one."""
        return self._file.failure

    def _sum_up(self, kind: str, burst: _Burst) -> None:
        if burst.more == 1:
            self._add(kind, burst.last, {})
        elif burst.more:
            self._add(kind, f"and {burst.more} more like this, the last one: {burst.last}", {"count": burst.more})

    def _add(self, kind: str, text: str, values: dict[str, Any]) -> None:
        with self._lock:
            self._number += 1
            event = {"n": self._number, "time": round(self._unix(), 3), "kind": kind, "text": text[:LONGEST], **values}
            self._recent.append(event)
        self._file.append(event)
        log.info("%s", event["text"], extra={"kv": {"event": kind, **values}})
