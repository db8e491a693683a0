"""Limit of concurrent large replies, first come, first served: sent all at once, every one would be late."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import zmq

W = TypeVar("W")

AT_ONCE = 16
"""Most large replies in flight: receivers that each take a tenth of the link fill it; more would slow each down."""
EACH = 2
"""Most of them to one place: clients at one that read slowly, or not at all, leave the rest to others. What a hung
client there has not read stays in memory, and counts until its connection ends."""
SLOW_S = 15.0
"""A client that takes so much longer than over the slowest link counts as hung, and its turn goes to another place."""
SLOWEST, SLOWEST_EACH = 1e5, 2e6
"""Bytes per second of the slowest link: to places without a limit of their own, and to others."""
WAITING, WAITING_EACH = 1 << 16, 1 << 10
"""Longest queue of requests: of all places, and of one. Others are dropped, and have to be sent again."""


class ReplyLimiter(Generic[W]):
    """Large replies in flight, and the queue of requests for more: first come, first served, but a place with `EACH`
    replies that are not sent is passed over. A place is an address; "" has no such limit.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # tracker, time after which its client counts as hung, place
        self._under_way: list[tuple[zmq.MessageTracker, float, str]] = []
        self._waiting: OrderedDict[tuple[str, str], tuple[W, str]] = OrderedDict()
        self._waiting_of = Counter[str]()  # by place

    @property
    def waiting(self) -> bool:
        """True if a request waits."""
        return bool(self._waiting)

    def free(self, place: str = "") -> bool:
        """True if one more large reply may be sent to this place."""
        self._forget()
        now = self._clock()
        return sum(now < until for _, until, _ in self._under_way) < AT_ONCE and place not in self._full()

    def began(self, tracker: zmq.MessageTracker, size: int, place: str = "") -> None:
        """Record a reply of `size` bytes to a place as in flight, until the tracker is done."""
        self._forget()
        self._under_way.append((tracker, self._clock() + SLOW_S + size / (SLOWEST_EACH if place else SLOWEST), place))

    def wait(self, client: tuple[str, str], request: W, place: str = "") -> None:
        """Queue the request of a client; a client that is queued already keeps its position, with the newer request."""
        if client in self._waiting:
            self._waiting[client] = request, self._waiting[client][1]
        elif len(self._waiting) < WAITING and (not place or self._waiting_of[place] < WAITING_EACH):
            self._waiting[client] = request, place
            self._waiting_of[place] += 1

    def next(self) -> W | None:
        """Take the request whose turn it is; None when there is none, or no further reply may be sent."""
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
        """Remove replies that have been sent, and those of hung clients that no place counts."""
        now = self._clock()
        self._under_way = [one for one in self._under_way if not one[0].done and (one[2] or now < one[1])]

    def _full(self) -> set[str]:
        """Places with `EACH` replies that are not sent."""
        return {place for place, count in Counter(one[2] for one in self._under_way).items() if place and count >= EACH}
