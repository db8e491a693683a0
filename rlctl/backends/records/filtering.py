"""Filter of log records by a query: cheap tests on bytes come before any parsing."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from rlctl.backends.base import LogQuery, LogRecord
from rlctl.backends.records.entries import TIMESTAMP, TRACE_STARTS, Entry
from rlctl.errors import UsageError

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}
_SEARCHED_WHOLE = 32 << 20


class Filter:
    """Compiled query.

    Raises:
        UsageError: `grep` is no regular expression, or the level is unknown.
    """

    def __init__(self, query: LogQuery) -> None:
        try:
            self._grep = None if query.grep is None else re.compile(query.grep.encode())
        except (re.error, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"--grep {query.grep!r} is not a regular expression: {error}") from error
        if query.level is not None and query.level.upper() not in LEVELS:
            raise UsageError(
                f"--level must be one of {', '.join(name.lower() for name in LEVELS)}, got {query.level!r}"
            )
        whole = query.grep is None or r"\A" in query.grep or r"\Z" in query.grep  # \A, \Z differ in a whole file
        self._anywhere = None if whole else re.compile((query.grep or "").encode(), re.MULTILINE)
        self._level = 0 if query.level is None else LEVELS[query.level.upper()]
        self._level_said = _saying(self._level) if self._level > LEVELS["INFO"] else None  # raw text is INFO
        self._since, self._until = query.since, query.until
        self._since_bytes, self._until_bytes = _stamp(query.since), _stamp(query.until)

    def maybe(self, entry: Entry) -> bool:
        """Whether a record may match, by its bytes; a False is certain."""
        if self._grep is not None and not self._grep.search(entry.text):
            return False
        if self._level_said is not None and entry.is_json and not self._level_said.search(entry.head):
            return False
        if (self._since_bytes or self._until_bytes) and (found := TIMESTAMP.match(entry.head)):
            stamp = found[1][:19]  # to the second: fractions have no fixed length
            return not (
                (self._since_bytes and stamp < self._since_bytes) or (self._until_bytes and stamp > self._until_bytes)
            )
        return True

    def maybe_in(self, path: Path, size: int) -> bool:
        """Whether a record of a file may match; a False is certain. The search costs a tenth of reading its lines."""
        if (self._anywhere is None and self._level_said is None) or size > _SEARCHED_WHOLE:
            return True
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        if self._anywhere is not None and not self._anywhere.search(data):
            return False
        return (
            self._level_said is None or bool(self._level_said.search(data)) or any(one in data for one in TRACE_STARTS)
        )

    def wants(self, found: LogRecord) -> bool:
        return (
            LEVELS.get(found.level, 20) >= self._level
            and (self._since is None or found.time >= self._since)
            and (self._until is None or found.time <= self._until)
        )


def _saying(level: int) -> re.Pattern[bytes]:
    """Pattern found in every JSON line of at least this level."""
    return re.compile(rb'"level"\s*:\s*"(?:%s)"' % "|".join(at for at, n in LEVELS.items() if n >= level).encode())


def _stamp(time: datetime | None) -> bytes:
    return b"" if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
