"""Looks at this process when the manager asks, in a thread of its own, and tells what it saw."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rlctl_agents.runtime.sampler import Seen, look
from rlctl_agents.types.control import Sampled, Sampling
from rlctl_agents.wire.rpc.client import RemoteError

NAME = "profile"
ANSWER_S = 30.0
"""A process that was told has so long, beyond what it looks, to say what it saw."""
AGAIN_S = 1.0
"""Between two attempts to say it."""

log = logging.getLogger(__name__)


class Profiler:
    """One look at a time.

    Args:
        role, boot: of this process.
        stop: ends a look early; what was seen until then is told.
        clock: monotonic seconds.
    """

    def __init__(
        self, role: str, boot: str, stop: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._role, self._boot, self._stop, self._clock = role, boot, stop, clock
        self._newest = ""

    def obey(self, order: Sampling, tell: Callable[[Sampled], object]) -> None:
        """Begin, unless this order has come before: it comes with every answer until the manager has been told.

        Args:
            tell: called in the thread that looked; again for a while when the manager does not answer. Another
                exception of it, or the last, is logged.
        """
        if order.id == self._newest:
            return
        self._newest = order.id
        threading.Thread(target=self._run, args=(order, tell), name=NAME, daemon=True).start()

    def _run(self, order: Sampling, tell: Callable[[Sampled], object]) -> None:
        log.info("profiling for %g s", order.seconds)
        try:
            self._say(packed(order.id, self._role, self._boot, look(order.seconds, self._stop.wait)), tell)
        except Exception as error:
            log.warning("the profile %s was lost: %s: %s", order.id, type(error).__name__, error)

    def _say(self, sampled: Sampled, tell: Callable[[Sampled], object]) -> None:
        until = self._clock() + ANSWER_S
        while True:
            try:
                tell(sampled)
                return
            except (TimeoutError, RemoteError):
                if self._clock() >= until or self._stop.is_set():
                    raise
                self._stop.wait(AGAIN_S)


def packed(id: str, role: str, boot: str, seen: Seen) -> Sampled:
    """As it goes over the wire: each name of a function once."""
    numbers: dict[str, int] = {}
    stacks = [([numbers.setdefault(name, len(numbers)) for name in stack], us) for stack, us in seen.stacks.items()]
    return Sampled(
        id, role, boot,
        seconds=seen.seconds, samples=seen.samples, threads=seen.threads, frames=list(numbers), stacks=stacks,
    )  # fmt: skip


def unpacked(sampled: Sampled) -> dict[tuple[str, ...], int]:
    """The stacks again.

    Raises:
        ValueError: they make no sense.
    """
    count, found = len(sampled.frames), dict[tuple[str, ...], int]()
    for numbers, us in sampled.stacks:
        if not numbers or us < 0 or len(numbers) > 1000 or not all(0 <= number < count for number in numbers):
            raise ValueError(f"profile {sampled.id}: a stack of frames that are not there, or of no time")
        stack = tuple(sampled.frames[number] for number in numbers)
        found[stack] = found.get(stack, 0) + us
    return found
