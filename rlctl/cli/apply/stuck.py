"""Runs that will not become ready however long one waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rlctl.backends.crashes import too_often
from rlctl.cli.run.problems import label

if TYPE_CHECKING:
    from rlctl.backends.base import Process

SETTLED_S = 6.0
"""Time for which the same process has to be hopeless: one that an `up` has just replaced fails for a moment more."""


class Hope:
    """Watches processes from look to look.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._restarts: dict[str, int] = {}  # of each process when it was first seen
        self._since: dict[str, float] = {}  # hopeless process -> when that was first seen

    def lost(self, processes: Iterable[Process]) -> Process | None:
        """A process that will not run by waiting: the target says so, or it dies again and again; None when all may."""
        now = self._clock()
        found = {label(process): process for process in processes if self._hopeless(process)}
        self._since = {name: self._since.get(name, now) for name in found}
        return next((found[name] for name, since in self._since.items() if now - since >= SETTLED_S), None)

    def _hopeless(self, process: Process) -> bool:
        before = self._restarts.setdefault(label(process), process.restarts)
        return process.permanent or (process.state == "backoff" and too_often(process.restarts - before + 1))
