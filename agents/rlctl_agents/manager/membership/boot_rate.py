"""Limit on new boots of actors per address: a single pod cannot pose as many actors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address
from statistics import median

MOST = 4
"""New boots of one address within WITHIN_S, at most: an actor that crashes at once is restarted no more often."""
WITHIN_S = 120.0
OTHERS, EACH = 3, 2
"""Addresses are taken to tell actors apart once OTHERS other ones are known, half of them with at most EACH boots.
Behind address translation or a proxy they do not, and then nothing is refused."""
REMEMBERED = 200_000
ADDRESSES = 4096
"""Addresses that are remembered, at most; the oldest is dropped."""


class BootRateLimiter:
    """Limiter of new boots per address.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._came: dict[str, tuple[str, float]] = {}  # boot -> address, first heard; in this order
        self._boots: Counter[str] = Counter()  # by address
        self._usual: dict[str, int] = {}  # address -> most boots that it has had at a time, the newest last

    def admit(self, boot: str, address: str, *, known: bool = False) -> None:
        """Admit the hello of a boot, maybe a repeated one.

        Args:
            known: it has had a lease before, also from an earlier manager: it always passes.

        Raises:
            ValueError: its address has brought too many new boots.
        """
        now = self._clock()
        while self._came and now - next(iter(self._came.values()))[1] >= WITHIN_S:
            self._forget(next(iter(self._came)))
        if boot in self._came or len(self._came) >= REMEMBERED or not _tells(address):
            return
        if self._boots[address] >= MOST and not known:
            # also those of hours ago: actors that run say hello no more
            others = [boots for other, boots in self._usual.items() if other != address]
            if len(others) >= OTHERS and median(others) <= EACH:
                raise ValueError(
                    f"{MOST} actors from {address} have said hello within {WITHIN_S:g} s, the others come from an "
                    "address of their own: wait, or look at what runs there"
                )
        self._came[boot] = address, now
        self._boots[address] += 1
        self._usual[address] = max(self._usual.pop(address, 0), self._boots[address])
        if len(self._usual) > ADDRESSES:
            del self._usual[next(iter(self._usual))]

    def _forget(self, boot: str) -> None:
        address, _ = self._came.pop(boot)
        self._boots[address] -= 1
        if not self._boots[address]:
            del self._boots[address]


def _tells(address: str) -> bool:
    """True if the address can tell processes apart: an IP address other than loopback."""
    try:
        return not ip_address(address).is_loopback
    except ValueError:
        return False
