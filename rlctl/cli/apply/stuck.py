"""Detection of processes that will never become ready, which ends a wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rlctl.backends.crashes import too_often
from rlctl.cli.run.problems import label

if TYPE_CHECKING:
    from rlctl.backends.base import Process

SETTLED_S = 6.0
"""Seconds for which a process has to look hopeless: one that `up` has just replaced still fails for a moment."""


class StuckDetector:
    """Tracks processes over successive snapshots.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._restarts: dict[str, int] = {}  # process -> restarts when it was first seen
        self._since: dict[str, float] = {}  # hopeless process -> when that was first seen

    def lost(self, processes: Iterable[Process]) -> Process | None:
        """A process that will never run: the target says so, or it is in a crash loop; None if there is none."""
        now = self._clock()
        found = {label(process): process for process in processes if self._hopeless(process)}
        self._since = {name: self._since.get(name, now) for name in found}
        return next((found[name] for name, since in self._since.items() if now - since >= SETTLED_S), None)

    def _hopeless(self, process: Process) -> bool:
        before = self._restarts.setdefault(label(process), process.restarts)
        return process.permanent or (process.state == "backoff" and too_often(process.restarts - before + 1))
