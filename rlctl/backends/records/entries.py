"""Parser of the log lines of one process into records.

A role writes one JSON object per line. Any other line is raw text (a print, a traceback of the interpreter): it takes
the time of the record before it, and a traceback is one record, of level ERROR. Text that an environment prints without
a line end precedes a record on the same line: it is split off as a line of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from rlctl.backends.base import LogRecord

_LONGEST_TRACE = 2000
TRACE_STARTS = (b"Traceback (most recent call last):", b"Fatal Python error:", b"Current thread 0x", b"Thread 0x")
_TRACE_LINK = (b"During handling of the above exception", b"The above exception was the direct cause")
TIMESTAMP = re.compile(rb'\{"ts": ?"([0-9T:.-]{19,26}Z)"')
_TRIED = 8
"""Possible starts of a record that are tried from the end of a line, besides the first: text may hold thousands."""
_RECORD = re.compile(TIMESTAMP.pattern + rb', ?"level": ?"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as bytes, parsed on demand."""

    head: bytes  # a JSON line, or the first raw line
    rest: tuple[bytes, ...]  # further lines of a raw record
    is_json: bool

    @property
    def text(self) -> bytes:
        return b"\n".join((self.head, *self.rest))


def parted(line: bytes) -> list[bytes]:
    """Split a line that ends with a record into the text before it and the record; any other line stays whole.

    The text may hold braces, JSON and starts of records: a record is JSON up to the end of the line.

    Example:
        `parted(b'step {{"ts": "2026-11-21T03:00:00Z", "level": "INFO"}')` is
        `[b'step {', b'{"ts": "2026-11-21T03:00:00Z", "level": "INFO"}']`.
    """
    starts = [found.start() for found in _RECORD.finditer(line)]
    if not starts or starts == [0]:
        return [line]
    for start in dict.fromkeys((*reversed(starts[-_TRIED:]), starts[0])):
        try:
            json.loads(line[start:])
        except (ValueError, RecursionError):
            continue
        return [line[:start], line[start:]] if start else [line]
    return [line]


def entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Group lines, without their line ends, into records."""
    group = Grouper()
    for line in lines:
        yield from group.add(line)
    yield from group.flush()


class Grouper:
    """Groups the lines of a traceback into one record; every other line is a record by itself."""

    def __init__(self) -> None:
        self._trace: list[bytes] = []
        self._ended = False  # the line that names the exception was seen; only a linked traceback may follow

    def add(self, line: bytes) -> list[Entry]:
        """Add a line; returns the records that are complete with this line."""
        return [entry for part in parted(line) for entry in self._add(part)]

    def _add(self, line: bytes) -> list[Entry]:
        if self._trace and self._continues(line):
            if len(self._trace) < _LONGEST_TRACE:
                self._trace.append(line)
            return []
        done = self.flush()
        if line.startswith(b'{"'):
            return [*done, Entry(line, (), True)]
        if line.startswith(TRACE_STARTS):
            self._trace = [line]
            return done
        return [*done, Entry(line, (), False)] if line.strip() else done

    def _continues(self, line: bytes) -> bool:
        if line.startswith(b'{"'):
            return False
        if line[:1] in (b" ", b"\t") or not line.strip() or line.startswith(_TRACE_LINK):
            return True
        if line.startswith(TRACE_STARTS):
            self._ended = False
            return True
        if self._ended:
            return False
        self._ended = True
        return True

    def flush(self) -> list[Entry]:
        """Return the entries collected, complete or not."""
        lines, self._trace, self._ended = self._trace, [], False
        while lines and not lines[-1].strip():
            lines.pop()
        return [Entry(lines[0], tuple(lines[1:]), False)] if lines else []


class Parser:
    """Parser of the entries of one process, in their order, into records.

    Args:
        process: "actor/7".
        origin: returns the time of raw text that no record precedes.
    """

    def __init__(self, process: str, origin: Callable[[], datetime]) -> None:
        self._process = process
        self._origin = origin
        self._before: Entry | None = None  # the last entry with a time of its own
        self._parsed: LogRecord | None = None  # its record, parsed on demand

    @property
    def started(self) -> bool:
        """Whether a record with a time of its own was seen."""
        return self._before is not None

    def see(self, entry: Entry) -> None:
        """Remember the time of an entry, wanted or not."""
        if entry.is_json and TIMESTAMP.match(entry.head):
            self._before, self._parsed = entry, None

    def parse(self, entry: Entry) -> LogRecord:
        """The record of the entry seen last."""
        text = entry.text.decode("utf-8", errors="replace")
        if entry.is_json and (parsed := _from_json(text, self._process)) is not None:
            return parsed
        before = self._record_before()
        boot = {"boot": before.extra["boot"]} if "boot" in before.extra else {}
        trace = bool(entry.rest) or entry.head.startswith(TRACE_STARTS)
        return LogRecord(before.time, "ERROR" if trace else "INFO", self._process, text, boot)

    def _record_before(self) -> LogRecord:
        if self._parsed is None and self._before is not None:
            self._parsed = _from_json(self._before.text.decode("utf-8", errors="replace"), self._process)
        return self._parsed or LogRecord(self._origin(), "INFO", self._process, "")


def _from_json(text: str, process: str) -> LogRecord | None:
    try:
        line = json.loads(text)
        time = datetime.fromisoformat(line["ts"])
        extra = dict(line.get("kv") or {})
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    extra |= {key: line[key] for key in ("boot", "exc") if line.get(key)}
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return LogRecord(time, str(line.get("level", "INFO")), process, str(line.get("msg", "")), extra)
