"""Groups of learners of a policy that step together; formed anew when one dies."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.types.control import Enlist, GroupPlace, Note, StoreReply

FIRST_S = 30.0
"""Seconds for which the first learners of a run wait for the others in the spec."""
AGAIN_S = 3.0
"""Seconds for which survivors wait for each other; a later one makes another group necessary."""
ASKS_S = 3.0
"""Seconds of silence after which a learner that asks for a place has died; it asks several times a second."""
NOTES = 4096
"""Keys that a group may leave here, at most, of 64 KiB at most each. gloo needs one per member."""


class _Asker(NamedTuple):
    ask: Enlist
    at: int  # index of its lease
    first: float
    newest: float

    @property
    def age(self) -> tuple[bool, int, int]:
        """Sort key; larger is newer. Weights learned in a group are newer than those a fresh process read from a
        generation; the lineage of a fresh one tells only when it came."""
        learned, ref = self.ask.learned, self.ask.ref
        return learned, ref.lineage if learned else 0, ref.version


class Groups:
    """Places of the learners of one policy. Groups are numbered; only the newest counts.

    A group is over as soon as one of its members asks for a place again, or a learner without a place asks: then all
    are told to leave it, and the next one is formed of all that ask. Ranks follow the indexes of the leases. The newest
    weights seed the new group; nothing is read from the volume as long as one learner lives.

    Learned weights are never dropped for newcomers: a group without a survivor is formed only if no other learner has
    weights of a group, however late it asks. A manager that has just started knows from reports which ones do.

    Args:
        clock: monotonic seconds.
        tell: called for each group that is formed, with kind of event, text and facts.
    """

    def __init__(self, clock: Callable[[], float], tell: Callable[..., None]) -> None:
        self._clock, self._tell = clock, tell
        self._asked: dict[str, _Asker] = {}
        self._placed: dict[str, GroupPlace] = {}  # of the newest group that this manager has formed
        self._learned: set[str] = set()  # boots that have, or had, weights of a group
        self._number = 0
        self._notes: dict[str, bytes] = {}  # of the newest group

    @property
    def wanted(self) -> int:
        """Number of the group that is being formed, for which older ones are left; 0: none."""
        now = self._clock()
        return self._number + 1 if any(now - one.newest < ASKS_S for one in self._asked.values()) else 0

    def hear(self, boot: str, number: int | None) -> None:
        """Note the group in which a learner steps, from its report; None: none."""
        if number is not None:
            self._number = max(self._number, number)
            self._learned.add(boot)

    def enlist(self, ask: Enlist, live: Sequence[Holder], expected: int) -> GroupPlace:
        """Give a place to a learner that asks for one.

        Args:
            live: learners of the policy with a lease, this one included.
            expected: number of learners in the spec.

        Returns:
            Its place; one of number 0 while there is none.
        """
        placed = self._placed.get(ask.boot)
        if placed is not None and ask.left < placed.number:
            return placed  # as before: the reply was lost
        now, indexes = self._clock(), {one.boot: one.index for one in live if not one.leaving}
        if ask.boot not in indexes:
            return GroupPlace(0)
        self._number = max(self._number, ask.left)
        if ask.learned:
            self._learned.add(ask.boot)
        self._learned &= indexes.keys()
        first = self._asked[ask.boot].first if ask.boot in self._asked else now
        self._asked[ask.boot] = _Asker(ask, indexes[ask.boot], first, now)
        self._asked = {boot: one for boot, one in self._asked.items() if boot in indexes and now - one.newest < ASKS_S}
        if not self._complete(indexes, expected):
            return GroupPlace(0)
        self._form()
        return self._placed[ask.boot]

    def note(self, note: Note) -> StoreReply:
        """Set, add to, read, count or delete notes of the newest group, a key-value store of its members.

        Raises:
            ValueError: the boot is no member, the number of keys is not 1, or there are too many notes.
        """
        place = self._placed.get(note.boot)
        if place is None or place.number != note.group:
            raise ValueError(f"{note.boot} has no place in group {note.group}, or that is not the newest")
        notes = self._notes
        if note.action == "get":
            return StoreReply([notes.get(key) for key in note.keys])
        if note.action == "count":
            return StoreReply(count=len(notes))
        if len(note.keys) != 1:
            raise ValueError(f"{note.action} takes one key, got {len(note.keys)}")
        key = note.keys[0]
        if note.action == "delete":
            return StoreReply(count=notes.pop(key, None) is not None)
        if key not in notes and len(notes) >= NOTES:
            raise ValueError(f"group {note.group} has left {NOTES} notes, no more are kept")
        if note.action == "set":
            notes[key] = note.value
            return StoreReply()
        total = int(notes.get(key, b"0")) + note.amount
        notes[key] = b"%d" % total
        return StoreReply(count=total)

    def _complete(self, indexes: Mapping[str, int], expected: int) -> bool:
        missing = indexes.keys() - self._asked.keys()
        if not missing and len(self._asked) >= expected:
            return True
        left = max(one.ask.left for one in self._asked.values())
        over = self._number <= left  # a member of the newest group asks: the others ask too, or are dead or late
        survivor = over and any(one.ask.learned for one in self._asked.values())
        if not survivor and missing & self._learned:
            return False  # they have been told to leave; a silent one loses its lease
        waited_s = self._clock() - min(one.first for one in self._asked.values())
        return waited_s >= (AGAIN_S if survivor or (over and not missing) else FIRST_S)

    def _form(self) -> None:
        members = sorted(self._asked.values(), key=lambda one: one.at)
        seed = max(range(len(members)), key=lambda rank: (members[rank].age, -rank))
        ref = members[seed].ask.ref
        if not members[seed].ask.learned:  # one of their lineages, and modelpools may know the newest
            ref = replace(ref, lineage=max(one.ask.ref.lineage for one in members))
        self._number += 1
        key = secrets.token_hex(32)
        self._placed = {
            one.ask.boot: GroupPlace(self._number, rank, len(members), seed, ref, key)
            for rank, one in enumerate(members)
        }
        self._asked = {}
        self._notes = {}
        number, world, version = self._number, len(members), ref.version
        self._tell("group", f"group {number} of {world} learners, from version {version}", number=number, world=world)
