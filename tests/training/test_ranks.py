"""A learner's place among others, as the manager gives it; groups of processes are in test_together.py."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.training.collective import GroupBroken
from rlctl_agents.training.device import choose_device
from rlctl_agents.training.ranks import MAX_FAILED_GROUPS, Ranks
from rlctl_agents.types.control import GroupPlace
from rlctl_agents.wire.rpc.client import RemoteError
from tests.manager.world import boot, ref, spec


class Line:
    """To a manager that keeps no notes: no group can meet."""

    def call(self, *_: object, deadline_s: float) -> Any:
        raise RemoteError("nowhere")

    def close(self) -> None:
        pass


class Member:
    """Is given a place in one group after another."""

    def __init__(self, *, called: bool) -> None:
        self.lease = SimpleNamespace(learners=2)
        self.group, self._number, self._called = 0, 0, called

    def call(self, ask: object, kind: object, *, deadline_s: float) -> GroupPlace:
        self._number += 1
        self.group = self._number + self._called
        return GroupPlace(self._number, 0, 2, 0, ref(0))

    def line(self) -> Line:
        return Line()


def ranks_of(member: Member) -> Ranks:
    process = SimpleNamespace(boot=boot(1), metrics=Metrics(), stop=threading.Event())
    return Ranks(cast(Any, process), cast(Any, member), cast(Any, SimpleNamespace(ref=ref(0))), torch.device("cpu"))


def test_groups_that_cannot_be_formed_end_the_process_with_the_cause() -> None:
    ranks = ranks_of(Member(called=False))
    for _ in range(MAX_FAILED_GROUPS - 1):
        assert not ranks.find_place()
    with pytest.raises(GroupBroken, match=rf"^{MAX_FAILED_GROUPS} groups of learners in a row .*nowhere"):
        ranks.find_place()


def test_a_group_that_is_left_for_a_newer_one_while_it_forms_is_not_held_against_it() -> None:
    ranks = ranks_of(Member(called=True))
    assert [ranks.find_place() for _ in range(2 * MAX_FAILED_GROUPS)] == [False] * 2 * MAX_FAILED_GROUPS


def test_failures_to_form_and_in_an_update_count_together_until_an_update_is_made() -> None:
    ranks = ranks_of(Member(called=False))
    for _ in range(MAX_FAILED_GROUPS - 1):
        ranks.broken(GroupBroken("reset by peer"), updating=True)
    ranks.made_update()
    for _ in range(MAX_FAILED_GROUPS - 1):
        ranks.broken(GroupBroken("reset by peer"), updating=True)
    ranks.broken(GroupBroken("no segments, and a peer died"))
    with pytest.raises(GroupBroken, match="nowhere"):
        ranks.find_place()


def test_at_the_end_one_saves_unless_another_surely_does() -> None:
    ranks = ranks_of(Member(called=False))
    ranks.rank, ranks.world, ranks.placed = 1, 2, True
    assert ranks.saves, "who leads may not have begun"
    ranks.made_update()
    assert not ranks.saves
    ranks.broken(GroupBroken("reset by peer"))
    assert ranks.saves, "who led may be dead"


@pytest.mark.parametrize(("index", "learners"), [(0, 2), (1, 2), (1, 1)])
def test_learners_that_would_share_a_gpu_of_one_machine_are_the_users_fault(
    index: int, learners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    asked = spec(roles={"learner": {"replicas": learners, "gpu": 1}, "actor": {"replicas": 2}})
    with pytest.raises(UserFault, match="2 learners with a GPU each, but torch sees 1 on this machine"):
        choose_device(asked, index, learners)
