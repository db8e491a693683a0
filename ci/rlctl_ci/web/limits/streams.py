"""Answers that go on: so many at a time, and none for ever. A browser's EventSource asks again from where it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST: Final = 128
"""At a time: each of them looks at the database again and again."""
ENDS_AFTER_S: Final = 300.0


class Streams:
    """Open streams. The newest has room: of the source that has most, the oldest ends for it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[object, str] = {}  # stream -> its source, the oldest first

    @contextmanager
    def one(self, source: str) -> Iterator[Callable[[], bool]]:
        """One stream; gives a function that tells that it still goes on."""
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
        """All of them: the service ends."""
        self._open.clear()
