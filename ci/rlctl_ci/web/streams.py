"""Answers that go on: so many at a time, and none for ever. A browser's EventSource asks again from where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 128
"""Of the connections of the service: the others stay free for hooks."""
ENDS_AFTER_S: Final = 300.0


class Streams:
    """Those that are open. The newest has room: what goes on longest ends for it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[object, None] = {}  # the oldest first

    @contextmanager
    def one(self) -> Iterator[Callable[[], bool]]:
        """Whether this one still goes on."""
        mine, until = object(), self._clock() + ENDS_AFTER_S
        self._open[mine] = None
        while len(self._open) > MOST:
            del self._open[next(iter(self._open))]
        try:
            yield lambda: mine in self._open and self._clock() < until
        finally:
            self._open.pop(mine, None)
