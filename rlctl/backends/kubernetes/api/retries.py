"""How long one command repeats what it asks, and how often: chosen after each failure, by what the server has said.

A write that is repeated late may land when the lock of its run is somebody else's: whoever writes sets `FENCE`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from rlctl.backends.kubernetes.api.exchange import NoAnswer

FIRST_PATIENCE_S: Final = 6.0
"""For a server that has not answered yet, or was given up: a wrong address is no reason to wait long."""
PATIENCE_S: Final = 45.0
"""For one that has, whatever it said: it restarts, or is overloaded."""
RETRIES: Final = 100
"""Of one command, over all its calls, at once."""
REFILL_S: Final = 36.0
"""One more repeat is allowed again: a command that watches for days lives through an outage each hour."""
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 8.0

FENCE: Final[ContextVar[Callable[[], None] | None]] = ContextVar("fence", default=None)
"""Asked before every repeat in this thread; what it raises ends the call."""


@dataclass
class Tries:
    """Of one call."""

    began: float
    count: int = 0
    lost: list[NoAnswer] = field(default_factory=list)
    """Requests whose answer never came: they may have been done."""


class Retries:
    """Of one command.

    Args:
        clock: seconds, monotonic.
        jitter: in [0, 1).
    """

    def __init__(
        self, clock: Callable[[], float], sleep: Callable[[float], None], jitter: Callable[[], float]
    ) -> None:  # fmt: skip
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._heard = self._gave_up = False
        self._left, self._counted = float(RETRIES), clock()

    def begin(self) -> Tries:
        """A call begins."""
        return Tries(self._clock())

    def heard(self, *, well: bool) -> None:
        """The server has answered.

        Args:
            well: with what it was asked for, or a no that stays one.
        """
        self._heard = True
        self._gave_up = self._gave_up and not well

    def pause(self, tries: Tries, after_s: float | None = None) -> bool:
        """Wait before a repeat; False: there is to be none.

        Args:
            after_s: no sooner, says the server.

        Raises:
            RlctlError: the fence has fallen.
        """
        delay_s = max(self._delay_s(tries.count), after_s or 0.0)
        limit_s = PATIENCE_S if self._heard and not self._gave_up else FIRST_PATIENCE_S
        now = self._clock()
        self._left = min(float(RETRIES), self._left + (now - self._counted) / REFILL_S)
        self._counted = now
        if self._left < 1 or now + delay_s > tries.began + limit_s:
            self._gave_up = True  # whoever asks again finds out soon
            return False
        self._left -= 1
        self._sleep(delay_s)
        fence = FENCE.get()
        if fence is not None:
            fence()
        return True

    def rest(self, times: int) -> None:
        """Wait, longer each of so many times, before something that is no repeat and has no end."""
        self._sleep(self._delay_s(times))

    def _delay_s(self, times: int) -> float:
        growing = _FIRST_DELAY_S * float(2 ** min(max(0, times - 1), 10))
        return min(_LONGEST_DELAY_S, growing) * (0.5 + self._jitter() / 2)
