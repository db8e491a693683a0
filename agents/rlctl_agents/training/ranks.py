"""Rank of a learner in a group that steps together: assigned by the manager, kept until the group breaks up."""

from __future__ import annotations

import logging
import time

import torch

from rlctl_agents.runtime.manager_session import ManagerSession
from rlctl_agents.runtime.process import GROUP, RANK, SEEDED, STARVED, WORLD, Process
from rlctl_agents.training.collective import MEET_S, Collective, GroupBroken, VoteSums
from rlctl_agents.training.group_store import GroupStore
from rlctl_agents.training.trainer import Trainer
from rlctl_agents.types.control import Enlist, GroupPlace, Note, StoreReply
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient

ASK_S = 2.0
"""Timeout of one request for a place, in seconds."""
ASK_AGAIN_S = 0.25
PATIENCE_S = 1.0
MOST_PATIENCE_S = 10.0
"""Bounds of the wait for a learner without a batch, in seconds: it is the time between the group's last two updates."""
MAX_FAILED_GROUPS = 5
"""Consecutive groups that failed to form, or broke in their first update, after which the learner gives up: so many
point to a defect of the algorithm, the machines or the network between them, not to dead members."""

log = logging.getLogger(__name__)


class Ranks:
    """Rank of this learner in its group; rank 0 of 1 without a group when it learns alone.

    Args:
        one_machine: True if all learners are on this machine.
    """

    def __init__(
        self,
        process: Process,
        member: ManagerSession,
        trainer: Trainer,
        device: torch.device,
        *,
        one_machine: bool = True,
    ) -> None:
        self._process, self._member, self._trainer, self._device = process, member, trainer, device
        self._one_machine = one_machine
        self._collective: Collective | None = None
        self._line: RpcClient | None = None  # to the manager, for the store of the group
        self._number = -1  # of the newest group; 0: none, it learned alone; -1: neither
        self._learned = False
        self._vain = 0
        self._late_since: float | None = None
        self._updated: float | None = None
        self._patience_s = PATIENCE_S
        self.rank, self.world = 0, 1
        self.seeded = False
        """True if this learner has ever restored the state of another one."""
        self.placed = member.lease.learners <= 1
        """True if it has a place, alone or in a group, and may learn."""
        if self.placed:
            self._number, self._learned = 0, True
        self.gauges: dict[str, float] = {}
        """Gauges for reports; replaced as a whole."""
        self._tell()

    @property
    def leads(self) -> bool:
        """True if this learner publishes and saves for all."""
        return self.placed and self.rank == 0

    @property
    def saves(self) -> bool:
        """True if this learner's final weights may be saved by no other: it leads, has no place any more, or its group
        has not made an update yet, so that the leader may not have begun."""
        return self.rank == 0 or not self.placed or self._updated is None

    def share(self, total: int) -> int:
        """This learner's share of `total` columns; the shares of all learners add up to it exactly."""
        each, rest = divmod(total, self.world)
        return each + (self.rank < rest)

    @property
    def called(self) -> bool:
        """True if a newer group is being formed: this one is over."""
        return self._member.group > self._number

    def find_place(self) -> bool:
        """Ask for a place, once; True when there is one, and the weights are those of the group."""
        place = self._ask()
        if place is None or place.number == 0:
            self._process.stop.wait(ASK_AGAIN_S)
            return False
        self._number = place.number
        try:
            self._take(place)
        except GroupBroken as error:
            self.broken(error, forming=True)
            return False
        return True

    def agree(self, *, ready: bool, held: bool) -> VoteSums:
        """Vote, and sum up the votes of all learners of the group.

        Raises:
            GroupBroken: another learner is gone, or a newer group is being formed.
        """
        if self.called:
            raise GroupBroken("a newer group is being formed")
        if self._collective is None:
            return VoteSums(int(ready), int(held), 0, 1)
        starved = self._starved(ready)
        agreed = self._collective.agree(ready=ready, held=held, starved=starved)
        if ready:
            self._late_since = None
        elif self._late_since is None and agreed.held == 0 < agreed.ready:
            self._late_since = time.monotonic()
        self._process.metrics.set(STARVED, float(starved))
        return agreed

    def made_update(self) -> None:
        """Note an update of the group; the time since the last one becomes the wait for late learners, bounded."""
        now = time.monotonic()
        if self._updated is not None:
            self._patience_s = min(max(now - self._updated, PATIENCE_S), MOST_PATIENCE_S)
        self._updated, self._vain = now, 0

    def broken(self, error: GroupBroken, *, forming: bool = False, updating: bool = False) -> None:
        """Leave a group that is over; a place in the next one must be requested.

        Args:
            forming: True if it broke before it could begin; not counted if a newer group is being formed.
            updating: True if it broke in an update.

        Raises:
            GroupBroken: `MAX_FAILED_GROUPS` groups in a row did so, and none has made an update.
        """
        called = self.called
        log.log(
            logging.INFO if called else logging.WARNING,
            "group %d is over, asking for another: %s", self._number, error,
        )  # fmt: skip
        self.leave()
        self._vain += updating or (forming and not called)
        if self._vain >= MAX_FAILED_GROUPS:
            raise GroupBroken(
                f"{MAX_FAILED_GROUPS} groups of learners in a row were over before an update was made: {error}"
            ) from error

    def leave(self) -> None:
        """Give the place up."""
        self.close()
        self.placed = False
        self._late_since = self._updated = None
        self._tell()

    def close(self) -> None:
        """Close the connections of the group; the others notice at once. Reports keep its number and rank."""
        if self._collective is not None:
            self._collective.close()
            self._collective = None
        if self._line is not None:
            self._line.close()
            self._line = None

    def _ask(self) -> GroupPlace | None:
        ask = Enlist(self._process.boot, self._number, self._learned, self._trainer.ref)
        try:
            return self._member.call(ask, GroupPlace, deadline_s=ASK_S)
        except (TimeoutError, RemoteError) as error:
            log.info("no place in a group yet: %s", error)
            return None

    def _take(self, place: GroupPlace) -> None:
        seeded = place.rank != place.seed
        if place.world > 1:
            assert place.ref is not None
            self._collective = Collective(place, self._store(place), self._device, one_machine=self._one_machine)
            data = None if seeded else self._trainer.capture().pack()
            data = self._collective.broadcast(data, place.seed)
            if seeded:
                self._trainer.take_over(data)
            self._trainer.lineage = place.ref.lineage
        self.seeded = self.seeded or seeded
        self._learned = True
        self._trainer.join(self._collective)
        self.rank, self.world, self.placed = place.rank, place.world, True
        if seeded:
            self._process.metrics.set(SEEDED, 1.0)
        self._tell()
        log.info(
            "rank %d of %d in group %d", place.rank, place.world, place.number,
            extra={"kv": {"model": str(self._trainer.ref), "seed": place.seed}},
        )  # fmt: skip

    def _store(self, place: GroupPlace) -> GroupStore:
        line = self._line = self._member.line()

        def call(note: Note) -> StoreReply:
            return line.call(note, StoreReply, deadline_s=ASK_S)[0]

        def over() -> bool:
            return self.called or self._process.stop.is_set()

        return GroupStore(call, self._process.boot, place.number, wait_s=MEET_S, over=over)

    def _starved(self, ready: bool) -> bool:
        late = self._late_since
        return not ready and late is not None and time.monotonic() - late >= self._patience_s

    def _tell(self) -> None:
        """Set the gauges that the manager reads."""
        if self.placed:
            self.gauges = {GROUP: float(self._number), RANK: float(self.rank), WORLD: float(self.world)}
        else:
            self.gauges = {RANK: -1.0, WORLD: 0.0}
