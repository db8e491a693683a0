"""Limits of streams: their number and their duration. A browser's EventSource reconnects from where it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 128
"""Streams at a time: each of them polls the database."""
ENDS_AFTER_S: Final = 300.0


class Streams:
    """Open streams. The newest always has room: the oldest of the source that has the most ends for it.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[object, str] = {}  # stream -> its source, the oldest first

    @contextmanager
    def one(self, source: str) -> Iterator[Callable[[], bool]]:
        """Add a stream; yields a function that tells whether it may go on."""
        mine, until = object(), self._clock() + ENDS_AFTER_S
        self._open[mine] = source
        while len(self._open) > MOST:
            ((most, _),) = Counter(self._open.values()).most_common(1)
            del self._open[next(one for one, of in self._open.items() if of == most)]
        try:
            yield lambda: mine in self._open and self._clock() < until
        finally:
            self._open.pop(mine, None)

    def end(self) -> None:
        """End all streams: the service shuts down."""
        self._open.clear()
