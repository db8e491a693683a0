"""The wire of a process, with the keys and the address that its command line names, and what is refused there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rlctl_agents.runtime.arguments import Arguments, UserFault
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.wire.sockets import Wire


def open_wire(arguments: Arguments) -> Wire:
    """A wire for this process; without keys it does not leave the machine.

    Raises:
        UserFault: the keys cannot be read, or `--bind` is no address.
    """
    try:
        return Wire.of(arguments.keys, arguments.bind)
    except ValueError as error:
        raise UserFault(f"--keys, --bind: {error}") from error


def refused_connections(wire: Wire) -> dict[str, int]:
    """Connections to this process that came to nothing, by a reason that is no message's."""
    return {f"connection_{reason}": count for reason, count in wire.refused.items()}


class Refusals:
    """Brings counts by reason, which others keep, into the counters `rejected.REASON`.

    Args:
        sources: each gives totals since the start.
    """

    def __init__(self, metrics: Metrics, *sources: Callable[[], Mapping[str, int]]) -> None:
        self._metrics, self._sources = metrics, sources
        self._counted: dict[str, int] = {}

    def count(self) -> None:
        """Take what is new since the last call."""
        now: dict[str, int] = {}
        for source in self._sources:
            for reason, total in source().items():
                now[reason] = now.get(reason, 0) + total
        for reason, total in now.items():
            if new := total - self._counted.get(reason, 0):
                self._metrics.add(f"rejected.{reason}", new)
        self._counted = now
