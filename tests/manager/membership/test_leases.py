"""Leases: replica of each process, its peers, and what it says the environment looks like."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from rlctl_agents.manager.membership.experience_spec import ExperienceSpec, StoredExperience, require_ours
from rlctl_agents.manager.membership.leases import BURIED_AFTER_S, LEAVING_S, Holder, Leases, StoredLeases
from rlctl_agents.runtime.addresses import STAYS_S, Addresses
from rlctl_agents.types.control import Experience, Hello
from rlctl_agents.types.spaces import Box, Discrete, MultiDiscrete, Space, Spaces
from tests.manager.world import PATTERN, UID, Time, boot, experience


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def leases(time: Time) -> Leases:
    return Leases(time)


def test_without_preference_the_lowest_free_index_is_given(leases: Leases) -> None:
    assert [leases.grant("actor", boot(number), None).holder.index for number in range(3)] == [0, 1, 2]
    assert leases.grant("learner", boot(9), None).holder.index == 0


def test_the_same_boot_gets_the_same_lease_as_often_as_it_asks(leases: Leases) -> None:
    first = leases.grant("actor", boot(1), None)
    leases.grant("actor", boot(2), None)
    again = leases.grant("actor", boot(1), None)
    assert (first.new, again.new) == (True, False)
    assert again.holder.index == 0


def test_a_boot_cannot_be_two_roles(leases: Leases) -> None:
    leases.grant("actor", boot(1), None)
    with pytest.raises(ValueError, match="is a actor"):
        leases.grant("learner", boot(1), None)


def test_who_has_lost_its_lease_cannot_be_another_role_either(leases: Leases, time: Time) -> None:
    leases.grant("learner", boot(1), None)
    time.now += 20
    leases.expire()
    with pytest.raises(ValueError, match="was a learner, it cannot be a actor"):
        leases.grant("actor", boot(1), None)
    assert leases.grant("learner", boot(1), None).holder.index == 0


def test_who_prefers_an_index_takes_it_from_its_dead_predecessor(leases: Leases) -> None:
    leases.grant("actor", boot(1), 3)
    grant = leases.grant("actor", boot(2), 3)
    assert grant.replaced is not None
    assert grant.replaced.boot == boot(1)
    assert not leases.alive(boot(1))
    assert leases.refused(boot(1))
    with pytest.raises(ValueError, match="start it anew"):
        leases.grant("actor", boot(1), 3)


def test_who_is_silent_loses_its_lease_and_gets_it_back_while_it_is_free(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    leases.grant("actor", boot(2), None)
    time.now += 14.9
    assert leases.expire() == []
    leases.hear(boot(2), leaving=False)
    time.now += 0.1
    assert [holder.boot for holder in leases.expire()] == [boot(1)]
    assert leases.hear(boot(1), leaving=False) is None
    assert leases.known(boot(1))
    grant = leases.grant("actor", boot(1), None)
    assert (grant.holder.index, grant.new) == (0, False)


def test_the_index_of_the_silent_goes_to_the_next_who_comes(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    time.now += 20
    leases.expire()
    assert leases.grant("actor", boot(2), None).holder.index == 0
    assert leases.grant("actor", boot(1), None).holder.index == 1


def test_who_said_that_it_is_ending_is_gone_soon(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    leases.hear(boot(1), leaving=True)
    time.now += LEAVING_S
    assert [holder.boot for holder in leases.expire()] == [boot(1)]


def test_of_many_processes_only_actors_are_waited_for_longer(leases: Leases, time: Time) -> None:
    for number in range(3000):
        leases.grant("actor", boot(number), None)
    leases.grant("modelpool", boot(9000), None)
    time.now += 16
    assert [holder.role for holder in leases.expire()] == ["modelpool"]
    time.now += 15
    assert len(leases.expire()) == 3000


def test_the_buried_are_refused(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    time.now += 20
    leases.expire()
    time.now += BURIED_AFTER_S
    assert leases.to_bury() == [boot(1)]
    leases.bury(boot(1))
    assert leases.to_bury() == []
    assert leases.refused(boot(1))
    with pytest.raises(ValueError, match="given up"):
        leases.grant("actor", boot(1), None)


def test_silence_in_which_nobody_was_listened_to_ends_no_lease(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    time.now += 20
    leases.excuse(16)
    assert not leases.expire()
    time.now += 11
    assert [holder.boot for holder in leases.expire()] == [boot(1)]


def test_a_process_that_others_have_only_mentioned_gets_an_index_of_its_own(leases: Leases) -> None:
    leases.mention(boot(1))
    assert leases.grant("actor", boot(1), None).holder.index == 0


def test_who_was_replaced_is_refused_by_the_next_manager_too(leases: Leases, time: Time) -> None:
    leases.grant("learner", boot(1), 0)
    leases.grant("learner", boot(2), 0)
    again = Leases(time)
    again.restore(msgspec.json.decode(msgspec.json.encode(leases.store()), type=StoredLeases))
    with pytest.raises(ValueError, match="its place taken"):
        again.grant("learner", boot(1), 0)
    assert again.grant("learner", boot(2), 0).holder.index == 0
    time.now += BURIED_AFTER_S
    assert again.to_bury() == [boot(1)]


def test_leases_survive_the_manager_and_must_be_confirmed(leases: Leases, time: Time) -> None:
    leases.grant("actor", boot(1), None)
    leases.grant("actor", boot(2), None)
    stored = msgspec.json.decode(msgspec.json.encode(leases.store()), type=StoredLeases)
    again = Leases(time)
    again.restore(stored, [boot(7)])
    assert again.known(boot(7))
    assert not again.alive(boot(7))
    assert again.grant("actor", boot(2), None).holder.index == 1
    time.now += 14
    again.hear(boot(2), leaving=False)
    time.now += 1
    assert [holder.boot for holder in again.expire()] == [boot(1)]


def test_holders_of_a_role_are_found_without_a_look_at_those_of_others(leases: Leases) -> None:
    class Unseen(dict[str, Holder]):
        def values(self) -> Any:
            raise AssertionError("there may be ten thousand actors")

    for number in (3, 1, 2):
        leases.grant("learner", boot(number), number)
    leases.grant("actor", boot(9), 0)
    leases.grant("learner", boot(4), 2)  # the one before is gone
    leases._holders = Unseen(leases._holders)
    assert [(one.index, one.boot) for one in leases.live("learner")] == [(1, boot(1)), (2, boot(4)), (3, boot(3))]
    assert [one.role for one in leases.live()] == ["actor", "learner", "learner", "learner"]
    assert leases.live("evaluator") == []


def test_names_of_processes_are_those_that_a_user_types(leases: Leases) -> None:
    leases.grant("actor", boot(1), 3)
    assert leases.name(boot(1)) == "actor/3"
    assert leases.name(boot(2)) == boot(2)


def test_everybody_listens_where_the_pattern_says() -> None:
    addresses = Addresses(PATTERN, Time())
    assert addresses.bind("modelpool", 1) == {
        "rpc": "ipc:///tmp/s/modelpool-1.rpc", "notice": "ipc:///tmp/s/modelpool-1.notice",
    }  # fmt: skip
    assert addresses.bind("actor", 7) == {}
    assert addresses.one_machine


@pytest.mark.parametrize("pattern", ["ipc:///x", "ipc:///{role}-{index}", "{role}{index}{channel}{pod}", "{role{"])
def test_a_pattern_that_does_not_tell_processes_apart_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"must hold|only"):
        Addresses(pattern, Time())


def pool_of(addresses: Addresses, role: str, index: int) -> int:
    (name,) = (name for name in addresses.peers(role, index) if name.startswith("modelpool/"))
    return int(name.removeprefix("modelpool/"))


def pools(*indexes: int) -> list[tuple[str, int]]:
    return [("modelpool", index) for index in indexes]


def test_peers_are_replica_0_until_others_live(time: Time) -> None:
    addresses = Addresses(PATTERN, time)
    assert list(addresses.peers("actor", 5)) == ["learner/0", "modelpool/0"]
    assert list(addresses.peers("learner", 0)) == ["modelpool/0"]
    assert addresses.peers("modelpool", 0) == {}
    addresses.alive([("learner", 1), ("learner", 2), ("modelpool", 1), ("actor", 5)])
    assert list(addresses.peers("actor", 4)) == ["learner/1", "modelpool/1"]
    assert list(addresses.peers("actor", 5)) == ["learner/2", "modelpool/1"]
    time.now += STAYS_S
    addresses.alive([])
    assert list(addresses.peers("actor", 5)) == ["learner/0", "modelpool/0"]


def test_actors_are_shared_out_over_the_learners_and_each_is_told_of_its_own_alone() -> None:
    addresses = Addresses(PATTERN, Time())
    addresses.alive([("learner", index) for index in range(12)])
    told = [[name for name in addresses.peers("actor", index) if name.startswith("learner/")] for index in range(24)]
    assert told == [[f"learner/{index % 12}"] for index in range(24)]


def test_learners_and_evaluators_talk_to_the_first_modelpool_and_actors_are_shared_out_over_the_others() -> None:
    addresses = Addresses(PATTERN, Time())
    addresses.alive(pools(0, 1, 2, 3))
    assert {pool_of(addresses, role, index) for role in ("learner", "evaluator") for index in range(9)} == {0}
    assert [pool_of(addresses, "actor", index) for index in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_one_modelpool_serves_everybody() -> None:
    addresses = Addresses(PATTERN, Time())
    addresses.alive(pools(0))
    assert {pool_of(addresses, role, 4) for role in ("learner", "evaluator", "actor")} == {0}


def test_modelpools_form_a_tree_in_which_each_has_few_below_it() -> None:
    addresses = Addresses(PATTERN, Time())
    addresses.alive(pools(*range(64)))
    above = {index: pool_of(addresses, "modelpool", index) for index in range(1, 64)}
    assert Counter(above.values()) == {0: 8, 1: 8, 2: 8, 3: 8, 4: 8, 5: 8, 6: 8, 7: 7}
    assert all(above[index] < index for index in above)


def test_who_lost_its_modelpool_goes_to_another_and_nobody_else_moves(time: Time) -> None:
    addresses = Addresses(PATTERN, time)
    addresses.alive(pools(*range(8)))
    before = [pool_of(addresses, "actor", index) for index in range(100)]
    addresses.alive(pools(0, 1, 2, 4, 5, 6, 7))
    after = [pool_of(addresses, "actor", index) for index in range(100)]
    assert set(after) == {1, 2, 4, 5, 6, 7}
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new and old != 3] == []
    addresses.alive(pools(*range(8)))
    assert [pool_of(addresses, "actor", index) for index in range(100)] == before


def test_a_modelpool_whose_upper_one_is_lost_takes_its_weights_from_the_nearest_above_that_lives(time: Time) -> None:
    addresses = Addresses(PATTERN, time)
    addresses.alive(pools(*range(12)))
    assert pool_of(addresses, "modelpool", 9) == 1
    addresses.alive(pools(*(index for index in range(12) if index != 1)))
    assert pool_of(addresses, "modelpool", 9) == 0


def test_actors_leave_modelpools_alone_that_have_others_below_them() -> None:
    addresses = Addresses(PATTERN, Time())
    addresses.alive(pools(*range(64)))
    assert {pool_of(addresses, "actor", index) for index in range(1000)} == set(range(8, 64))


def test_a_silent_modelpool_is_named_while_no_other_lives(time: Time) -> None:
    addresses = Addresses(PATTERN, time)
    addresses.alive(pools(2))
    time.now += STAYS_S - 1
    addresses.alive([])
    assert pool_of(addresses, "actor", 0) == 2
    addresses.alive(pools(0))
    assert pool_of(addresses, "actor", 0) == 0


def hello(role: str, number: int, said: Experience | None = None) -> Hello:
    return Hello(role, boot(number), 0, UID, said)


def test_the_first_experience_counts_and_another_one_is_refused_with_both_named() -> None:
    agreement = ExperienceSpec({boot(1), boot(2)}.__contains__)
    assert agreement.hear(hello("actor", 1, experience()))
    assert not agreement.hear(hello("actor", 2, experience()))
    with pytest.raises(ValueError, match=r"actor/0 does not fit actor/0: spaces .*\[9\].* instead of .*\[4\]"):
        agreement.hear(hello("actor", 3, experience(width=9)))
    with pytest.raises(ValueError, match="segments of 10 steps instead of 20"):
        agreement.hear(hello("actor", 3, experience(steps=10)))
    assert agreement.experience == experience()


def test_the_experience_outlives_the_manager_as_long_as_one_process_lives_that_carries_it() -> None:
    living = {boot(1)}
    agreement = ExperienceSpec(living.__contains__)
    agreement.hear(hello("actor", 1, experience()))
    stored = msgspec.json.decode(msgspec.json.encode(agreement.store()), type=StoredExperience)
    after, anew = ExperienceSpec(living.__contains__), ExperienceSpec(lambda _: False)
    for one in (after, anew):
        one.restore(stored)
    with pytest.raises(ValueError, match=r"actor/0 does not fit actor/0: spaces .*\[9\].* instead of .*\[4\]"):
        after.hear(hello("actor", 2, experience(width=9)))
    with pytest.raises(ValueError, match="segments of 10 steps instead of 20"):
        after.hear(hello("actor", 2, experience(steps=10)))
    assert after.experience is None, "a learner waits for an actor of now"
    assert after.hear(hello("actor", 1, experience()))
    assert after.figures == agreement.figures
    assert anew.hear(hello("actor", 2, experience(width=9)))


@pytest.mark.parametrize("action", [Discrete(0), MultiDiscrete((2, 0)), Discrete(-1)])
def test_a_space_without_actions_is_refused_and_decides_nothing(action: Space) -> None:
    agreement = ExperienceSpec(lambda _: True)
    none = msgspec.structs.replace(experience(), spaces=Spaces(Box((4,), "float32"), action))
    with pytest.raises(ValueError, match="action must have at least one action"):
        agreement.hear(hello("actor", 1, none))
    assert agreement.hear(hello("actor", 2, experience()))


def test_an_evaluator_agrees_on_spaces_only_and_says_nothing_about_segments() -> None:
    agreement = ExperienceSpec(lambda _: True)
    assert not agreement.hear(hello("evaluator", 1, experience(steps=99)))
    assert (agreement.experience, agreement.seats) == (None, 1)
    with pytest.raises(ValueError, match="does not fit evaluator/0"):
        agreement.hear(hello("actor", 2, experience(seats=2)))
    assert agreement.hear(hello("actor", 2, experience(steps=10)))
    assert agreement.experience == experience(steps=10)
    assert not agreement.hear(hello("evaluator", 3, experience(steps=99)))
    assert agreement.experience == experience(steps=10)


def test_when_all_who_agreed_are_gone_the_next_ones_experience_counts() -> None:
    living = {boot(1)}
    agreement = ExperienceSpec(living.__contains__)
    agreement.hear(hello("actor", 1, experience(steps=20)))
    living.clear()
    assert agreement.hear(hello("actor", 2, experience(steps=10)))
    assert agreement.experience == experience(steps=10)


def test_an_evaluator_of_other_segments_keeps_no_actor_out_when_the_actors_of_before_are_gone() -> None:
    living = {boot(1), boot(2)}
    agreement = ExperienceSpec(living.__contains__)
    agreement.hear(hello("evaluator", 1, experience(steps=20)))
    agreement.hear(hello("actor", 2, experience(steps=20)))
    with pytest.raises(ValueError, match="does not fit actor/0: segments of 10 steps"):
        agreement.hear(hello("actor", 3, experience(steps=10)))
    living.remove(boot(2))
    with pytest.raises(ValueError, match="does not fit evaluator/0: spaces"):
        agreement.hear(hello("actor", 3, experience(steps=10, width=9)))
    assert agreement.hear(hello("actor", 3, experience(steps=10)))
    assert agreement.experience == experience(steps=10)


def test_a_learner_of_another_spec_replaces_the_segments_and_actors_of_the_former_one_are_outdated() -> None:
    living = {boot(number) for number in range(1, 6)}
    agreement = ExperienceSpec(living.__contains__)
    agreement.hear(hello("evaluator", 1, experience(steps=20)))
    agreement.hear(hello("actor", 2, experience(steps=20)))
    with pytest.raises(ValueError, match="does not fit actor/0"):
        agreement.hear(hello("actor", 3, experience(steps=10)))
    assert agreement.hear(hello("learner", 4, experience(steps=10)))
    assert not agreement.hear(hello("learner", 4, experience(steps=10)))
    assert [number for number in range(1, 6) if agreement.outdated(boot(number))] == [2]
    assert not agreement.hear(hello("actor", 3, experience(steps=10)))
    with pytest.raises(ValueError, match="actor/0 does not fit learner/0: segments of 20 steps instead of 10"):
        agreement.hear(hello("actor", 2, experience(steps=20)))

    assert agreement.hear(hello("learner", 5, experience(steps=20))), "rolled back half way"
    assert not agreement.hear(hello("actor", 2, experience(steps=20)))
    assert [number for number in range(1, 6) if agreement.outdated(boot(number))] == [3]
    agreement.bury(boot(3))
    assert not agreement.outdated(boot(3))
    assert not agreement.hear(hello("evaluator", 1, experience(steps=99)))
    assert agreement.experience == experience(steps=20)


def test_a_learner_that_was_told_of_other_spaces_replaces_nothing() -> None:
    agreement = ExperienceSpec(lambda _: True)
    assert not agreement.hear(hello("learner", 1, experience(steps=10)))
    agreement.hear(hello("actor", 2, experience(steps=20)))
    assert not agreement.hear(hello("learner", 1, experience(steps=10, width=9)))
    assert (agreement.experience, agreement.outdated(boot(2))) == (experience(steps=20), False)


def test_a_learner_says_nothing_about_the_environment() -> None:
    agreement = ExperienceSpec(lambda _: True)
    assert not agreement.hear(hello("learner", 1))
    assert agreement.seats == 0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Hello("actor", boot(1), 0, "cd" * 16), "not of cdcdcdcd"),
        (Hello("actor", boot(1), 0), "not of no run"),
        (Hello("manager", boot(1), 0, UID), "no role 'manager'"),
        (Hello("actor", "../etc", 0, UID), "is not what a process has"),
        (Hello("actor", boot(1), -1, UID), "is not what a process has"),
        (Hello("actor", boot(1), 10**6, UID), "is not what a process has"),
    ],
)
def test_a_process_of_another_run_or_none_is_refused(said: Hello, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_ours(said, "r", UID)
