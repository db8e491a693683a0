"""Search of stored log lines, in a process of its own: a regular expression that never ends, or half a gigabyte
of lines, must not hold up the manager. Started by `log_queries`; prints one JSON object.
"""

from __future__ import annotations

import re
import resource
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from heapq import merge
from pathlib import Path

import msgspec

from rlctl.spec.machine import left_bytes
from rlctl_agents.manager.logs.log_files import HEAD, LogFile, files

CPU_S = 20
MEMORY_BYTES = 1 << 30
"""Bytes of address space of a search, at most."""
MOST_LINES = 20_000
MOST_BYTES = 4 << 20
LATE = timedelta(hours=1)
"""Longest time by which a line may be in a later file: its process could not reach the manager before."""
EARLY = timedelta(minutes=10)
"""Longest time by which a line may be in an earlier file: the clock of its process is ahead."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
WRONG = 2
"""Exit code: the query cannot be answered at all."""


class Query(msgspec.Struct, frozen=True):
    """Query for log lines. Times are RFC 3339 in UTC with six digits behind the second, as in the lines."""

    folder: str
    role: str | None = None
    index: int | None = None
    since: str = ""
    until: str = ""
    grep: str = ""  # regular expression over the whole line
    level: str = ""  # least level
    tail: int | None = None  # number of last matches; None: all matches
    previous: bool = False  # the boot before the newest of each process
    page: str = ""  # continues where the reply with this `page` ended
    boot: str = ""  # manager that writes now; of its files only as many bytes as in `sizes` are read
    sizes: dict[str, int] = {}
    cpu_s: int = CPU_S  # CPU seconds after which the searching process is killed


class Found(msgspec.Struct):
    """Result of a search."""

    lines: list[str]  # oldest first
    page: str = ""  # not "": more lines follow


def search(query: Query) -> Found:
    """Run a query; at most MOST_LINES lines or MOST_BYTES bytes at once.

    Raises:
        re.error: `grep` is no regular expression.
        OSError: the volume refuses.
    """
    wanted = Filter(query)
    roles = {file.role for file in wanted.files()}
    if query.tail is not None:
        return Found(_last(wanted, sorted(roles), min(query.tail, MOST_LINES)))
    places = dict(entry.split("=") for entry in query.page.split(",")) if query.page else {}
    # time, text, role, and places (file and position) of and behind each line; in a role, in the order of its files
    streams = [_stream(wanted, role, places.get(role, "")) for role in sorted(roles)]
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for moment, line, role, begins, behind in merge(*streams, key=lambda one: one[:2]):
        if len(found) == MOST_LINES or (found and size + len(line) > MOST_BYTES):
            places[role] = begins
            return Found(_texts(found), ",".join(f"{role}={places.get(role, '')}" for role in sorted(roles)))
        places[role] = behind
        found.append((moment, line))
        size += len(line)
    return Found(_texts(found))


class Filter:
    """Files and lines that match a query."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._folder = Path(query.folder)
        self._grep = re.compile(query.grep.encode()) if query.grep else None
        self._since, self._until = query.since.encode(), query.until.encode()
        least = LEVELS.index(query.level) if query.level else 0
        self._levels = frozenset(level.encode() for level in LEVELS[least:])
        self._id = f"{query.role}/{query.index}".encode() if query.index is not None else None
        self._boots = self._boots_wanted() if query.previous or self._id is not None else None

    def files(self, role: str | None = None) -> list[LogFile]:
        """Files that may hold a match, oldest first within a role."""
        query = self._query
        since = datetime.fromisoformat(query.since) - EARLY if query.since else None
        until = datetime.fromisoformat(query.until) + LATE if query.until else None
        return [
            file
            for file in files(self._folder, role or query.role)
            if (since is None or file.hour_ends >= since)
            and (until is None or file.hour_begins <= until)
            and self._whole(file)
        ]

    def lines(self, file: LogFile, offset: int = 0) -> Iterator[tuple[int, bytes, bytes]]:
        """Position behind, time and text of each matching line, from a position on."""
        size = self._query.sizes.get(file.name)
        for after, line in _lines(self._folder / file.name, offset, size):
            head = HEAD.match(line)
            if head is not None and self._wants(head, line):
                yield after, head[1], line

    def _wants(self, head: re.Match[bytes], line: bytes) -> bool:
        moment, level, _, process, boot = head.groups()
        return (
            level in self._levels
            and (not self._since or moment >= self._since)
            and (not self._until or moment <= self._until)
            # before it was told its index, a process called itself actor/?
            and (self._id is None or process == self._id or process.endswith(b"/?"))
            and (self._boots is None or boot in self._boots)
            and (self._grep is None or self._grep.search(line) is not None)
        )

    def _whole(self, file: LogFile) -> bool:
        """True if a file was not begun after the sizes were taken."""
        if not self._query.boot or file.boot != self._query.boot[:8] or file.name in self._query.sizes:
            return True
        parts = [known.part for name in self._query.sizes if (known := LogFile.parse(name)) and known.role == file.role]
        return file.part < max(parts, default=0)

    def _boots_wanted(self) -> frozenset[bytes]:
        """Boots of the process in the query, or the boot before the newest of each process."""
        lives: dict[bytes, dict[bytes, None]] = {}  # process -> boots in order
        for file in self.files():
            for _, line in _lines(self._folder / file.name, 0, self._query.sizes.get(file.name)):
                head = HEAD.match(line)
                if head is not None and (head[4] == self._id if self._id else not head[4].endswith(b"/?")):
                    lives.setdefault(head[4], {})[head[5]] = None
        if not self._query.previous:
            return frozenset(boot for boots in lives.values() for boot in boots)
        return frozenset(list(boots)[-2] for boots in lives.values() if len(boots) > 1)


def _stream(wanted: Filter, role: str, place: str) -> Iterator[tuple[bytes, bytes, str, str, str]]:
    """Time and text of each matching line of a role, the role, and the places of the line and behind it.

    Args:
        place: file and position to start from; "": from the oldest line.
    """
    name, _, offset = place.partition(":")
    first = LogFile.parse(name)
    for file in wanted.files(role):
        if first is not None and file < first:
            continue
        position = int(offset or 0) if file == first else 0
        for after, moment, line in wanted.lines(file, position):
            yield moment, line, role, f"{file.name}:{position}", f"{file.name}:{after}"
            position = after


def _last(wanted: Filter, roles: Sequence[str], tail: int) -> list[str]:
    """The last lines of all roles together, from as few files as hold them."""
    found: list[tuple[bytes, bytes]] = []
    for role in roles:
        of_role: list[tuple[bytes, bytes]] = []
        for file in reversed(wanted.files(role)):
            newest = deque(((moment, line) for _, moment, line in wanted.lines(file)), maxlen=tail)
            of_role = [*newest, *of_role][-tail:] if tail else []
            if len(of_role) >= tail or sum(len(line) for _, line in of_role) > MOST_BYTES:
                break
        found += of_role
    found = sorted(found, key=lambda one: one[0])[-tail:] if tail else []
    size = 0
    for count, (_, line) in enumerate(reversed(found)):
        size += len(line)
        if size > MOST_BYTES:
            return _texts(found[len(found) - count :])
    return _texts(found)


def _lines(path: Path, offset: int, size: int | None) -> Iterator[tuple[int, bytes]]:
    """Position behind each whole line, and the line; a file that is gone has none."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            offset += len(line)
            if not line.endswith(b"\n") or (size is not None and offset > size):
                return
            yield offset, line[:-1]


def _texts(found: list[tuple[bytes, bytes]]) -> list[str]:
    return [line.decode(errors="replace") for _, line in sorted(found, key=lambda one: one[0])]


def address_space(left: int) -> int:
    """Bytes that a search may map of those that are left: the manager grows too, and dies with a pod that is full."""
    return min(MEMORY_BYTES, left // 2)


def main(arguments: Sequence[str]) -> int:
    """Run the query given as the only argument, within bounds of time and memory, and print the result as JSON."""
    query = msgspec.json.decode(arguments[0], type=Query)
    resource.setrlimit(resource.RLIMIT_CPU, (query.cpu_s, query.cpu_s + 1))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # by what was imported
    resource.setrlimit(resource.RLIMIT_AS, (mapped + address_space(left_bytes()),) * 2)
    try:
        found = search(query)
    except re.error as error:
        print(f"grep: not a regular expression: {error}", file=sys.stderr)
        return WRONG
    except (OSError, RecursionError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
