"""Means of a learner's averaged metrics between two reads, from its cumulative sums and counts."""

from __future__ import annotations

from collections.abc import Iterable

from rlctl_agents.runtime.gauges import RANK
from rlctl_agents.types.control import Average, Report


class LearnerAverages:
    """Means of a policy's rank-0 learner between two reads: every update counts in one read and none in two, and a lost
    report leaves nothing out.
    """

    def __init__(self) -> None:
        self._boot = ""
        self._before: dict[str, Average] = {}

    def look(self, reports: Iterable[Report]) -> dict[str, float]:
        """Gauges of that learner: means since the last read where it averages, else current values. Averaged gauges
        without an update since then are left out.

        Args:
            reports: newest of each learner. Learners that step together have equal means, so rank 0 is read.
        """
        report = next((one for one in reports if one.gauges.get(RANK, 0.0) == 0.0), None)
        if report is None:
            return {}
        first, before = report.boot != self._boot, self._before
        self._boot, self._before = report.boot, report.averages
        if first:  # its sums may span days
            return dict(report.gauges)
        gauges = {name: value for name, value in report.gauges.items() if name not in report.averages}
        for name, now in report.averages.items():
            then = before.get(name, Average(0.0, 0))
            if now.count > then.count:
                gauges[name] = (now.total - then.total) / (now.count - then.count)
        return gauges
