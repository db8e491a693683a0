"""End of a log: the last error of a process, and its last lines in readable form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rlctl.backends.records.entries import parted

TAIL_BYTES = 256 * 1024
_LONGEST_LINE = 500
_RAW_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b|Fatal Python error|supervisor: ")


def last_error(lines: list[str], started: float) -> str:
    """The last error that a process logged since `started` (unix time), on one line; "" when it logged none.

    A record of level ERROR is preferred; else the last line of a traceback; else supervisor's message for the child.
    """
    raw = ""
    for line in reversed(whole(lines)):
        record = record_of(line)
        if record is None:
            if not raw and _RAW_ERROR.match(line):
                raw = line
            continue
        if unix_of(record) < started:
            break
        if record.get("level") in ("ERROR", "CRITICAL"):
            return _short(_with_exception(record))
        if raw:
            break
    return _short(raw)


def _with_exception(record: dict[str, object]) -> str:
    message, trace = str(record.get("msg", "")), str(record.get("exc") or "").strip()
    last = re.sub(r"^(?:\w+\.)+(?=\w)", "", trace.splitlines()[-1]) if trace else ""  # EnvError from a.b.EnvError
    return message if not last or last in message else f"{message}: {last}" if message else last


def readable(lines: list[str]) -> list[str]:
    """Readable log lines: JSON records as time, level and message, tracebacks on lines of their own."""
    shown: list[str] = []
    for line in whole(lines):
        record = record_of(line)
        if record is None:
            shown.append(_short(line))
            continue
        time = str(record.get("ts", ""))[11:19]
        shown.append(_short(f"{time} {record.get('level', '')} {record.get('msg', '')}"))
        shown += [_short(part) for part in str(record.get("exc") or "").splitlines()]
    return shown


def _short(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()  # half of a pair of surrogates cannot be stored
    text = re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", " ", text)  # a log line must not steer the user's terminal
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"


def whole(lines: Iterable[str]) -> list[str]:
    """Split lines with text before a record, so that each is either text or a record."""
    return [part.decode("utf-8", "replace") for line in lines for part in parted(line.encode("utf-8", "replace"))]


def record_of(line: str) -> dict[str, object] | None:
    """The record of a log line; None for raw text."""
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "ts" in value else None


def unix_of(record: dict[str, object]) -> float:
    """Unix time of a record; 0 if its timestamp is malformed."""
    try:
        return datetime.fromisoformat(str(record["ts"])).timestamp()
    except ValueError:
        return 0.0


def read_tail(path: Path) -> list[str]:
    """The last lines of a file, text and records split, at most 256 KiB; empty when it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = whole(file.read(TAIL_BYTES).decode("utf-8", errors="replace").splitlines())
    except OSError:
        return []
    return lines[1:] if size > TAIL_BYTES else lines
