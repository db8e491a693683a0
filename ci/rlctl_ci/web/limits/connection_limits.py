"""Limits of connections and answers: of all, of each source, and never of hooks because of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

CONNECTIONS: Final = 512
PAGES: Final = 384
"""Of them may have pages, logs and the API under way; the others are for hooks and probes."""
PAGES_OF_ONE: Final = 128
"""And so many from one source."""


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """One connection."""

    source: str
    end: Callable[[], object]


class Places:
    """Connections that are open. The newest always has a place: one that waits ends for it.

    A connection waits until its request has come whole, and again after its answer. What ends is the oldest one that
    waits, of the source that has most of those: one that holds connections idle loses its own, and a hook, which comes
    whole at once, is not among them.

    Args:
        most: connections.
        pages: answers to anything but hooks and probes that are under way.
        pages_of_one: of them, of one source.
    """

    def __init__(self, most: int = CONNECTIONS, pages: int = PAGES, pages_of_one: int = PAGES_OF_ONE) -> None:
        self._most, self._pages, self._pages_of_one = most, pages, pages_of_one
        self._open: set[Place] = set()
        self._waiting: dict[str, dict[Place, None]] = {}  # source -> its own, the oldest first
        self._under_way: Counter[str] = Counter()  # source -> pages

    def enter(self, source: str, end: Callable[[], object]) -> Place:
        """A place for a new connection, which waits.

        Args:
            end: closes the connection at once.
        """
        place = Place(source, end)
        self._open.add(place)
        self.wait(place)
        while len(self._open) > self._most:
            of_the_greediest = max(self._waiting.values(), key=len)
            oldest = next(iter(of_the_greediest))
            self.leave(oldest)
            oldest.end()
        return place

    def wait(self, place: Place) -> None:
        """It has no request under way."""
        if place in self._open:
            self._waiting.setdefault(place.source, {}).setdefault(place)

    def work(self, place: Place) -> None:
        """Its request has come whole."""
        waiting = self._waiting.get(place.source, {})
        waiting.pop(place, None)
        if not waiting:
            self._waiting.pop(place.source, None)

    def leave(self, place: Place) -> None:
        """It is closed."""
        self.work(place)
        self._open.discard(place)

    @contextmanager
    def page(self, source: str) -> Iterator[int]:
        """An answer that is under way, unless there are too many.

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
