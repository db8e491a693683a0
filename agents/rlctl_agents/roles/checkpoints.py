"""When a generation is due, which one is wanted, and which commits count."""

from __future__ import annotations

from collections.abc import Callable

from rlctl_agents.roles.manifests import Manifests
from rlctl_agents.types.control import Generation


class Checkpoints:
    """Orders generations, one at a time for each policy. An order stands until it is committed, whoever learns then.

    Args:
        manifests: what is committed.
        term: of this manager.
        issued: newest number that any manager of the run ever ordered.
        clock: monotonic seconds.
    """

    def __init__(self, manifests: Manifests, term: int, issued: int, clock: Callable[[], float]) -> None:
        self.manifests = manifests
        self.issued = max(issued, manifests.highest)
        self._term = term
        self._clock = clock
        self._wanted: dict[str, tuple[int, float]] = {}  # policy -> number, when it was ordered
        self._last: dict[str, float] = {}  # policy -> when its newest was committed, or when it began to learn

    def wanted(self, policy: str) -> int:
        """Number of the generation to be saved; 0: none."""
        return self._wanted[policy][0] if policy in self._wanted else 0

    def waiting_s(self, policy: str) -> float:
        """How long it has been wanted."""
        return self._clock() - self._wanted[policy][1] if policy in self._wanted else 0.0

    def worth_saving(self, policy: str, rows: int) -> bool:
        """Something was learned since the newest generation, or since an older one that a learner had to go back to."""
        newest = self.manifests.newest(policy)
        return rows > 0 and (newest is None or rows != newest.rows)

    def due(self, policy: str, rows: int, every_s: float) -> bool:
        """The next one should be ordered."""
        if policy in self._wanted or not self.worth_saving(policy, rows):
            return False
        now = self._clock()
        return now - self._last.setdefault(policy, now) >= every_s

    def order(self, policy: str) -> int:
        """Want a generation; the one that is wanted already, if there is one."""
        if policy not in self._wanted:
            self.issued = max(self.issued, self.manifests.highest) + 1
            self._wanted[policy] = (self.issued, self._clock())
        return self._wanted[policy][0]

    def commit(self, generation: Generation) -> None:
        """Parts of a generation lie on the volume: make it count.

        Raises:
            ValueError: of another term, with a used number, or without its parts.
            OSError: the volume refuses.
        """
        if generation.term != self._term:
            raise ValueError(
                f"generation {generation.number} was saved under term {generation.term}, the run is at {self._term}"
            )
        self.manifests.commit(generation)
        self.issued = max(self.issued, generation.number)
        self._last[generation.policy] = self._clock()
        if generation.number >= self.wanted(generation.policy):
            self._wanted.pop(generation.policy, None)
