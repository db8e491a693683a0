"""Means over all updates from one look at a learner to the next, from sums that only it can make."""

from __future__ import annotations

from collections.abc import Iterable

from rlctl_agents.runtime.process import RANK
from rlctl_agents.types.control import Average, Report


class LearnerAverages:
    """Means of the learner that speaks for a policy, from one look at it to the next: every update counts in one look,
    none in two, and a report that was lost leaves nothing out.
    """

    def __init__(self) -> None:
        self._boot = ""
        self._before: dict[str, Average] = {}

    def look(self, reports: Iterable[Report]) -> dict[str, float]:
        """Gauges of that learner: means since the last look where it averages, else as they are now, without those
        that have no value since then.

        Args:
            reports: newest of each learner. Learners that step together have equal means, and rank 0 speaks for them.
        """
        report = next((one for one in reports if one.gauges.get(RANK, 0.0) == 0.0), None)
        if report is None:
            return {}
        first, before = report.boot != self._boot, self._before
        self._boot, self._before = report.boot, report.averages
        if first:  # what it did before may be days old
            return dict(report.gauges)
        gauges = {name: value for name, value in report.gauges.items() if name not in report.averages}
        for name, now in report.averages.items():
            then = before.get(name, Average(0.0, 0))
            if now.count > then.count:
                gauges[name] = (now.total - then.total) / (now.count - then.count)
        return gauges
