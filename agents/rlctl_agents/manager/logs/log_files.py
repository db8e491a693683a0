"""Files of stored log lines: one JSON object per line, one file per role, hour and life of the manager."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rlctl.spec.base import ROLES
from rlctl_agents.runtime.logs import stamp

LONGEST_LINE = 64 * 1024
"""Characters of a line, at most; the rest is dropped."""

HEAD = re.compile(
    rb'\{"ts": "([0-9T:.-]{19,26}Z)", "level": "([A-Z]+)", "run": "[^"]*", "role": "([a-z]+)", '
    rb'"id": "([^"]*)", "boot": "([^"]*)", '
)
"""Start of every stored line: time, level, role, process, boot."""
_NAME = re.compile(r"([a-z]+)-(\d{8}T\d{2})-(\d{10,})-([0-9a-f]{8})-(\d{4,})\.jsonl")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """Name of a log file; sorted by age within a role."""

    role: str
    hour: str  # UTC hour in which its lines came: 20261121T19
    began: int  # Unix time at which the manager began to store lines
    boot: str  # first eight digits of the manager's boot
    part: int

    @property
    def name(self) -> str:
        return f"{self.role}-{self.hour}-{self.began:010d}-{self.boot}-{self.part:04d}.jsonl"

    @property
    def hour_begins(self) -> datetime:
        return datetime.strptime(self.hour, "%Y%m%dT%H").replace(tzinfo=UTC)

    @property
    def hour_ends(self) -> datetime:
        return self.hour_begins + timedelta(hours=1)

    @classmethod
    def parse(cls, name: str) -> LogFile | None:
        """Parse the name of a file; None if it is not that of a log file."""
        match = _NAME.fullmatch(name)
        if match is None or match[1] not in ROLES:
            return None
        try:
            datetime.strptime(match[2], "%Y%m%dT%H")
        except ValueError:
            return None  # there is no 99th hour
        return cls(match[1], match[2], int(match[3]), match[4], int(match[5]))


def files(folder: Path, role: str | None = None) -> Iterator[LogFile]:
    """Files of a role, or of every role, oldest first within a role.

    Raises:
        OSError: the volume refuses.
    """
    found = [LogFile.parse(path.name) for path in folder.iterdir()]
    yield from sorted(one for one in found if one is not None and role in (None, one.role))


def hour(unix: float) -> str:
    """Hour of a Unix time, as in the name of a file."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y%m%dT%H")


def line_of(role: str, line: str, unix: float) -> bytes:
    """Record of a line from a process of that role; a line that claims another role or process is wrapped."""
    text = line.replace("\r", " ").replace("\n", " ")
    data = text.encode(errors="replace")
    head = HEAD.match(data)
    own = head is not None and head[3].decode() == role and head[4].decode().partition("/")[0] == role
    if own and data.endswith(b"}") and len(text) <= LONGEST_LINE:
        return data + b"\n"
    now = stamp(datetime.fromtimestamp(unix, UTC))
    who = head if own else None
    record = {
        "ts": now if who is None else who[1].decode(),
        "level": "INFO" if who is None else who[2].decode(),
        "run": "",
        "role": role,
        "id": f"{role}/?" if who is None else who[4].decode(),
        "boot": "" if who is None else who[5].decode(),
        "msg": text[:LONGEST_LINE],
        "kv": {"characters": len(text)} if len(text) > LONGEST_LINE else {},
    }
    return json.dumps(record, ensure_ascii=False).encode(errors="replace") + b"\n"
