"""Limits of connections and of answers in flight, in total and per source; other answers never hold up hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

CONNECTIONS: Final = 512
PAGES: Final = 384
"""Answers with pages, logs and the API in flight, at most; the other connections are for hooks and probes."""
PAGES_OF_ONE: Final = 128
"""Of these answers, those for one source, at most."""


@dataclass(frozen=True, eq=False, slots=True)
class OpenConnection:
    """One connection."""

    source: str
    end: Callable[[], object]


class ConnectionLimit:
    """Open connections. The newest always has a place: a waiting one is closed for it.

    A connection waits until its request has come whole, and again after its answer. The oldest waiting one of the
    source that has the most of them is closed: a source that holds connections idle loses its own, and a hook, which
    comes whole at once, is not among them.

    Args:
        most: connections, at most.
        pages: answers in flight to anything but hooks and probes, at most.
        pages_of_one: of these, those for one source, at most.
    """

    def __init__(self, most: int = CONNECTIONS, pages: int = PAGES, pages_of_one: int = PAGES_OF_ONE) -> None:
        self._most, self._pages, self._pages_of_one = most, pages, pages_of_one
        self._open: set[OpenConnection] = set()
        self._waiting: dict[str, dict[OpenConnection, None]] = {}  # source -> its own, the oldest first
        self._under_way: Counter[str] = Counter()  # source -> pages

    def enter(self, source: str, end: Callable[[], object]) -> OpenConnection:
        """Add a new connection, which waits.

        Args:
            end: closes the connection at once.
        """
        place = OpenConnection(source, end)
        self._open.add(place)
        self.wait(place)
        while len(self._open) > self._most:
            of_the_greediest = max(self._waiting.values(), key=len)
            oldest = next(iter(of_the_greediest))
            self.leave(oldest)
            oldest.end()
        return place

    def wait(self, place: OpenConnection) -> None:
        """Mark a connection as waiting: it has no request in flight."""
        if place in self._open:
            self._waiting.setdefault(place.source, {}).setdefault(place)

    def work(self, place: OpenConnection) -> None:
        """Mark a connection as working: its request has come whole."""
        waiting = self._waiting.get(place.source, {})
        waiting.pop(place, None)
        if not waiting:
            self._waiting.pop(place.source, None)

    def leave(self, place: OpenConnection) -> None:
        """Remove a connection that is closed."""
        self.work(place)
        self._open.discard(place)

    @contextmanager
    def page(self, source: str) -> Iterator[int]:
        """Count an answer in flight, unless there are too many.

        Returns:
            0, or the status to refuse it with.
        """
        if self._under_way.get(source, 0) >= self._pages_of_one:
            yield 429
            return
        if self._under_way.total() >= self._pages:
            yield 503
            return
        self._under_way[source] += 1
        try:
            yield 0
        finally:
            self._under_way[source] -= 1
            if not self._under_way[source]:
                del self._under_way[source]
