"""Log records of all processes of a run, filtered and merged by time, in bounded memory."""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rlctl.backends.base import LogQuery, LogRecord
from rlctl.backends.local.access.follow import Follower
from rlctl.backends.local.access.logfiles import complete_size, first_time, read_lines, rotations
from rlctl.backends.local.names import in_order, shown, split_name
from rlctl.backends.records.entries import Parser, entries, parted
from rlctl.backends.records.filtering import Filter

_BOOT = re.compile(rb'"boot": ?"([^"]{1,64})"')
_FIRST_WINDOW = 1 << 18


def processes(logs: Path, query: LogQuery) -> list[str]:
    """Names of the processes that have a log and that the query selects, in role and index order."""
    names = {path.name.partition(".log")[0] for path in logs.glob("*-*.log*")}
    found = []
    for name in names:
        role, index = split_name(name)
        if role != name and query.role in (None, role) and query.index in (None, index):
            found.append(name)
    return sorted(found, key=in_order)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a log as it was when reading began; a rotation in mid-reading only changes its name."""

    path: Path
    inode: int
    size: int
    modified: float


class ProcessLog:
    """Log of one process, with all rotations, as of now.

    Args:
        whole_lines: leave out an unfinished last line: a follower will read it.
    """

    def __init__(self, logs: Path, name: str, *, whole_lines: bool) -> None:
        self.name = name
        self.process = shown(name)
        self._path = logs / f"{name}.log"
        parts: dict[int, Part] = {}
        for path in reversed(rotations(self._path)):  # newest first: a file that rotates now is seen twice, not lost
            try:
                found = path.stat()
                size = complete_size(path) if whole_lines and not parts else found.st_size
            except FileNotFoundError:
                continue
            parts.setdefault(found.st_ino, Part(path, found.st_ino, size, found.st_mtime))
        self.parts = list(reversed(parts.values()))

    def records(self, wanted: Filter, since: datetime | None, window: int | None = None) -> Iterator[LogRecord]:
        """The records that match, oldest first.

        Args:
            since: files last written before are not opened.
            window: read only about this many bytes at the end; None: everything.
        """
        parts = [part for part in self.parts if since is None or part.modified >= since.timestamp()]
        if window is None:
            parts = [
                part for group in self._whole_records(parts)
                if any(wanted.maybe_in(self._open_path(one), one.size) for one in group) for part in group
            ]  # fmt: skip
        skip = 0 if window is None else max(0, sum(part.size for part in parts) - window)
        parser = Parser(self.process, lambda: first_time(self._open_path(parts[0])))
        for entry in entries(self._lines(parts, skip)):
            parser.see(entry)
            if (skip and not parser.started) or not wanted.maybe(entry):
                continue  # raw text whose record is before the window; or no match
            found = parser.parse(entry)
            if wanted.wants(found):
                yield found

    def _whole_records(self, parts: Iterable[Part]) -> list[list[Part]]:
        """Groups of parts that share a record: raw text at the head of a file belongs to the record before it."""
        groups: list[list[Part]] = []
        for part in parts:
            try:
                with self._open_path(part).open("rb") as file:
                    raw = file.read(2) != b'{"'
            except FileNotFoundError:
                continue  # rotated away
            if raw and groups:
                groups[-1].append(part)
            else:
                groups.append([part])
        return groups

    def boots(self) -> list[bytes]:
        """Id of every boot that wrote a record, oldest first."""
        seen: dict[bytes, None] = {}
        for line in (part for whole in self._lines(self.parts, 0) for part in parted(whole)):
            if line.startswith(b'{"') and (found := _BOOT.search(line)):
                seen[found[1]] = None
        return list(seen)

    def _lines(self, parts: Iterable[Part], skip: int) -> Iterator[bytes]:
        for part in parts:
            if skip >= part.size:
                skip -= part.size
                continue
            try:
                file = self._open_path(part).open("rb")
            except FileNotFoundError:
                continue  # rotated away
            with file:
                file.seek(skip)
                lines = read_lines(file, part.size)
                if skip:
                    next(lines, None)  # the middle of a line
                    skip = 0
                yield from lines

    def _open_path(self, part: Part) -> Path:
        for path in (part.path, *rotations(self._path)):
            try:
                if path.stat().st_ino == part.inode:
                    return path
            except FileNotFoundError:
                continue
        return part.path


def read(
    logs: Path,
    query: LogQuery,
    *,
    live: Callable[[], bool],
    wait: Callable[[], None],
    clock: Callable[[], float],
) -> Iterator[LogRecord]:
    """All records that match a query, merged by time; then those that are written while it follows.

    Args:
        logs: the folder of the log files.
        live: whether the run still writes; if not, following ends.
        wait: pause between two polls while following, at most 0.2 s.
        clock: unix time.

    Raises:
        UsageError: `grep` or `level` of the query is wrong.
    """
    wanted = Filter(query)
    sources = [ProcessLog(logs, name, whole_lines=query.follow) for name in processes(logs, query)]
    if query.previous:
        yield from _merge([_previous(source, wanted, query) for source in sources], query.tail)
        return
    if query.tail is None:
        yield from _merge([source.records(wanted, query.since) for source in sources], None)
    else:
        yield from _merge([iter(_last(source, wanted, query, query.tail)) for source in sources], query.tail)
    if query.follow:
        starts = {source.name: source.parts[-1] for source in sources if source.parts}
        followers = {name: Follower(logs, name, part.inode, part.size) for name, part in starts.items()}
        yield from _follow(logs, query, wanted, followers, live, wait, clock)


def _merge(sources: list[Iterator[LogRecord]], tail: int | None) -> Iterator[LogRecord]:
    merged = heapq.merge(*sources, key=lambda found: found.time)
    return merged if tail is None else iter(deque(merged, maxlen=tail))


def _previous(source: ProcessLog, wanted: Filter, query: LogQuery) -> Iterator[LogRecord]:
    boots = source.boots()
    if len(boots) < 2:
        return iter(())
    boot = boots[-2].decode(errors="replace")
    return (found for found in source.records(wanted, query.since) if found.extra.get("boot") == boot)


def _last(source: ProcessLog, wanted: Filter, query: LogQuery, tail: int) -> Iterable[LogRecord]:
    """The last `tail` matching records of one process, read from as little of the log's end as holds them."""
    if not any(wanted.maybe_in(part.path, part.size) for part in source.parts):
        return ()
    total = sum(part.size for part in source.parts)
    window = _FIRST_WINDOW
    while True:
        found = deque(source.records(wanted, query.since, window), maxlen=tail)
        if len(found) >= tail or window >= total:
            return found
        window *= 4


def _follow(
    logs: Path,
    query: LogQuery,
    wanted: Filter,
    followers: dict[str, Follower],
    live: Callable[[], bool],
    wait: Callable[[], None],
    clock: Callable[[], float],
) -> Iterator[LogRecord]:
    try:
        while True:
            last = not live() or (query.until is not None and clock() > query.until.timestamp())
            for name in processes(logs, query):
                if name not in followers:
                    followers[name] = Follower(logs, name)
            fresh = [found for follower in followers.values() for found in follower.records(wanted.maybe, last=last)]
            yield from sorted(filter(wanted.wants, fresh), key=lambda found: found.time)
            if last:
                return
            wait()
    finally:
        for follower in followers.values():
            follower.close()
