"""Generations to which several processes add a part: held until all parts lie on the volume, or are given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec.structs import replace

from rlctl_agents.types.control import Contribute, Generation

WAIT_S = 300.0
"""For parts, after the learner's own is there; what has not come then is absent."""
ENDING_S = 8.0
"""The same while the run ends: processes have ten seconds."""


End = Literal["", "ending", "last"]
"""Of a run: not yet; it begins, and no process takes long any more; no process is left."""


class _Held(NamedTuple):
    generation: Generation
    since: float


class Assembly:
    """Generations of learners that wait for the parts of others, and what came of these.

    Args:
        clock: monotonic seconds.
        owners: names of the parts that a generation has besides the learner's -> whether that process lives.
    """

    def __init__(self, clock: Callable[[], float], owners: Callable[[], Mapping[str, bool]]) -> None:
        self._clock, self._owners = clock, owners
        self._held: dict[str, _Held] = {}  # by policy
        self._parts: dict[int, dict[str, Contribute]] = {}  # by number, then by name of the part
        self._refused: dict[int, str] = {}  # number -> why it came to nothing, of the newest

    def number(self, policy: str, wanted: int) -> int:
        """Number of the generation to which a part is to be added; 0: none.

        Args:
            wanted: that is ordered. A learner may save on its own account, under another number.
        """
        held = self._held.get(policy)
        return wanted if held is None else held.generation.number

    def hold(self, generation: Generation) -> bool:
        """Keep a generation back until its other parts are there; False: it needs none.

        Raises:
            ValueError: it came to nothing before.
        """
        if why := self._refused.get(generation.number):
            raise ValueError(why)
        if not self._owners():
            return False
        held = self._held.get(generation.policy)
        if held is None or held.generation.number != generation.number:
            self._held[generation.policy] = _Held(generation, self._clock())
        return True

    def add(self, part: str, told: Contribute) -> None:
        """Note what came of a part."""
        self._parts.setdefault(told.number, {})[part] = told

    def refuse(self, number: int, why: str) -> None:
        """Note that a generation came to nothing."""
        self._refused = {number: why}

    def ready(self, end: End = "") -> list[Generation]:
        """Generations whose parts are there or are given up; they are held no longer."""
        made = []
        for policy, held in list(self._held.items()):
            found = self._parts.get(held.generation.number, {})
            missing = {part: lives for part, lives in self._owners().items() if part not in found}
            waited_s, least_s = self._clock() - held.since, {"": WAIT_S, "ending": ENDING_S, "last": 0.0}[end]
            if any(missing.values()) and waited_s < least_s:
                continue
            late = f"not there after {waited_s:.0f} s"
            absent = {part: late if lives else "no process" for part, lives in missing.items()}
            made.append(_with_parts(held.generation, found, absent))
            del self._held[policy]
            self._parts = {number: parts for number, parts in self._parts.items() if number > held.generation.number}
        return made


def _with_parts(generation: Generation, found: Mapping[str, Contribute], missing: dict[str, str]) -> Generation:
    there = {part: one for part, one in sorted(found.items()) if not one.fault}
    return replace(
        generation,
        parts={**generation.parts, **{part: one.file for part, one in there.items()}},
        sha256={**generation.sha256, **{part: one.sha256 for part, one in there.items()}},
        absent={**missing, **{part: one.fault for part, one in sorted(found.items()) if one.fault}},
    )
