"""How far each policy has been learned, from what its learners report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlctl_agents.roles.manifests import Manifests
from rlctl_agents.roles.process import RESUMED, ROWS
from rlctl_agents.roles.progress import Progress, Resumed
from rlctl_agents.types.control import Generation, Report
from rlctl_agents.types.experience import ModelRef


class Learners:
    """Rows behind the weights, over all boots of a policy's learner: they go back when it resumes.

    Args:
        populations: policy -> members, in the order in which learners are numbered.
        progress: gets the rows, and from where a learner resumed.
        manifests: what a learner may have resumed from.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        populations: Mapping[str, int],
        progress: Progress,
        manifests: Manifests,
        clock: Callable[[], float],
    ) -> None:
        self._members = [policy for policy, count in populations.items() for _ in range(count)]
        self._progress = progress
        self._manifests = manifests
        self._clock = clock
        self._offered: dict[str, Sequence[Generation]] = {}  # boot -> what it can resume from, newest first
        self._since: dict[str, float] = {}  # boot -> when its first update was seen
        self._newest: dict[str, Report] = {}  # policy -> of its learner
        self._said: set[str] = set()  # boots whose beginning is known

    def policy_of(self, index: int) -> str:
        """What learner `index` trains."""
        return self._members[index % len(self._members)]

    def rows(self, policy: str) -> int:
        """That its weights were learned from."""
        return self._progress.rows.get(policy, 0)

    def join(self, boot: str, generations: Sequence[Generation]) -> None:
        """A new learner was given its generations, newest first."""
        if generations:
            self._offered[boot] = generations

    def hear(self, index: int, report: Report) -> Resumed | None:
        """A report; from where the learner went on, when this is the first that says so."""
        policy, offered = self.policy_of(index), self._offered.get(report.boot, ())
        base = next(iter(offered), None)
        consumed = int(report.counters.get("consumed_rows", 0))
        before = base.rows if base is not None else 0
        self._progress.rows[policy] = int(report.gauges.get(ROWS, before + consumed))
        self._newest[policy] = report
        if consumed > 0:
            self._progress.started = True
            self._since.setdefault(report.boot, self._clock())
        if base is None or report.boot in self._said:
            return None
        self._said.add(report.boot)
        number = int(report.gauges.get(RESUMED, base.number))
        found = next((one for one in self._manifests.of(policy) if one.number == number), base)
        version, rows = found.ref.version, found.rows
        passed = {one.number for one in offered if one.number > number}
        self._progress.unusable = sorted({*self.unusable(), *passed} - {number})
        text = f"learner {index} went on from generation {number}: version {version}, {rows} rows"
        self._progress.resumed, self._progress.resumed_boot = Resumed(number, rows, text), report.boot
        return self._progress.resumed

    @property
    def resumed(self) -> Resumed | None:
        """From where the newest learner went on; None until it has reported to this manager: what is stored may be of
        the life before."""
        joined = {report.boot for report in self._newest.values()}
        return self._progress.resumed if self._progress.resumed_boot in joined else None

    def learning_s(self, boot: str) -> float:
        """How long a learner has been learning; negative infinity before its first update."""
        return self._clock() - self._since.get(boot, float("inf"))

    def usable(self, policy: str) -> tuple[Generation, ...]:
        """Committed generations of a policy, newest first, without those that a learner passed over."""
        return tuple(one for one in self._manifests.of(policy) if one.number not in self._progress.unusable)

    def unusable(self) -> list[int]:
        """Committed generations that a learner could not go on from."""
        kept = {one.number for policy in self._members for one in self._manifests.of(policy)}
        return [number for number in self._progress.unusable if number in kept]

    def rows_at(self, ref: ModelRef | None) -> int:
        """What a version was learned from: every update since then took the same number of rows."""
        if ref is None:
            return 0
        newest, rows = self._newest.get(ref.policy), self.rows(ref.policy)
        if newest is None or newest.model is None or newest.model.lineage != ref.lineage:
            return rows
        rows_each = newest.counters.get("consumed_rows", 0.0) / max(newest.counters.get("updates", 0.0), 1.0)
        return max(rows - round((newest.model.version - ref.version) * rows_each), 0)

    def bury(self, boot: str) -> None:
        """It never comes back."""
        self._offered.pop(boot, None)
        self._since.pop(boot, None)
        self._said.discard(boot)
