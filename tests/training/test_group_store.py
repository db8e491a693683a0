"""torch's store over the manager's RPC; whole groups that meet by it are in test_together.py."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from rlctl_agents.manager.membership.learner_groups import Groups
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.training.collective import proof
from rlctl_agents.training.group_store import GroupStore
from rlctl_agents.types.control import Enlist, GroupPlace, Note, StoreReply
from rlctl_agents.wire.rpc.client import RemoteError
from tests.manager.world import Time, boot, ref


class Group:
    """Two members of group 1, and time that passes while they wait."""

    def __init__(self) -> None:
        self.time, self.asked, self.gone = Time(), 0, False
        self.groups = Groups(self.time, lambda *_, **__: None)
        live = [Holder("learner", number, boot(number), 0.0, 0.0) for number in (0, 1)]
        for number in (0, 1):
            self.groups.enlist(Enlist(boot(number), -1, False, ref(0)), live, 2)
        self.meanwhile: Callable[[], None] = lambda: None

    def call(self, note: Note) -> StoreReply:
        self.asked += 1
        if self.gone:
            raise TimeoutError("ipc:///m: no answer to Note in time")
        try:
            return self.groups.note(note)
        except ValueError as error:
            raise RemoteError(str(error)) from error

    def sleep(self, seconds: float) -> None:
        self.time.now += seconds
        self.meanwhile()

    def store(self, number: int, group: int = 1, over: Callable[[], bool] = lambda: False) -> GroupStore:
        return GroupStore(
            self.call, boot(number), group, wait_s=20.0, over=over, sleep=self.sleep, clock=self.time
        )  # fmt: skip


def test_torch_finds_in_it_what_another_member_wrote() -> None:
    group = Group()
    stores = [group.store(number) for number in (0, 1)]
    one, other = (PrefixStore("group1", store) for store in stores)
    one.set("0", b"\x00\xff")
    assert other.get("0") == b"\x00\xff"
    assert [one.add("n", 2), other.add("n", 3)] == [2, 5]
    assert other.get("n") == b"5"
    assert (other.check(["0"]), other.check(["0", "1"])) == (True, False)
    assert one.num_keys() == 2
    assert (one.delete_key("0"), one.delete_key("0")) == (True, False)


def test_what_another_member_has_not_written_is_waited_for() -> None:
    group = Group()
    one, other = group.store(0), group.store(1)
    group.meanwhile = lambda: other.set("a", "late") if group.time.now > 1005.0 else None
    one.wait(["a"], timedelta(seconds=30))
    assert one.get("a") == b"late"
    assert 1005.0 < group.time.now < 1006.0
    assert group.asked < 60, "more and more rarely"


def test_waiting_ends_with_its_time_with_the_group_and_with_the_manager() -> None:
    group = Group()
    with pytest.raises(RuntimeError, match="no member has written b within 20 s"):
        group.store(0).wait(["b"], timedelta(seconds=300))
    with pytest.raises(RuntimeError, match="within 2 s"):
        group.store(0).wait(["b"], timedelta(seconds=2))
    began = group.time.now
    with pytest.raises(RuntimeError, match="not waited for any more"):
        group.store(0, over=lambda: True).get("b")
    assert group.time.now == began
    with pytest.raises(RuntimeError, match="has no place in group 2"):
        group.store(0, 2).set("a", "x")
    group.gone = True
    with pytest.raises(RuntimeError, match="no answer"):
        group.store(0).get("b")


def test_a_watchdog_that_looks_into_it_never_fails() -> None:
    group = Group()
    group.gone = True
    assert group.store(0).check(["a"]) is False
    group.gone = False
    assert group.store(0, 7).check(["a"]) is False


def test_a_proof_is_of_one_rank_to_one_other_in_one_group() -> None:
    place = GroupPlace(3, 0, 3, 0, None, "ab" * 32)
    proofs = {proof(place, sender, to) for sender in range(3) for to in range(3)}
    proofs |= {
        proof(GroupPlace(4, 0, 3, 0, None, "ab" * 32), 0, 1),
        proof(GroupPlace(3, 0, 3, 0, None, "cd" * 32), 0, 1),
    }
    assert len(proofs) == 11
    assert {len(one) for one in proofs} == {32}
