"""Leases: indexes of replicas, granted by hello, kept by reports, lost by silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from rlctl_agents.manager.timing import expires_s

LEAVING_S = 3.0
"""Seconds of silence after which a process that reported its end has ended."""
BURIED_AFTER_S = 120.0
"""Seconds of silence after which a boot without a lease never comes back; its books can be closed."""
MAX_BURIED = 100_000
"""Buried boots that are remembered: more than any receiver has accounts of, so no rows are counted twice."""


class Holder(msgspec.Struct):
    """Holder of a lease: a process and the replica that it is. Times are monotonic seconds of the manager's clock."""

    role: str
    index: int
    boot: str
    since: float
    heard: float
    leaving: bool = False


class LeaseGrant(NamedTuple):
    """Lease granted in reply to a hello."""

    holder: Holder
    new: bool  # this boot was not known, neither by a lease nor by others that named it
    replaced: Holder | None  # former holder of the index


class StoredLeases(msgspec.Struct):
    """Leases, as stored for the next manager: without times, because its clock starts anew."""

    holders: list[tuple[str, int, str]] = []  # role, index, boot
    buried: list[str] = []
    replaced: list[str] = []


class Leases:
    """Leases of every role, with indexes from 0.

    - The same boot gets the same index, as often as it asks.
    - `prefer` names an index whose former holder is surely gone: it loses the index. Without, the lowest free is given.
    - A process that is silent for too long (`expires_s`) loses its lease, and gets it back by hello if the index is
      still free.
    - A boot that was replaced or buried is refused: it may live on behind a broken network, but not as that replica.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._holders: dict[str, Holder] = {}  # by boot
        self._at: defaultdict[str, dict[int, Holder]] = defaultdict(dict)  # role -> index -> holder
        self._free: dict[str, int] = {}  # role -> index below which none is free
        self._gone: dict[str, Holder] = {}  # boot -> its lost lease; `heard`: when lost, or heard since
        self._replaced: set[str] = set()
        self._buried: dict[str, None] = {}

    def grant(self, role: str, boot: str, prefer: int | None) -> LeaseGrant:
        """Grant a lease in reply to a hello.

        Raises:
            ValueError: this boot may not come back, or had another role before.
        """
        if boot in self._buried or boot in self._replaced:
            raise ValueError(
                f"the {role} process {boot} was given up for lost and its place taken; start it anew under another boot"
            )
        now = self._clock()
        present = self._holders.get(boot)
        if present is not None:
            if present.role != role:
                raise ValueError(f"process {boot} is a {present.role}, it cannot be a {role} too")
            present.heard, present.leaving = now, False
            return LeaseGrant(present, new=False, replaced=None)
        former = self._gone.get(boot)
        if former is not None and former.role not in ("", role):
            raise ValueError(f"process {boot} was a {former.role}, it cannot be a {role}")
        if prefer is not None:
            index = prefer
        elif former is not None and former.index >= 0 and former.index not in self._at[role]:
            index = former.index
        else:
            index = self._lowest_free(role)
        replaced = self._at[role].get(index)
        if replaced is not None:
            self._replaced.add(replaced.boot)
            self._drop(replaced, now)
        self._gone.pop(boot, None)
        holder = Holder(role, index, boot, since=now, heard=now)
        self._holders[boot] = self._at[role][index] = holder
        return LeaseGrant(holder, new=former is None, replaced=replaced)

    def holder(self, boot: str, role: str = "") -> Holder | None:
        """Lease of a boot; None if it has none, or one of another role than the given one."""
        found = self._holders.get(boot)
        return found if found is not None and role in ("", found.role) else None

    def hear(self, boot: str, *, leaving: bool) -> Holder | None:
        """Note a report; returns its holder, or None if the process must say hello (again)."""
        holder = self._holders.get(boot)
        if holder is not None:
            holder.heard, holder.leaving = self._clock(), leaving
        elif boot in self._gone:
            self._gone[boot].heard = self._clock()
        return holder

    def excuse(self, seconds: float) -> None:
        """Do not count seconds in which the manager did not listen as silence of processes."""
        now = self._clock()
        for holder in (*self._holders.values(), *self._gone.values()):
            holder.heard = min(holder.heard + seconds, now)

    def refused(self, boot: str) -> bool:
        """True if `grant` would refuse a boot, so that its process should end."""
        return boot in self._replaced or boot in self._buried

    def expire(self) -> list[Holder]:
        """Expire the leases of silent processes; returns their holders. The timeout of actors grows with the number of
        processes."""
        now, silent_s = self._clock(), {role: expires_s(len(self), role) for role in self._at}
        ended = [
            holder
            for holder in self._holders.values()
            if now - holder.heard >= (LEAVING_S if holder.leaving else silent_s[holder.role])
        ]
        for holder in ended:
            self._drop(holder, now)
        return ended

    def to_bury(self) -> list[str]:
        """Boots without a lease that have been silent for BURIED_AFTER_S."""
        now = self._clock()
        return [boot for boot, holder in self._gone.items() if now - holder.heard >= BURIED_AFTER_S]

    def bury(self, boot: str) -> None:
        """Give up a boot for good."""
        self._gone.pop(boot, None)
        self._replaced.discard(boot)
        self._buried[boot] = None
        if len(self._buried) > MAX_BURIED:
            del self._buried[next(iter(self._buried))]

    def __len__(self) -> int:
        return len(self._holders)

    def live(self, role: str | None = None) -> list[Holder]:
        """Holders of leases, sorted by role and index."""
        roles = sorted(self._at) if role is None else [role]
        return [holder for one in roles if one in self._at for _, holder in sorted(self._at[one].items())]

    def alive(self, boot: str) -> bool:
        """True if a boot holds a lease."""
        return boot in self._holders

    def is_buried(self, boot: str) -> bool:
        return boot in self._buried

    def is_other(self, boot: str, role: str) -> bool:
        """True if a boot is known as a process of another role."""
        holder = self._holders.get(boot) or self._gone.get(boot)
        return holder is not None and holder.role not in ("", role)

    def known(self, boot: str) -> bool:
        """True if a boot has a lease, or had one."""
        return boot in self._holders or boot in self._gone

    def mention(self, boot: str) -> None:
        """Note a boot that others name and that was never heard itself: it counts as one that lost its lease."""
        if not self.known(boot) and boot not in self._buried:
            now = self._clock()
            self._gone[boot] = Holder("", -1, boot, since=now, heard=now)

    def name(self, boot: str) -> str:
        """Name of a boot, such as "actor/3"; the boot itself if its role is not known."""
        holder = self._holders.get(boot) or self._gone.get(boot)
        return f"{holder.role}/{holder.index}" if holder is not None and holder.role else boot

    def store(self) -> StoredLeases:
        """Leases for the next manager, without those of processes that are leaving."""
        stay = [(one.role, one.index, one.boot) for one in self.live() if not one.leaving]
        return StoredLeases(stay, list(self._buried), sorted(self._replaced))

    def restore(self, stored: StoredLeases, more: Iterable[str] = ()) -> None:
        """Resume the leases that another manager stored: all holders have time from now to report.

        Args:
            more: boots with open books; those without a lease count as gone.
        """
        now = self._clock()
        for role, index, boot in stored.holders:
            self._holders[boot] = self._at[role][index] = Holder(role, index, boot, since=now, heard=now)
        self._buried = dict.fromkeys(stored.buried)
        self._replaced = set(stored.replaced)
        for boot in (*stored.replaced, *more):
            self.mention(boot)

    def _lowest_free(self, role: str) -> int:
        index = self._free.get(role, 0)
        while index in self._at[role]:
            index += 1
        self._free[role] = index
        return index

    def _drop(self, holder: Holder, now: float) -> None:
        self._free[holder.role] = min(self._free.get(holder.role, 0), holder.index)
        del self._holders[holder.boot]
        del self._at[holder.role][holder.index]
        self._gone[holder.boot] = Holder(holder.role, holder.index, holder.boot, holder.since, now)
