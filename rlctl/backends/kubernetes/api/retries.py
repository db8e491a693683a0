"""Retries: how long and how often one command retries a request; decided after each failure, by the server's reply.

A write that is retried late may land after another command has taken the lock of the run: writers set `FENCE`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

FIRST_PATIENCE_S: Final = 6.0
"""Seconds of retries against a server that has not answered yet, or was given up: its address may be wrong."""
PATIENCE_S: Final = 45.0
"""Seconds of retries against a server that has answered, whatever it said: it restarts, or is overloaded."""
RETRIES: Final = 100
"""Burst of retries that one command may make, over all its calls."""
REFILL_S: Final = 36.0
"""Seconds after which one more retry is allowed: a command that watches for days survives an outage each hour."""
_FIRST_DELAY_S: Final = 0.25
_LONGEST_DELAY_S: Final = 8.0

FENCE: Final[ContextVar[Callable[[], None] | None]] = ContextVar("fence", default=None)
"""Called before every retry in this thread; an error that it raises ends the call."""


@dataclass
class Tries:
    """Attempts of one call."""

    began: float
    count: int = 0
    lost: bool = False  # a request without an answer: it may have been executed


class Retries:
    """Retry timeouts and budget of one command.

    Args:
        clock: monotonic seconds.
        jitter: returns a random number in [0, 1).
    """

    def __init__(
        self, clock: Callable[[], float], sleep: Callable[[float], None], jitter: Callable[[], float]
    ) -> None:  # fmt: skip
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._heard = self._gave_up = False
        self._left, self._counted = float(RETRIES), clock()

    def begin(self) -> Tries:
        """Begin a call."""
        return Tries(self._clock())

    def heard(self, *, well: bool) -> None:
        """Record that the server has answered.

        Args:
            well: with success, or with a refusal that a retry would not change.
        """
        self._heard = True
        self._gave_up = self._gave_up and not well

    def pause(self, tries: Tries, after_s: float | None = None) -> bool:
        """Wait before a retry; False: no more retries.

        Args:
            after_s: minimum delay in seconds, as the server asks.

        Raises:
            RlctlError: raised by the fence.
        """
        delay_s = max(self._delay_s(tries.count), after_s or 0.0)
        limit_s = PATIENCE_S if self._heard and not self._gave_up else FIRST_PATIENCE_S
        now = self._clock()
        self._left = min(float(RETRIES), self._left + (now - self._counted) / REFILL_S)
        self._counted = now
        if self._left < 1 or now + delay_s > tries.began + limit_s:
            self._gave_up = True  # the next call gives up sooner
            return False
        self._left -= 1
        self._sleep(delay_s)
        fence = FENCE.get()
        if fence is not None:
            fence()
        return True

    def rest(self, times: int) -> None:
        """Wait before another attempt of an endless operation, longer with each of `times` in a row; costs no retry."""
        self._sleep(self._delay_s(times))

    def _delay_s(self, times: int) -> float:
        growing = _FIRST_DELAY_S * float(2 ** min(max(0, times - 1), 10))
        return min(_LONGEST_DELAY_S, growing) * (0.5 + self._jitter() / 2)
