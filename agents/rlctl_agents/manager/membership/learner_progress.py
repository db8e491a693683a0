"""Progress of each policy, from the reports of its learners."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from rlctl_agents.manager.state_store import Progress, Resumed
from rlctl_agents.runtime.gauges import LEARNED, RANK, RESUMED, RESUMING, SEEDED, STEPS
from rlctl_agents.types.control import Generation, Report
from rlctl_agents.types.experience import ModelRef

PAIRS = 512
"""Versions of a lineage that are remembered with their steps, at most; beyond that, every second one is dropped."""
LINEAGES = 8
"""Lineages whose versions are remembered."""


class Learners:
    """Agent steps that weights were learned from, over all boots of a policy's learner: they fall when it resumes.

    Args:
        populations: policy -> size of its population, in the order in which learners are numbered.
        batch_size: agent steps per update of a policy, used until its learners have reported two versions. It is not in
            the manager's part of the spec, so this is its default.
        progress: stores the steps, and from where a learner resumed.
        generations: generations of a policy, newest first, from which a learner may have resumed.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        populations: Mapping[str, int],
        batch_size: Callable[[str], int],
        progress: Progress,
        generations: Callable[[str], Sequence[Generation]],
        clock: Callable[[], float],
    ) -> None:
        self.policies = list(populations)
        """Policies of the run; steps of the first one count for `stop`."""
        self._members = [policy for policy, count in populations.items() for _ in range(count)]
        self._batch_steps = batch_size
        self._progress = progress
        self._generations = generations
        self._clock = clock
        self._offered: dict[str, Sequence[Generation]] = {}  # boot -> generations that it can resume from, newest first
        self._since: dict[str, float] = {}  # boot -> when its first update was seen
        self._newest: dict[str, str] = {}  # policy -> boot of its learner that reported last
        self._said: set[str] = set()  # boots whose start is known
        self._pairs: dict[tuple[str, int], dict[int, int]] = {}  # policy, lineage -> version -> steps, ascending
        for policy in populations:
            for one in reversed(generations(policy)):
                self.know(one.ref, one.steps)

    def policy_of(self, index: int) -> str:
        """Policy that learner `index` trains."""
        return self._members[index % len(self._members)]

    def steps(self, policy: str) -> int:
        """Agent steps that the weights of a policy were learned from."""
        return self._progress.steps.get(policy, 0)

    def learned(self, policy: str) -> int:
        """Agent steps of `steps`, each counted once per optimizer step made from it."""
        return self._progress.learned.get(policy, self.steps(policy))

    def updates(self, policy: str) -> int:
        """Updates that made the weights of a policy."""
        return self._progress.versions.get(policy, 0)

    def reported(self, policy: str) -> bool:
        """True if the learner of a policy has reported to this manager."""
        return policy in self._newest

    def sure_steps(self, policy: str) -> int:
        """Agent steps behind weights that surely exist: reported to this manager by their learner, or held by a
        generation. Progress stored by an older manager is no proof: the learner may have died with it.
        """
        if self.reported(policy):
            return self.steps(policy)
        return min(self.steps(policy), self.saved_steps(policy))

    def saved_steps(self, policy: str) -> int:
        """Agent steps of the newest usable generation; 0: there is none."""
        newest = next(iter(self.usable(policy)), None)
        return newest.steps if newest is not None else 0

    def join(self, boot: str, generations: Sequence[Generation]) -> None:
        """Note the generations that were offered to a new learner, newest first."""
        if generations:
            self._offered[boot] = generations

    def hear(self, index: int, report: Report) -> Resumed | None:
        """Take in a report; returns from where the learner resumed, if this is the first to report it. Rank 0 reports
        for all learners that step together.
        """
        if int(report.counters.get("consumed_steps", 0)) > 0:
            self._progress.started = True
            self._since.setdefault(report.boot, self._clock())
        rank = report.gauges.get(RANK, 0.0)
        if rank > 0 or report.gauges.get(SEEDED, 0.0) > 0:
            self._said.add(report.boot)  # rank 0 reports it, or its weights are not from a generation
        if rank != 0:
            return None
        policy, offered = self.policy_of(index), self._offered.get(report.boot, ())
        base = next(iter(offered), None)
        consumed = int(report.counters.get("consumed_steps", 0))
        before = base.steps if base is not None else 0
        self._progress.steps[policy] = int(report.gauges.get(STEPS, before + consumed))
        self._progress.learned[policy] = int(report.gauges.get(LEARNED, self.steps(policy)))
        self._newest[policy] = report.boot
        if report.model is not None:
            self._progress.versions[policy] = report.model.version
            if base is None and RESUMED not in report.gauges:
                self.know(ModelRef(policy, report.model.lineage, 0), 0)
            self.know(report.model, self.steps(policy))
        elif base is not None:  # it reads that generation, or learns its first batch
            self._progress.versions[policy] = base.ref.version
        if base is None or report.boot in self._said or report.gauges.get(RESUMING, 0.0) > 0:
            return None
        self._said.add(report.boot)
        number = int(report.gauges.get(RESUMED, base.number))
        found = next((one for one in self._generations(policy) if one.number == number), base)
        version, steps = found.ref.version, found.steps
        if report.model is not None:
            self.know(ModelRef(policy, report.model.lineage, version), steps)
        passed = {one.number for one in offered if one.number > number}
        self._progress.unusable = sorted({*self.unusable(), *passed} - {number})
        text = f"learner {index} went on from generation {number}: version {version}, {steps} steps"
        self._progress.resumed, self._progress.resumed_boot = Resumed(number, steps, text), report.boot
        return self._progress.resumed

    @property
    def resumed(self) -> Resumed | None:
        """Generation from which the newest learner resumed; None until it has reported to this manager: the stored one
        may be of an earlier boot."""
        return self._progress.resumed if self._progress.resumed_boot in self._newest.values() else None

    def learning_s(self, boot: str) -> float:
        """Seconds since a learner's first update; negative infinity before it."""
        return self._clock() - self._since.get(boot, float("inf"))

    def usable(self, policy: str) -> tuple[Generation, ...]:
        """Committed generations of a policy, newest first, without those that a learner could not use."""
        return tuple(one for one in self._generations(policy) if one.number not in self._progress.unusable)

    def unusable(self) -> list[int]:
        """Committed generations that a learner could not resume from."""
        kept = {one.number for policy in self._members for one in self._generations(policy)}
        return [number for number in self._progress.unusable if number in kept]

    def know(self, ref: ModelRef, steps: int) -> None:
        """Record the exact number of agent steps that a version was learned from."""
        pairs = self._pairs.setdefault((ref.policy, ref.lineage), {})
        ascending = not pairs or ref.version > next(reversed(pairs))
        pairs[ref.version] = steps
        if len(pairs) > PAIRS:
            pairs = dict([*pairs.items()][:-1:2] + [*pairs.items()][-1:])
        self._pairs[ref.policy, ref.lineage] = pairs if ascending else dict(sorted(pairs.items()))
        while len(self._pairs) > LINEAGES:
            del self._pairs[min(self._pairs, key=lambda one: one[1])]

    def steps_at(self, ref: ModelRef) -> int:
        """Agent steps that a version was learned from: as noted, or interpolated between the versions around it.

        Example:
            Version 10 was learned from 1000 steps, version 20 from 1900: version 12 counts as 1180.
        """
        pairs = self._pairs.get((ref.policy, ref.lineage), {})
        if ref.version in pairs:
            return pairs[ref.version]
        versions = [*pairs]
        at = bisect_left(versions, ref.version)
        if 0 < at < len(versions):
            (before, fewer), (after, more) = ((one, pairs[one]) for one in versions[at - 1 : at + 1])
            return fewer + round((more - fewer) * (ref.version - before) / (after - before))
        if not versions:
            return self.steps(ref.policy) or round(ref.version * self.steps_of_update(ref.policy))
        # newer than all that were reported, or made before this manager began
        known = versions[min(at, len(versions) - 1)]
        return max(pairs[known] + round((ref.version - known) * self.steps_of_update(ref.policy)), 0)

    def steps_of_update(self, policy: str) -> float:
        """Mean agent steps per update, as reported by the learners of the newest lineage."""
        lineage = max((number for name, number in self._pairs if name == policy), default=0)
        pairs = self._pairs.get((policy, lineage), {})
        if len(pairs) < 2:
            return self._batch_steps(policy)
        first, last = next(iter(pairs)), next(reversed(pairs))
        return (pairs[last] - pairs[first]) / (last - first)

    def bury(self, boot: str) -> None:
        """Forget a boot that never comes back."""
        self._offered.pop(boot, None)
        self._since.pop(boot, None)
        self._said.discard(boot)
