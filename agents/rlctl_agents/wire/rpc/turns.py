"""Admission of large answers, a few at a time: all at once, every client would get its answer late."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import zmq

W = TypeVar("W")

AT_ONCE = 16
"""Large answers under way at once: receivers that each take a tenth of the link fill it; more would slow each down."""
EACH = 2
"""Of them to callers of one place: those of one that read slowly, or not at all, leave the rest to others."""
SLOW_S = 15.0
"""A client that takes so much longer than over the slowest link counts as hung, and its place goes to the next."""
SLOWEST, SLOWEST_EACH = 1e5, 2e6
"""Bytes per second of the slowest link: of callers without a limit of their own, and of others."""
WAITING, WAITING_EACH = 1 << 16, 1 << 10
"""Most requests that wait, of all places and of one; others have to be sent again."""


class Turns(Generic[W]):
    """Large answers under way, and requests for more of them in the order in which they came, but for those of a place
    to which `EACH` are under way. The place "" has no such limit.

    Args:
        clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # with the time up to which it is waited for, and the place
        self._under_way: list[tuple[zmq.MessageTracker, float, str]] = []
        self._waiting: OrderedDict[tuple[str, str], tuple[W, str]] = OrderedDict()
        self._waiting_of = Counter[str]()  # by place

    @property
    def waiting(self) -> bool:
        """True if a request waits."""
        return bool(self._waiting)

    def free(self, place: str = "") -> bool:
        """True if one more large answer may be sent to this place."""
        self._forget()
        return len(self._under_way) < AT_ONCE and place not in self._full()

    def began(self, tracker: zmq.MessageTracker, size: int, place: str = "") -> None:
        """Note that so many bytes are on their way to a place, until the tracker is done."""
        self._forget()
        self._under_way.append((tracker, self._clock() + SLOW_S + size / (SLOWEST_EACH if place else SLOWEST), place))

    def wait(self, client: tuple[str, str], request: W, place: str = "") -> None:
        """Let a client wait for its turn; a client that waits already keeps its rank, with the newer request."""
        if client in self._waiting:
            self._waiting[client] = request, self._waiting[client][1]
        elif len(self._waiting) < WAITING and (not place or self._waiting_of[place] < WAITING_EACH):
            self._waiting[client] = request, place
            self._waiting_of[place] += 1

    def next(self) -> W | None:
        """Take the request whose turn it is, if there is one and one more answer may be sent."""
        if not self._waiting or not self.free():
            return None
        full = self._full()
        client = next((one for one, (_, place) in self._waiting.items() if place not in full), None)
        if client is None:
            return None
        request, place = self._waiting.pop(client)
        self._waiting_of[place] -= 1
        if not self._waiting_of[place]:
            del self._waiting_of[place]
        return request

    def _forget(self) -> None:
        """Forget answers that are there, or that are not waited for any more."""
        now = self._clock()
        self._under_way = [one for one in self._under_way if not one[0].done and now < one[1]]

    def _full(self) -> set[str]:
        """Places that have as many as one may."""
        return {place for place, count in Counter(one[2] for one in self._under_way).items() if place and count >= EACH}
