"""Assembly of generations to which several processes add a part: held until all parts are stored, or are given up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from rlctl_agents.types.control import Contribute, Generation

WAIT_S = 300.0
"""Seconds to wait for parts, at least, once the learner's own is there; a part that is not there by then is absent."""
ENDING_S = 8.0
"""The same while the run ends: processes have ten seconds."""
REMEMBERED = 16
"""Newest generations whose outcome is remembered: a learner polls for it."""


End = Literal["", "ending", "last"]
"""How far the run has ended: "" running; "ending" no process takes long any more; "last" none is left to wait for."""


class _Held(NamedTuple):
    generation: Generation
    since: float


class Assembly:
    """Generations that wait for the parts of other processes, and the outcomes of earlier ones.

    Args:
        clock: monotonic seconds.
        owners: name of each part besides the learner's -> whether its process lives.
        every_s: seconds between generations; if longer than WAIT_S, parts are waited for as long.
    """

    def __init__(
        self, clock: Callable[[], float], owners: Callable[[], Mapping[str, bool]], every_s: Callable[[], float]
    ) -> None:
        self._clock, self._owners, self._every_s = clock, owners, every_s
        self._held: list[_Held] = []  # in the order of their numbers
        self._parts: dict[int, dict[str, Contribute]] = {}  # by number, then by name of the part
        self.unseen: dict[tuple[int, str], Contribute] = {}
        """Parts that could not be checked on the volume when they were reported, by number and name: not added yet."""
        self._ended: deque[tuple[tuple[object, ...], str]] = deque(maxlen=REMEMBERED)  # key, and why it failed

    def number(self, policy: str, wanted: int) -> int:
        """Number of the generation to which a part is to be added; 0: none.

        Args:
            wanted: number that is ordered. A learner that saves on its own initiative may use another number.
        """
        held = [one.generation.number for one in self._held if one.generation.policy == policy]
        return max(held, default=wanted)

    def outcome(self, generation: Generation) -> str | None:
        """Outcome of a generation that was held: "" committed, else why it failed; None: no outcome is known."""
        return next((why for key, why in self._ended if key == _key(generation)), None)

    def hold(self, generation: Generation) -> bool:
        """Hold a generation until its other parts are there; False if it needs none.

        A generation whose weights are those of a held one, or older ones of its lineage, waits with that: learners that
        step together may each save a last one.
        """
        if not self._owners():
            return False
        ref = generation.ref
        alike = [one.generation.ref for one in self._held if one.generation.policy == generation.policy]
        if not any(one.lineage == ref.lineage and one.version >= ref.version for one in alike):
            self._held = sorted([*self._held, _Held(generation, self._clock())], key=lambda one: one.generation.number)
        return True

    def add(self, part: str, told: Contribute) -> None:
        """Note that a part is stored, or why not. A stored part stays: a process that was restarted has older rows."""
        parts = self._parts.setdefault(told.number, {})
        if part not in parts or parts[part].fault:
            parts[part] = told

    def holds(self, policy: str) -> bool:
        """True if a generation of a policy waits for parts."""
        return any(one.generation.policy == policy for one in self._held)

    def lacks(self, policy: str) -> list[str]:
        """Parts that the oldest held generation of a policy waits for."""
        held = next((one for one in self._held if one.generation.policy == policy), None)
        return [] if held is None else self._missing(held)

    def ready(self, end: End = "") -> list[Generation]:
        """Generations with all parts there or given up, oldest first; they are no longer held. A newer one takes along
        those before it, with the parts that they have: numbers are committed in order."""
        last = max((at for at, one in enumerate(self._held, 1) if not self._waits(one, end)), default=0)
        made = [self._whole(one) for one in self._held[:last]]
        self._held = self._held[last:]
        if made:
            newest = made[-1].number
            self._parts = {number: parts for number, parts in self._parts.items() if number > newest}
            self.unseen = {key: told for key, told in self.unseen.items() if key[0] > newest}
        return made

    def end(self, generation: Generation, why: str = "") -> None:
        """Note that a held generation was committed, or why it failed."""
        self._ended.append((_key(generation), why))

    def _waits(self, held: _Held, end: End) -> bool:
        least_s = {"": max(WAIT_S, self._every_s()), "ending": ENDING_S, "last": 0.0}[end]
        return self._clock() - held.since < least_s and bool(self._missing(held))

    def _missing(self, held: _Held) -> list[str]:
        """Missing parts of live processes."""
        found = self._parts.get(held.generation.number, {})
        return [part for part, lives in self._owners().items() if lives and part not in found]

    def _whole(self, held: _Held) -> Generation:
        """The generation with the parts that are there, and the names of those that are absent."""
        generation, found = held.generation, self._parts.get(held.generation.number, {})
        late = f"not there after {self._clock() - held.since:.0f} s"
        lacks = {part: lives for part, lives in self._owners().items() if part not in found}
        missing = {part: late if lives else "its process does not report" for part, lives in lacks.items()}
        there = {part: one for part, one in sorted(found.items()) if not one.fault}
        return replace(
            generation,
            parts={**generation.parts, **{part: one.file for part, one in there.items()}},
            sha256={**generation.sha256, **{part: one.sha256 for part, one in there.items()}},
            absent={**missing, **{part: one.fault for part, one in sorted(found.items()) if one.fault}},
        )


def _key(generation: Generation) -> tuple[object, ...]:
    """Key of a generation, the same with and without the parts of others."""
    return generation.number, generation.policy, generation.ref, generation.created
