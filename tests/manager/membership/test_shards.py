"""Shards of the replay in changing numbers: which sender goes to which, and what a shard is told of the others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlctl_agents.runtime.addresses import STAYS_S, Addresses
from rlctl_agents.runtime.gauges import STOPPING
from tests.manager.world import ACTOR, LEARNER, PATTERN, Run, Time, everybody, spec, status

ACTORS = 120


class Shards:
    """The actors of a run with so many shards that live, and so many that are wanted."""

    def __init__(self, count: int) -> None:
        self.wanted, self.time = count, Time()
        self.addresses = Addresses(PATTERN, self.time)
        self.live(*range(count))

    def live(self, *indexes: int) -> None:
        self.addresses.alive([("replay", index) for index in indexes])

    def homes(self) -> list[int]:
        """The shard of each actor."""
        return [one for actor in range(ACTORS) for one in self.of("actor", actor)]

    def of(self, role: str, index: int) -> list[int]:
        return [
            int(name.removeprefix("replay/"))
            for name in self.addresses.peers(role, index, self.wanted)
            if name.startswith("replay/")
        ]


@pytest.fixture
def shards() -> Shards:
    return Shards(2)


def test_each_actor_sends_to_one_shard_and_all_of_them_to_equally_many(shards: Shards) -> None:
    assert len(shards.homes()) == ACTORS
    assert Counter(shards.homes()) == {0: ACTORS / 2, 1: ACTORS / 2}
    assert shards.of("learner", 0) == [0, 1]
    assert shards.of("evaluator", 0) == []


def test_a_shard_that_is_added_takes_its_share_of_the_actors(shards: Shards) -> None:
    shards.wanted = 3
    assert set(shards.homes()) == {0, 1}, "it does not live yet"
    shards.live(0, 1, 2)
    assert Counter(shards.homes()) == dict.fromkeys(range(3), ACTORS / 3)
    assert shards.of("learner", 0) == [0, 1, 2]


def test_a_shard_takes_its_share_before_the_manager_has_heard_of_another_number(shards: Shards) -> None:
    shards.live(0, 1, 2, 3)
    assert shards.wanted == 2
    assert Counter(shards.homes()) == dict.fromkeys(range(4), ACTORS / 4)


def test_a_shard_that_is_gone_moves_its_own_actors_alone_and_gets_them_back() -> None:
    shards = Shards(4)
    before = shards.homes()
    shards.live(0, 1, 3)
    after = shards.homes()
    assert {old for old, new in zip(before, after, strict=True) if old != new} == {2}
    assert Counter(after) == dict.fromkeys((0, 1, 3), ACTORS / 3), "they are shared out over the others"
    shards.live(0, 1, 2, 3)
    assert shards.homes() == before


def test_shards_that_are_removed_keep_their_actors_until_they_are_gone() -> None:
    shards = Shards(3)
    before = shards.homes()
    shards.wanted = 1
    assert shards.homes() == before
    shards.live(0, 1)
    assert Counter(shards.homes()) == dict.fromkeys(range(2), ACTORS / 2)
    shards.live(0)
    assert set(shards.homes()) == {0}
    assert shards.of("learner", 0) == [0]


def test_where_no_shard_lives_actors_wait_for_their_own_and_learners_ask_none_after_a_while(shards: Shards) -> None:
    before = shards.homes()
    shards.live()
    assert shards.of("learner", 0) == [0, 1]
    shards.time.now += STAYS_S
    shards.live()
    assert shards.homes() == before
    assert shards.of("learner", 0) == []


SPEC: dict[str, Any] = {
    "algorithm": {"name": "dqn"}, "replay": {"capacity": 1000}, "roles": {"replay": {"replicas": 2}},
}  # fmt: skip


def scaled(run: Run, shards: int) -> None:
    """The manager hears of another number."""
    run.manager.reload(spec(**{**SPEC, "roles": {"replay": {"replicas": shards}}}))


def test_a_lease_says_over_how_many_shards_the_capacity_is_shared_out_now(tmp_path: Path) -> None:
    run = Run(tmp_path, **SPEC)
    assert [run.join("replay", 51 + index, index).shards for index in range(2)] == [2, 2]
    everybody(run)
    assert run.join("actor", ACTOR).peers.keys() == {"replay/0", "modelpool/0"}
    scaled(run, 3)
    third = run.join("replay", 53, 2)
    run.manager.turn()
    assert (third.index, third.shards) == (2, 3)
    assert run.join("learner", LEARNER).peers.keys() == {"replay/0", "replay/1", "replay/2", "modelpool/0"}
    assert status(run)["replay"]["shards"]["wanted"] == 3
    scaled(run, 1)
    assert run.join("replay", 51, 0).shards == 1


def test_a_shard_that_says_that_it_ends_is_named_to_nobody_any_more(tmp_path: Path) -> None:
    run = Run(tmp_path, **SPEC)
    for index in range(2):
        run.join("replay", 51 + index, index)
    everybody(run)
    run.report("replay", 52, gauges={STOPPING: 1.0})
    run.manager.turn()
    for role, number in (("learner", LEARNER), ("actor", ACTOR)):
        assert run.report(role, number).peers.keys() == {"replay/0", "modelpool/0"}


def test_a_manager_that_is_started_again_gives_out_the_number_that_it_finds(tmp_path: Path) -> None:
    run = Run(tmp_path, **SPEC)
    run.join("replay", 51, 0)
    run.settings = spec(**{**SPEC, "roles": {"replay": {"replicas": 5}}})  # as live.json has it by then
    run.start()
    assert run.join("replay", 51, 0).shards == 5
