"""Spec of a run's experience: stated by the first process that has the simulator; all others must match it.

Where actors of a former spec still have another segment schema, the learner's counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from rlctl_agents.runtime.addresses import TALKS_TO
from rlctl_agents.types.control import Experience, Hello
from rlctl_agents.types.experience import schema_difference, short_json
from rlctl_agents.types.figures import figure_names

LARGEST_INDEX = 1_000_000


def require_ours(hello: Hello, run: str, uid: str) -> None:
    """Check that a hello is from a process of this run.

    Raises:
        ValueError: it is not, or it is malformed.
    """
    if hello.run != uid:
        raise ValueError(f"this is the manager of run {run} ({uid[:8]}), not of {hello.run[:8] or 'no run'}")
    if hello.role not in TALKS_TO:
        raise ValueError(f"there is no role {hello.role!r} in this run")
    if not re.fullmatch(r"[0-9a-f]{16}", hello.boot) or not 0 <= (hello.prefer or 0) < LARGEST_INDEX:
        raise ValueError(f"boot {hello.boot!r} or index {hello.prefer} is not what a process has")


class StoredExperience(msgspec.Struct):
    """The agreement, as stored for the next manager."""

    agreed: Experience | None = None
    whole: bool = False
    carriers: dict[str, str] = {}
    outdated: list[str] = []


class ExperienceSpec:
    """Experience of a run, on which all its processes agree.

    The first statement counts. An evaluator's segments are never sent, so of its experience only the spaces and the
    frame skip matter. The agreement ends with the last live process that carries it: then all have been restarted
    with other settings, and the next statement counts. It outlives the manager, or the first actor that says hello to
    the next one would decide for all.

    A learner that reads segments of another schema replaces that part. Deployments end an actor of a former spec only
    once one of the new spec is ready, so on a cluster neither the first nor the last statement could decide.

    Args:
        alive: whether a boot holds a lease.
    """

    def __init__(self, alive: Callable[[str], bool]) -> None:
        self._alive = alive
        self._agreed: Experience | None = None
        self._figures: tuple[str, ...] = ()
        self._whole = False  # an actor has stated it, so the schema counts
        self._stated = False  # to this manager
        self._carriers: dict[str, str] = {}  # boot -> name; an evaluator carries the spaces alone
        self._outdated: set[str] = set()  # actors with a schema that the learner has replaced

    @property
    def experience(self) -> Experience | None:
        """Experience as agreed; None until an actor has stated it to this manager."""
        return self._agreed if self._whole and self._stated else None

    @property
    def seats(self) -> int:
        """Seats of the environment; 0: not known yet."""
        return self._agreed.spaces.seats if self._agreed is not None else 0

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures of episodes that actors report, in order; () until an actor has stated them."""
        return self._figures if self._whole else ()

    def outdated(self, boot: str) -> bool:
        """True if a learner has joined since that does not read this actor's segments."""
        return boot in self._outdated

    def bury(self, boot: str) -> None:
        """Forget a boot that never comes back."""
        self._carriers.pop(boot, None)
        self._outdated.discard(boot)

    def hear(self, hello: Hello) -> bool:
        """Take in a hello; True if the experience is new or has changed.

        Raises:
            ValueError: its experience contradicts that of a live process, and the message names both; or it is none.
        """
        said = hello.experience
        if said is None:
            return False
        name = hello.role if hello.prefer is None else f"{hello.role}/{hello.prefer}"
        if hello.role == "learner":
            return self._replace_schema(hello.boot, name, said)
        acts, figures = hello.role != "evaluator", figure_names(said.spaces.action)
        if self._agreed is not None:
            difference = _difference(said, self._agreed, schema=acts and self._whole)
            if difference:
                self._carriers = {boot: name for boot, name in self._carriers.items() if self._alive(boot)}
                agrees = self._of("evaluator") if not _difference(said, self._agreed, schema=False) else set()
                others = [other for boot, other in self._carriers.items() if boot != hello.boot and boot not in agrees]
                if others:
                    raise ValueError(f"{name} does not fit {others[0]}: {difference}")
                self._agreed, self._whole = None, False
        self._carriers[hello.boot] = name
        self._outdated.discard(hello.boot)
        changed = acts and said != self.experience
        self._stated |= acts
        if acts or self._agreed is None:
            self._agreed, self._whole, self._figures = said, acts, figures
        return changed

    def store(self) -> StoredExperience:
        """The agreement for the next manager."""
        return StoredExperience(self._agreed, self._whole, self._carriers, sorted(self._outdated))

    def restore(self, stored: StoredExperience) -> None:
        """Resume the agreement that another manager stored, if a process lives that carries it."""
        self._carriers = {boot: name for boot, name in stored.carriers.items() if self._alive(boot)}
        if stored.agreed is not None and self._carriers:
            self._agreed, self._whole = stored.agreed, stored.whole
            self._outdated = {boot for boot in stored.outdated if self._alive(boot)}
            self._figures = figure_names(stored.agreed.spaces.action)

    def _replace_schema(self, boot: str, name: str, wanted: Experience) -> bool:
        """Adopt the segment schema that a learner reads; False if it is agreed, or its spaces are outdated."""
        agreed = self.experience
        if agreed is None or _difference(wanted, agreed, schema=False) or not _difference(wanted, agreed, schema=True):
            return False
        self._outdated |= self._of("actor")
        spectators = self._of("evaluator")
        self._carriers = {one: other for one, other in self._carriers.items() if one in spectators} | {boot: name}
        self._agreed = wanted
        return True

    def _of(self, role: str) -> set[str]:
        """Boots of a role that carry the agreement."""
        return {boot for boot, name in self._carriers.items() if name.partition("/")[0] == role}


def _difference(one: Experience, other: Experience, *, schema: bool) -> str:
    """Difference in words, that of `one` first; "" without any."""
    if one.spaces != other.spaces:
        return f"spaces {short_json(one.spaces)} instead of {short_json(other.spaces)}"
    if one.frame_skip != other.frame_skip:
        return f"{one.frame_skip} frames a step instead of {other.frame_skip}"
    return schema_difference(one.schema, other.schema) if schema else ""
