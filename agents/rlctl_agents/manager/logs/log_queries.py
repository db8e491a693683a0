"""`GET /logs` of the control API: stored lines of all processes, and new ones as they come."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rlctl.spec.base import ROLES
from rlctl.spec.machine import Machine
from rlctl_agents.manager.logs.log_search import LEVELS, MEMORY_BYTES, WRONG, Query
from rlctl_agents.manager.logs.log_store import LogStore
from rlctl_agents.runtime.http_server import Response, is_count
from rlctl_agents.runtime.logs import Lines, stamp

TIMEOUT_S = 25.0
AT_ONCE = 2
"""Concurrent searches; one where a manager with two of them might not fit: each may take MEMORY_BYTES."""
NAMES = ("process", "since", "until", "grep", "level", "tail", "previous", "page", "after")

Search = Callable[[Query], tuple[int, bytes, str]]
"""Function that runs a query; returns exit code, stdout and stderr."""


class LogQueries:
    """Replies to log queries, from files that `store` writes, and with newer lines from `lines`.

    Args:
        folder: logs/.
        store: None: no lines are stored, only the newest are available.
        boot: boot of the manager.
        search: runs a query; None: `in_a_process`.
        memory_mib: memory of this machine that this process may use; None: as measured.
    """

    def __init__(
        self,
        folder: Path,
        lines: Lines,
        store: LogStore | None,
        boot: str,
        search: Search | None = None,
        *,
        memory_mib: float | None = None,
    ) -> None:
        self._folder, self._lines, self._store, self._boot = folder, lines, store, boot
        self._search = search or in_a_process
        memory = (memory_mib or Machine.here().memory_mib) * 2**20
        self._at_once = AT_ONCE if memory >= 2 * AT_ONCE * MEMORY_BYTES else 1
        self._free = threading.BoundedSemaphore(self._at_once)

    def answer(self, asked: Mapping[str, str]) -> Response:
        """Reply `{"lines": [...], "next": N, "page": ..., "lost": N, "boot": ...}`; lines as their process wrote them,
        oldest first.

        `after=N` gives the lines after the reply with `"next": N` of the same boot; without it, the stored ones. A
        reply with a `page` is incomplete: the same query with `page=...` continues it. A wrong query gets status 400, a
        failed search 503.
        """
        try:
            return self._memory(asked) if "after" in asked or self._store is None else self._kept(asked)
        except ValueError as fault:
            return Response.refusal(400, str(fault))

    def _memory(self, asked: Mapping[str, str]) -> Response:
        if given := sorted(asked.keys() - {"after", "process", "level"}):
            raise ValueError(f"{', '.join(given)}: not for lines that are not stored yet; filter them yourself")
        least = LEVELS.index(_level(asked) or LEVELS[0])
        role, index = _process(asked)
        lines, newest = self._lines.since(_count(asked, "after") or 0)
        wanted = [line for line in lines if _fits(line, role, index, LEVELS[least:])]
        return Response.of({"lines": wanted, "next": newest, "page": "", "lost": self._lost, "boot": self._boot})

    def _kept(self, asked: Mapping[str, str]) -> Response:
        assert self._store is not None
        if unknown := sorted(asked.keys() - set(NAMES)):
            raise ValueError(f"{', '.join(unknown)}: unknown; known are {', '.join(NAMES)}")
        role, index = _process(asked)
        mark = self._store.flush(self._lines)
        query = Query(
            folder=str(self._folder),
            role=role,
            index=index,
            since=_moment(asked, "since"),
            until=_moment(asked, "until"),
            grep=asked.get("grep", ""),
            level=_level(asked),
            tail=_count(asked, "tail"),
            previous=asked.get("previous", "") in ("1", "true"),
            page=_page(asked),
            boot=self._boot,
            sizes=dict(mark.sizes),
        )
        if not self._free.acquire(blocking=False):
            going_on = "a search of the logs is" if self._at_once == 1 else f"{self._at_once} searches of the logs are"
            return Response.refusal(503, f"{going_on} going on; ask again")
        try:
            code, out, said = self._search(query)
        finally:
            self._free.release()
        if code == WRONG:
            raise ValueError(said)
        if code != 0:
            return Response.refusal(503, f"the logs could not be searched: {said}")
        more = b',"next":%d,"lost":%d,"boot":"%s"}\n' % (mark.number, self._lost, self._boot.encode())
        return Response(200, out.rstrip().removesuffix(b"}") + more)

    @property
    def _lost(self) -> int:
        return self._store.lost if self._store is not None else 0


def in_a_process(query: Query) -> tuple[int, bytes, str]:
    """Run a query in a process of its own, within bounds of time and memory."""
    command = [sys.executable, "-m", "rlctl_agents.manager.logs.log_search", msgspec.json.encode(query).decode()]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, b"", f"it took longer than {TIMEOUT_S:g} s; ask for a shorter time or one process"
    if done.returncode < 0:
        return 1, b"", "it took too long; ask for a shorter time, one process, or a simpler expression"
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()[-500:]


def _process(asked: Mapping[str, str]) -> tuple[str | None, int | None]:
    text = asked.get("process", "")
    if not text:
        return None, None
    role, slash, index = text.partition("/")
    if role not in ROLES or (slash and not is_count(index)):
        raise ValueError(f"process must be ROLE or ROLE/INDEX, got {text[:40]!r}")
    return role, int(index) if slash else None


def _moment(asked: Mapping[str, str], name: str) -> str:
    """Time as lines are stamped, so that texts can be compared."""
    text = asked.get(name, "")
    if not text:
        return ""
    try:
        moment = datetime.fromisoformat(re.sub(r" (\d\d:\d\d)$", r"+\1", text))  # a + that the client has not encoded
    except ValueError as error:
        raise ValueError(f"{name} must be RFC 3339, got {text[:40]!r}") from error
    if moment.tzinfo is None:
        raise ValueError(f"{name}: {text[:40]!r} does not say which time zone it means")
    return stamp(moment.astimezone(UTC))


def _level(asked: Mapping[str, str]) -> str:
    level = asked.get("level", "").upper()
    if level and level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, got {level[:40]!r}")
    return level


def _count(asked: Mapping[str, str], name: str) -> int | None:
    text = asked.get(name, "")
    if text and not is_count(text):
        raise ValueError(f"{name} must be a number, got {text[:40]!r}")
    return int(text) if text else None


def _page(asked: Mapping[str, str]) -> str:
    text = asked.get("page", "")
    for entry in text.split(",") if text else ():
        role, equals, place = entry.partition("=")
        offset = place.rpartition(":")[2]
        if role not in ROLES or not equals or (place and not is_count(offset)):
            raise ValueError(f"page must be that of an answer, got {text[:40]!r}")
    return text


def _fits(line: str, role: str | None, index: int | None, levels: Sequence[str]) -> bool:
    try:
        record = json.loads(line)
        name, level = str(record["id"]), record["level"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return role is None and levels[0] == LEVELS[0]
    wanted = role is None or (name == f"{role}/{index}" if index is not None else name.partition("/")[0] == role)
    return wanted and level in levels
