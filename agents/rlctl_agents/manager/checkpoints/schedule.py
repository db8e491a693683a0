"""Schedule of generations: orders them when due, commits them, and removes old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from rlctl_agents.manager.checkpoints.assembly import Assembly
from rlctl_agents.manager.checkpoints.manifests import Manifests
from rlctl_agents.manager.state_store import Progress
from rlctl_agents.types.control import Generation

RETRY_S = 10.0
"""Seconds after which a failed generation is ordered again."""


class Checkpoints:
    """Schedule of generations: one open order per policy at most, which the commit of any learner fulfils.

    Args:
        manifests: committed generations.
        progress: term of this manager, and the newest number ever ordered in this run.
        clock: monotonic seconds.
        standing_term: term of the newest manager, as stored on the volume; may raise OSError.
        owners, every_s: as those of `Assembly`.
    """

    failure: str = ""
    """Why old generations could not be removed; "" when they could."""

    def __init__(
        self,
        manifests: Manifests,
        progress: Progress,
        clock: Callable[[], float],
        *,
        standing_term: Callable[[], int],
        owners: Callable[[], Mapping[str, bool]] = dict,
        every_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.assembly = Assembly(clock, owners, every_s)
        self.manifests = manifests
        self._progress = progress
        progress.issued = max(progress.issued, manifests.highest)
        self._clock = clock
        self._standing_term = standing_term
        self._wanted: dict[str, tuple[int, float]] = {}  # policy -> number, when it was ordered
        self._failed: dict[str, tuple[int, float]] = {}  # policy -> ordered number that failed, when that was noted
        self._last: dict[str, float] = {}  # policy -> when its newest was committed, or when it first had one to save

    def wanted(self, policy: str) -> int:
        """Number of the ordered generation; 0: none."""
        return self._wanted[policy][0] if policy in self._wanted else 0

    def waiting_s(self, policy: str) -> float:
        """Seconds since the ordered generation was ordered; 0: none is."""
        return self._clock() - self._wanted[policy][1] if policy in self._wanted else 0.0

    def worth_saving(self, policy: str, steps: int, version: int) -> bool:
        """True if something was learned since the newest generation, or since one that a learner had to go back to.

        Args:
            steps: agent steps that the weights were learned from. From a replay without new rows more is learned from
                the same.
            version: of the weights.
        """
        newest = self.manifests.newest(policy)
        return steps > 0 and (newest is None or (steps, version) != (newest.steps, newest.ref.version))

    def due(self, policy: str, steps: int, version: int, every_s: float) -> bool:
        """True if the next generation should be ordered; `steps` and `version` as those of `worth_saving`."""
        if policy in self._wanted or not self.worth_saving(policy, steps, version):
            return False
        now = self._clock()
        return now - self._last.setdefault(policy, now) >= every_s

    def resume(self, policy: str, age_s: float) -> None:
        """Go on with the schedule of an earlier manager, by the age of the newest generation."""
        self._last[policy] = self._clock() - max(0.0, age_s)

    def order(self, policy: str) -> int:
        """Order a generation, unless one is ordered already; returns its number."""
        if policy not in self._wanted:
            self._wanted[policy] = (self._next_number(), self._clock())
        return self._wanted[policy][0]

    def note_failure(self, policy: str, number: int) -> bool:
        """Note that this generation failed: RETRY_S later it is ordered under another number, because a number that was
        once refused stays refused. True when it has just been ordered again.
        """
        wanted, since = self._wanted.get(policy, (0, 0.0))
        if not 0 < wanted <= number:
            return False
        now = self._clock()
        if self._failed.get(policy, (0, 0.0))[0] != wanted:
            self._failed[policy] = (wanted, now)
        if now - self._failed[policy][1] < RETRY_S:
            return False
        self._wanted[policy] = (self._next_number(), since)
        if not self.assembly.holds(policy):  # the part of a learner before this one may still be committed
            self._remove_unclaimed(policy, wanted + 1)
        return True

    def came_to_nothing(self, policy: str) -> bool:
        """True if the newest order has failed: other processes then add no part before the learner's own is there."""
        return policy in self._failed

    def commit(self, generation: Generation) -> Generation:
        """Commit a generation with parts that are on the volume.

        Returns:
            The same, under the next number if its own was used: a learner that saves on its own initiative may not have
            heard of all orders.

        Raises:
            ValueError: another manager has taken over; another term, an older lineage, or a part is missing.
            OSError: the volume refuses.
        """
        self.require_ours(generation)
        if generation.number <= self.manifests.highest:
            generation = replace(generation, number=self._next_number())
        self.manifests.commit(generation)
        self._progress.issued = max(self._progress.issued, generation.number)
        self._last[generation.policy] = self._clock()
        self._failed.pop(generation.policy, None)
        if generation.number >= self.wanted(generation.policy):
            self._wanted.pop(generation.policy, None)
        return generation

    def require_ours(self, generation: Generation) -> None:
        """Check whether a generation may be committed, as far as known before all of its parts are there.

        Raises:
            ValueError: another manager has taken over; another term, or an older lineage.
            OSError: the volume refuses.
        """
        own = self._progress.term
        if (term := self._standing_term()) != own:
            raise ValueError(f"a manager of term {term} has taken over")
        if generation.term != own:
            raise ValueError(
                f"generation {generation.number} was saved under term {generation.term}, the run is at {own}"
            )
        newest = self.manifests.newest(generation.policy)
        if newest is not None and generation.ref.lineage < newest.ref.lineage:
            raise ValueError(f"{generation.ref} is of a lineage before that of generation {newest.number}")

    def already(self, generation: Generation) -> int | None:
        """Number of the committed generation that makes this one superfluous; None: none does. Learners that step
        together may each save a last one.

        The same weights are saved again if that was ordered."""
        newest, ref = self.manifests.newest(generation.policy), generation.ref
        if newest is None or newest.ref.lineage != ref.lineage or newest.ref.version < ref.version:
            return None
        ordered = newest.ref.version == ref.version and generation.number <= self.wanted(ref.policy)
        return None if ordered else newest.number

    def tidy(self, newest: Generation, keep: int) -> None:
        """Remove old generations, and parts whose commit failed. `failure` reports a failure, and removal is retried
        after the next commit.

        Args:
            newest: generation committed just now.
            keep: number of generations of each policy that stay.
        """
        try:
            self.manifests.prune(keep)
        except OSError as error:
            self._not_removed(error)
            return
        self._remove_unclaimed(newest.policy, newest.number)

    def _remove_unclaimed(self, policy: str, below: int) -> None:
        try:
            unclaimed = self.manifests.unclaimed(policy, below)
            # checked after listing: all files listed are from before a successor, which takes no commit of our term
            if self._standing_term() == self._progress.term:
                self.manifests.remove_parts(unclaimed)
            self.failure = ""
        except OSError as error:
            self._not_removed(error)

    def _not_removed(self, error: OSError) -> None:
        where = f"{error.filename}: " if error.filename else ""
        self.failure = f"cannot remove old generations: {where}{error.strerror}"

    def _next_number(self) -> int:
        self._progress.issued = max(self._progress.issued, self.manifests.highest) + 1
        return self._progress.issued
