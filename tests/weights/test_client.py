"""Following a policy: notices are hints, polls are the net below them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlctl_agents.models.weights import pack, unpack_into
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights.client import Follower, Model
from rlctl_agents.wire.rpc.client import RemoteError
from tests.support.chain import Store


class Asked(Store):
    """Counts questions; hears no notice unless told."""

    def __init__(self) -> None:
        super().__init__()
        self.questions = 0
        self.heard: ModelRef | None = None
        self.silent = self.refuses = False
        self.waits: list[float | None] = []

    def newer(self, policy: str, have: ModelRef | None, wait_s: float | None = None) -> Model | None:
        self.questions += 1
        self.waits.append(wait_s)
        if self.silent:
            raise TimeoutError
        if self.refuses:
            raise RemoteError("no")
        return super().newer(policy, have)

    def exact(self, policy: str, version: int) -> Model | None:
        self.questions += 1
        return super().exact(policy, version)

    def notice(self) -> ModelRef | None:
        heard, self.heard = self.heard, None
        return heard


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def weights(value: float) -> bytes:
    net = nn.Linear(1, 1)
    torch.nn.init.constant_(net.weight, value)
    return pack(net.state_dict())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Asked:
    store = Asked()
    store.put(ModelRef("main", 1, 0), weights(0.0))
    return store


def followed(store: Asked, clock: Clock, **options: int) -> tuple[Follower, nn.Linear]:
    net = nn.Linear(1, 1)
    follower = Follower(
        lambda model: unpack_into(net, model.data, sha256=model.sha256), "main", store, clock=clock, **options
    )  # type: ignore[arg-type]
    assert follower.wait_for_any(lambda: True, clock.sleep)
    assert not follower.refresh()  # the first poll, which finds nothing newer
    store.questions = 0
    return follower, net


def test_without_a_notice_the_pool_is_not_asked_before_the_poll_is_due(store: Asked, clock: Clock) -> None:
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 1, 1), weights(1.0))
    clock.now += 4.9
    assert not follower.refresh()
    assert store.questions == 0
    clock.now += 5.2
    assert follower.refresh()
    assert net.weight.item() == 1.0
    assert follower.ref == ModelRef("main", 1, 1)


def test_a_notice_of_something_newer_leads_to_a_pull_at_once(store: Asked, clock: Clock) -> None:
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 1, 7), weights(7.0))
    store.heard = ModelRef("main", 1, 7)
    assert follower.refresh()
    assert net.weight.item() == 7.0


def test_a_notice_of_what_we_have_leads_to_no_pull(store: Asked, clock: Clock) -> None:
    follower, _ = followed(store, clock)
    store.heard = ModelRef("main", 1, 0)
    assert not follower.refresh()
    assert store.questions == 0


def test_a_lower_version_of_a_later_lineage_is_newer(store: Asked, clock: Clock) -> None:
    store.put(ModelRef("main", 1, 9), weights(9.0))
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 2, 5), weights(5.0))
    store.heard = ModelRef("main", 2, 5)
    assert follower.refresh()
    assert net.weight.item() == 5.0


def test_a_slow_pool_leaves_the_old_weights_and_is_waited_for_once_and_looked_at_from_then_on(
    store: Asked, clock: Clock
) -> None:
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 1, 1), weights(1.0))
    store.heard, store.silent, store.waits = ModelRef("main", 1, 1), True, []
    assert not follower.refresh()
    assert not follower.refresh()
    assert net.weight.item() == 0.0
    store.silent = False
    assert follower.refresh()
    assert store.waits == [None, 0.0, 0.0]
    clock.now += 100
    assert not follower.refresh()
    assert store.waits[3:] == [None], "the next question is another one"


def test_a_pool_that_refuses_is_left_in_peace_for_a_while(store: Asked, clock: Clock) -> None:
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 1, 1), weights(1.0))
    store.heard, store.refuses = ModelRef("main", 1, 1), True
    assert not follower.refresh()
    store.heard = ModelRef("main", 1, 1)
    assert not follower.refresh()
    assert store.questions == 1, "whatever is announced meanwhile"
    store.refuses = False
    clock.now += 1.0
    assert follower.refresh()
    assert net.weight.item() == 1.0


def test_a_pinned_model_is_loaded_once_and_never_left(store: Asked, clock: Clock) -> None:
    store.put(ModelRef("main", 1, 1), weights(1.0))
    follower, net = followed(store, clock, pinned=0)
    store.put(ModelRef("main", 1, 2), weights(2.0))
    store.heard = ModelRef("main", 1, 2)
    clock.now += 100
    assert not follower.refresh()
    assert net.weight.item() == 0.0


def test_an_exact_version_is_waited_for(store: Asked, clock: Clock) -> None:
    follower, net = followed(store, clock)
    slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        clock.now += seconds
        if slept > 0.1 and store.newest == ModelRef("main", 1, 0):
            store.put(ModelRef("main", 1, 1), weights(1.0))
            store.put(ModelRef("main", 1, 2), weights(2.0))
            store.heard = ModelRef("main", 1, 2)

    assert follower.wait_for(1, lambda: True, sleep)
    assert net.weight.item() == 1.0
    assert slept < 0.15


def test_waiting_for_an_exact_version_ends_when_told_to(store: Asked, clock: Clock) -> None:
    follower, _ = followed(store, clock)
    assert not follower.wait_for(1, lambda: clock.now < 3, clock.sleep)


def test_waiting_for_an_exact_version_ends_with_the_newest_weights_of_a_new_lineage(store: Asked, clock: Clock) -> None:
    follower, net = followed(store, clock)
    store.put(ModelRef("main", 2, 0), weights(5.0))
    assert not follower.wait_for(3, lambda: True, clock.sleep)
    assert follower.ref == ModelRef("main", 2, 0)
    assert net.weight.item() == 5.0
