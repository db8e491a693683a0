"""Cadence of evaluations: as stated in the spec, or as a tenth of the run's CPU allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.timing import REPORT_EVERY_S

SHORTEST_S = 10.0
"""Seconds between the starts of two evaluations, at least, where the spec states none; in lock-step exactly."""
CPU_SHARE = 0.1
"""Share of the run's CPU that evaluators may take, where the spec states no cadence."""
CORE_SHARE = 0.2
"""Share of one core that they may take, however little the run computes: it may wait for simulators, or for a GPU."""
LONGEST_S = 30.0
"""Seconds between two starts, at most, where that keeps CORE_SHARE, or where training has reached the goal."""


class CadenceSample(NamedTuple):
    """Interval between the starts of two consecutive evaluations, and what they cost."""

    every_s: float
    cpu_share: float | None  # of the evaluators; None: no process has reported meanwhile


class Cadence:
    """Schedule of evaluations, by a stated interval or by CPU time.

    An evaluation is paid for before the next one starts: the run computes until the CPU seconds of the evaluators since
    the last start are a tenth of all, or a fifth of one core's. So the share holds for one machine and for a cluster
    alike, whatever else a machine is busy with, and an evaluation that costs more than the one before makes only its
    own successor wait.

    Args:
        clock: monotonic seconds.
        cpu: CPU seconds of the run so far.
        hopeful: True if training has reached the goal, so that the next evaluation may end the run.
    """

    def __init__(
        self, clock: Callable[[], float], cpu: Callable[[], Cpu], hopeful: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock, self._cpu, self._hopeful = clock, cpu, hopeful
        self._started: tuple[float, Cpu] | None = None
        self._at_once = True
        self.taken: CadenceSample | None = None
        """The newest interval; None: this manager has not seen two evaluations start."""

    def due(self, every_s: float | None) -> bool:
        """True if another evaluation may start now.

        Args:
            every_s: seconds between two starts, as stated; None: by CPU.
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
        # called once a second: what is not granted now is granted a second later
        next_s = waited_s + REPORT_EVERY_S
        return next_s > LONGEST_S and (next_s > spent.evaluators / CORE_SHARE or self._hopeful())

    def begin(self) -> None:
        """Record the start of an evaluation."""
        if self._started is not None and not self._at_once:  # an evaluation that was cut short tells nothing
            at, before = self._started
            spent = self._since(before)
            share = spent.evaluators / spent.everything if spent.everything > 0 else None
            self.taken = CadenceSample(self._clock() - at, share)
        self._started, self._at_once = (self._clock(), self._cpu()), False

    def again(self) -> None:
        """Let the next evaluation start at once: the last one will not be finished."""
        self._at_once = True

    def _since(self, before: Cpu) -> Cpu:
        now = self._cpu()
        return Cpu(max(now.evaluators - before.evaluators, 0.0), max(now.everything - before.everything, 0.0))
