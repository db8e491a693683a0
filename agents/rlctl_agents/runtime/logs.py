"""One JSON object per log line, on stdout; a traceback belongs to the line that it came with."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypeVar

REPEATS = 10
"""Lines of one call of the logger that are let through in `REPEATS_WINDOW_S`; the rest are counted."""
REPEATS_WINDOW_S = 10.0
RECENT_LINES = 200
RECENT_CHARACTERS = 64 * 1024
LINES, CHARACTERS = 2000, 8 << 20
"""Lines of other processes that a manager remembers, and their characters together, at most."""
LINE_CHARACTERS = 16 * 1024
"""Longest message; the rest is cut, so that readers of the log get it as one line."""
PACKAGE = __name__.partition(".")[0]

_UNDISTURBED = logging.Manager(logging.root)
"""Manager of this package's loggers, which `logging.disable` does not know."""

T = TypeVar("T")


def stamp(moment: datetime) -> str:
    """Timestamp of a log line, in UTC; timestamps sort as text: 2026-11-21T04:03:12.000000Z."""
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


@dataclass
class Identity:
    """Process that writes a log line; `id` changes once, when the lease is granted."""

    run: str
    role: str
    id: str  # "actor/3"
    boot: str


class JsonFormatter(logging.Formatter):
    """A record as `{"ts", "level", "run", "role", "id", "boot", "msg", "kv", "exc"}`; exc only with an exception.

    Values for machines go into kv: `log.info("lease granted", extra={"kv": {"index": 3}})`; a traceback of which only a
    part is to be shown goes into exc likewise.
    """

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.identity = identity

    def format(self, record: logging.LogRecord) -> str:
        who = self.identity
        line: dict[str, Any] = {
            "ts": stamp(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname,
            "run": who.run,
            "role": who.role,
            "id": who.id,
            "boot": who.boot,
            "msg": _cut(record.getMessage()),
            "kv": {name: _as_json(value) for name, value in getattr(record, "kv", {}).items()},
        }
        if record.exc_info:
            line["exc"] = _cut(self.formatException(record.exc_info))
        elif text := getattr(record, "exc", ""):
            line["exc"] = _cut(text)
        text = json.dumps(line, default=str, ensure_ascii=False)
        return text.encode(errors="replace").decode()  # a file name that is not UTF-8 has half characters


def _as_json(value: Any) -> Any:
    """The value, or its name where JSON has no such number: "nan", "inf", "-inf"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut(text: str) -> str:
    return text if len(text) <= LINE_CHARACTERS else f"{text[:LINE_CHARACTERS]} ... ({len(text)} characters)"


def _event(record: logging.LogRecord) -> tuple[str, str]:
    """Kind and role of an event of the run; ("", ""): the record is no event."""
    values = getattr(record, "kv", None)
    if not isinstance(values, dict) or not isinstance(values.get("event"), str):
        return "", ""
    return values["event"], str(values.get("role", ""))


class RepeatFilter(logging.Filter):
    """Lets the first lines of a call of the logger through, counts the rest, and says how many with the next one.
    Events of the run, all logged by one call, count apart by kind and role: none hides another one.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str | int, ...], tuple[float, int, int]] = {}  # window's start, passed, suppressed

    def filter(self, record: logging.LogRecord) -> bool:
        key = (record.name, record.levelno, str(record.msg)[:200], *_event(record))
        now = self._clock()
        with self._lock:
            if len(self._seen) > 1000:
                self._seen.clear()
            since, passed, suppressed = self._seen.get(key, (now, 0, 0))
            if now - since >= REPEATS_WINDOW_S:
                since, passed = now, 0
            if passed >= REPEATS:
                self._seen[key] = (since, passed, suppressed + 1)
                return False
            self._seen[key] = (since, passed + 1, 0)
        if suppressed:
            record.kv = {**getattr(record, "kv", {}), "suppressed": suppressed}
        return True


class Lines:
    """The newest log lines, numbered from 1 since this boot. Thread-safe.

    Args:
        remembered: lines, at most.
        max_characters: characters of all lines, at most.
    """

    def __init__(self, remembered: int = LINES, max_characters: int = CHARACTERS) -> None:
        self._lock = threading.Lock()
        self._lines: deque[tuple[int, str]] = deque(maxlen=remembered)
        self._characters, self._max_characters = 0, max_characters
        self._number = 0
        self.keep: Callable[[str, Sequence[str]], None] = _discard
        """Called with a role and its new lines, in the order of their numbers; must not block."""

    def add(self, lines: Sequence[str], role: str = "") -> None:
        """Add lines of a process of that role, oldest first."""
        with self._lock:
            for line in lines:
                self._number += 1
                if len(self._lines) == self._lines.maxlen:
                    self._characters -= len(self._lines[0][1])
                self._lines.append((self._number, line))
                self._characters += len(line)
                while self._characters > self._max_characters and len(self._lines) > 1:
                    self._characters -= len(self._lines.popleft()[1])
            if lines:
                self.keep(role, lines)

    def since(self, number: int) -> tuple[list[str], int]:
        """Remembered lines after that number, and the number of the newest."""
        with self._lock:
            return [line for at, line in self._lines if at > number], self._number

    def newest(self, count: int) -> list[str]:
        """The last lines, oldest first."""
        with self._lock:
            return [line for _, line in islice(reversed(self._lines), count)][::-1]

    def frozen(self, do: Callable[[], T]) -> tuple[T, int]:
        """Result of `do`, called while no line can be added, and the number of the newest line."""
        with self._lock:
            return do(), self._number


def _discard(role: str, lines: Sequence[str]) -> None:
    """Discard lines."""


class RecentLines(logging.Handler):
    """The newest lines since they were last taken, bounded; for the report to the manager."""

    def __init__(self, lines: int = RECENT_LINES, max_characters: int = RECENT_CHARACTERS) -> None:
        super().__init__()
        self._lines, self._taken = Lines(lines, max_characters), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a line."""
        self._lines.add([self.format(record)])

    def take(self) -> list[str]:
        """The lines since the last call, oldest first."""
        self.acquire()
        try:
            lines, self._taken = self._lines.since(self._taken)
            return lines
        finally:
            self.release()


def set_up(identity: Identity, *, stream: TextIO | None = None) -> RecentLines:
    """Send every record of this process to stdout as JSON lines; returns the ring of recent ones.

    Warnings of Python and exceptions that end a thread become records too.
    """
    formatter = JsonFormatter(identity)
    out, recent = logging.StreamHandler(stream or _stdout()), RecentLines()
    handlers: list[logging.Handler] = [out, recent]
    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(RepeatFilter())
    for logger in (logging.getLogger(), logging.getLogger(PACKAGE)):
        logger.handlers[:] = handlers
        logger.setLevel(logging.INFO)
    logging.getLogger(PACKAGE).propagate = False
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_end
    hold()
    return recent


def hold() -> None:
    """Let this package's records go out whatever the user's code has done to logging: `logging.disable`, and loggers
    that `logging.config` disables. Handlers of the root logger are the user's to change."""
    logging.disable(logging.root.manager.disable)  # forgets which loggers were disabled by it
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == PACKAGE:
            logger.manager, logger.disabled = _UNDISTURBED, False


def _stdout() -> TextIO:
    """Standard output as it is now, which a user's code may close or send elsewhere."""
    if sys.__stdout__ is None or sys.stdout is not sys.__stdout__:
        return sys.stdout
    return open(os.dup(sys.__stdout__.fileno()), "w", encoding="utf-8")


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    name = ended.thread.name if ended.thread is not None else "?"
    if ended.exc_value is None or isinstance(ended.exc_value, SystemExit):
        return
    logging.getLogger(__name__).error(
        "thread %s ended: %s: %s", name, ended.exc_type.__name__, ended.exc_value,
        exc_info=(ended.exc_type, ended.exc_value, ended.exc_traceback),
    )  # fmt: skip


_OURS = str(Path(__file__).parents[1])


def users_traceback(error: BaseException) -> str:
    """Traceback of the nearest cause of an error that has frames outside this package: those frames, and its last line.

    Returns:
        "" when none of its causes has been in such code.
    """
    cause = error.__cause__
    while cause is not None:
        told = traceback.TracebackException.from_exception(cause)
        theirs = [frame for frame in told.stack if not Path(frame.filename).is_relative_to(_OURS)]
        if theirs:
            told.stack = traceback.StackSummary.from_list(theirs)
            return "".join(told.format(chain=False)).rstrip()
        cause = cause.__cause__
    return ""


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error and its causes, the root cause last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
