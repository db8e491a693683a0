"""Admission of large answers, a few at a time: all at once, every client would get its answer late."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import zmq

W = TypeVar("W")

AT_ONCE = 16
"""Large answers under way at once: receivers that each take a tenth of the link fill it; more would slow each down."""
SLOW_S = 15.0
"""A client that takes so much longer than over the slowest link counts as hung, and its place goes to the next."""
SLOWEST = 1e5
"""Bytes per second of the slowest link."""
WAITING = 1 << 16
"""Most requests that wait; others have to be sent again."""


class Turns(Generic[W]):
    """Large answers under way, and requests for more of them in the order in which they came.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way: list[tuple[zmq.MessageTracker, float]] = []  # with the time up to which it is waited for
        self._waiting: OrderedDict[tuple[str, str], W] = OrderedDict()

    @property
    def waiting(self) -> bool:
        """True if a request waits."""
        return bool(self._waiting)

    def free(self) -> bool:
        """True if one more large answer may be sent."""
        now = self._clock()
        self._under_way = [(tracker, until) for tracker, until in self._under_way if not tracker.done and now < until]
        return len(self._under_way) < AT_ONCE

    def began(self, tracker: zmq.MessageTracker, size: int) -> None:
        """Note that so many bytes are on their way, until the tracker is done."""
        self.free()  # forgets those that are there
        self._under_way.append((tracker, self._clock() + SLOW_S + size / SLOWEST))

    def wait(self, client: tuple[str, str], request: W) -> None:
        """Let a client wait for its turn; a client that waits already keeps its place, with the newer request."""
        if client in self._waiting or len(self._waiting) < WAITING:
            self._waiting[client] = request

    def next(self) -> W | None:
        """Take the request whose turn it is, if there is one and one more answer may be sent."""
        return self._waiting.popitem(last=False)[1] if self._waiting and self.free() else None
