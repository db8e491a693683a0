"""Cadence of evaluations: as the spec states it, or as a tenth of the run's CPU allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.timing import REPORT_EVERY_S

SHORTEST_S = 10.0
"""Between the starts of two evaluations, where the spec states nothing; in lock-step always so long."""
CPU_SHARE = 0.1
"""Of the run's CPU that evaluators may take, where the spec states nothing."""
CORE_SHARE = 0.2
"""Of one core that they may take, however little the run computes: it may wait for simulators, or for a GPU."""
LONGEST_S = 30.0
"""Between two starts where that is enough, or where training has come to the goal: then a run finds out no later."""


class Taken(NamedTuple):
    """From the start of one evaluation to the start of the next."""

    every_s: float
    cpu_share: float | None  # of the evaluators; None: no process has reported meanwhile


class Cadence:
    """Time and CPU between the starts of evaluations.

    An evaluation is paid for before the next one starts: the run computes until the CPU seconds of the evaluators since
    the last start are a tenth of all, or a fifth of one core's. So the share holds for one machine and for a cluster
    alike, whatever else a machine is busy with, and an evaluation that costs more than the one before makes only its
    own successor wait.

    Args:
        clock: monotonic seconds.
        cpu: of the run by now.
        hopeful: training has come to the goal, so that the next evaluation may end the run.
    """

    def __init__(
        self, clock: Callable[[], float], cpu: Callable[[], Cpu], hopeful: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock, self._cpu, self._hopeful = clock, cpu, hopeful
        self._started: tuple[float, Cpu] | None = None
        self._at_once = True
        self.taken: Taken | None = None
        """None: this manager has not seen two evaluations start."""

    def due(self, every_s: float | None) -> bool:
        """True if another evaluation may start now.

        Args:
            every_s: as stated; None: by CPU.
        """
        if self._started is None or self._at_once:
            return True
        waited_s = self._clock() - self._started[0]
        if every_s is not None:
            return waited_s >= every_s
        if waited_s < SHORTEST_S:
            return False
        spent = self._since(self._started[1])
        if spent.evaluators <= CPU_SHARE * spent.everything:
            return True
        # asked once a second: what is not granted now is granted a second later
        next_s = waited_s + REPORT_EVERY_S
        return next_s > LONGEST_S and (next_s > spent.evaluators / CORE_SHARE or self._hopeful())

    def begin(self) -> None:
        """Start an evaluation."""
        if self._started is not None and not self._at_once:  # one that was cut short says nothing of the cadence
            at, before = self._started
            spent = self._since(before)
            share = spent.evaluators / spent.everything if spent.everything > 0 else None
            self.taken = Taken(self._clock() - at, share)
        self._started, self._at_once = (self._clock(), self._cpu()), False

    def again(self) -> None:
        """The next may start at once: the last will not be finished, or the run is over but for its last model."""
        self._at_once = True

    def _since(self, before: Cpu) -> Cpu:
        now = self._cpu()
        return Cpu(max(now.evaluators - before.evaluators, 0.0), max(now.everything - before.everything, 0.0))
