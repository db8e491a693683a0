"""Stepping, waiting and counting of one actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlctl.spec.schema import Network
from rlctl_agents import envs
from rlctl_agents.acting.rollout import WAIT_S
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.experience import ModelRef
from tests.support.chain import Store, make_env, make_rollout, settings, weights_of

NETWORK = Network(hidden=[8])
CONFIG = settings()
FILM = "tests.envs.test_wrapping:Film"


class Taker:
    """A sender that takes what it is allowed to and keeps it."""

    least_version = 0

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.blocks: list[dict[str, Any]] = []
        self.polls: list[float] = []

    def reserve(self, rows: int) -> bool:
        return self.room > 0

    def offer(self, **block: Any) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        self.blocks.append(block)
        return True

    def poll(self, timeout_s: float) -> None:
        self.polls.append(timeout_s)


def store_with(env: Any, *refs: ModelRef) -> Store:
    store = Store()
    for number, ref in enumerate(refs):
        store.put(ref, weights_of(CONFIG, NETWORK, env.spaces, seed=number))
    return store


FIRST = ModelRef("main", 1, 0)


def steps(rollout: Any, count: int) -> None:
    for _ in range(count):
        rollout.step()


def streams(block: dict[str, Any]) -> Sequence[int]:
    return list(block["stream"])


def test_streams_are_numbered_by_lease_and_slot_and_rows_follow_each_other() -> None:
    env, taker = make_env("Clock", 3), Taker()
    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, index=7)
    steps(rollout, 11)
    assert [streams(block) for block in taker.blocks] == [[7_000_000, 7_000_001, 7_000_002]] * 2
    assert [block["row0"] for block in taker.blocks] == [[0, 0, 0], [5, 5, 5]]
    assert taker.blocks[0]["model"] == FIRST


def test_weights_change_between_segments_and_every_row_knows_its_version() -> None:
    env, taker = make_env("Clock", 2), Taker()
    store = store_with(env, FIRST)
    rollout = make_rollout(env, CONFIG, NETWORK, store, taker)
    steps(rollout, 3)
    store.put(ModelRef("main", 1, 4), weights_of(CONFIG, NETWORK, env.spaces, seed=4))
    steps(rollout, 13)
    assert [block["version"].min() for block in taker.blocks] == [0, 4, 4]
    assert [block["version"].max() for block in taker.blocks] == [0, 4, 4]
    assert [block["model"].version for block in taker.blocks] == [0, 4, 4]


def test_seats_in_turn_change_weights_in_the_middle_of_others_segments() -> None:
    env, taker = make_env("Turns", 2), Taker()
    store = store_with(env, FIRST)
    rollout = make_rollout(env, CONFIG, NETWORK, store, taker)
    for version in range(1, 40):
        store.put(ModelRef("main", 1, version), weights_of(CONFIG, NETWORK, env.spaces, seed=version))
        rollout.step()
    versions = np.concatenate([block["version"].T for block in taker.blocks])
    assert (np.diff(versions, axis=1) >= 0).all()
    assert (versions.min(axis=1) < versions.max(axis=1)).any()


def test_no_segment_holds_rows_of_two_lineages_even_where_seats_act_in_turn() -> None:
    env, taker = make_env("Turns", 2), Taker()
    store = store_with(env, FIRST)
    rollout = make_rollout(env, CONFIG, NETWORK, store, taker)
    for number in range(120):
        if number % 17 == 16:
            lineage = 2 + number // 17
            ref = ModelRef("main", lineage, 1000 * lineage)
            store.put(ref, weights_of(CONFIG, NETWORK, env.spaces, seed=lineage))
        rollout.step()
    lineages = [block["model"].lineage for block in taker.blocks]
    assert len(set(lineages)) > 4
    for block, lineage in zip(taker.blocks, lineages, strict=True):
        assert (block["version"] == (1000 * lineage if lineage > 1 else 0)).all()


def test_an_actor_without_credit_waits_and_counts_the_wait() -> None:
    env, taker, metrics = make_env("Clock", 2), Taker(room=1), Metrics()
    waits = 0

    def keep_going() -> bool:
        nonlocal waits
        if taker.room == 0:
            waits += 1
            taker.room = int(waits > 3)
        return True

    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, keep_going=keep_going, metrics=metrics)
    steps(rollout, 6)
    assert waits == 4
    assert [timeout for timeout in taker.polls if timeout > 0] == [WAIT_S] * 4, "it waits, it does not spin"
    assert metrics.values().counters["wait_credit_seconds"] > 0
    assert metrics.values().counters["env_steps"] == 2 * 5


def test_an_actor_that_waits_for_credit_can_be_stopped() -> None:
    env, taker = make_env("Clock", 2), Taker(room=0)
    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, keep_going=lambda: not taker.polls[8:])
    steps(rollout, 6)
    assert taker.blocks == []


def test_steps_frames_episodes_and_returns_are_counted() -> None:
    env, metrics = make_env("Clock", 2, length=4), Metrics()
    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), Taker(), metrics=metrics)
    steps(rollout, 11)  # 4 steps, the row after the end, 4 steps, the row after the end, 1 step
    values = metrics.values()
    assert values.counters["env_steps"] == 2 * 9
    assert values.counters["agent_steps"] == 2 * 9
    assert values.counters["frames"] == 2 * 9
    assert values.counters["episodes"] == 2 * 2
    assert values.gauges["train_return"] == 4.0


def test_numbers_of_the_ends_of_episodes_are_gauges() -> None:
    env, metrics = make_env("Exam", 2, length=3), Metrics()
    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), Taker(), metrics=metrics)
    steps(rollout, 3)
    assert not any(name.startswith("info.") for name in metrics.values().gauges), "no episode has ended"
    steps(rollout, 6)
    gauges = metrics.values().gauges
    assert {name: gauges[name] for name in gauges if name.startswith("info.")} == {
        "info.is_success": 0.5, "info.score": 2.5,
    }  # fmt: skip


def test_a_life_is_an_episode_of_segments_and_the_game_one_of_returns() -> None:
    wrapping = envs.Wrapping(episodic_life=True, grayscale=True)
    env, metrics, taker = envs.make(FILM, envs=1, seeds=[0], wrapping=wrapping), Metrics(), Taker()
    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, metrics=metrics)
    steps(rollout, 13)  # three lives of three steps, and the row after each
    assert metrics.values().gauges["train_return"] == 9.0
    assert metrics.values().gauges["info.score"] == 10.0
    assert metrics.values().counters["episodes"] == 1
    assert metrics.values().counters["agent_steps"] == 10
    ends = np.concatenate([block["fields"]["terminated"][:, 0] for block in taker.blocks])
    assert ends.sum() == len(ends) // 4


def test_two_seats_are_two_agent_steps_of_one_environment_step() -> None:
    env, metrics = make_env("Duel", 3), Metrics()
    steps(make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), Taker(), metrics=metrics), 4)
    assert metrics.values().counters["env_steps"] == 3 * 4
    assert metrics.values().counters["agent_steps"] == 2 * 3 * 4
    env, metrics = make_env("Turns", 3, stones=7), Metrics()
    steps(make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), Taker(), metrics=metrics), 1)
    assert metrics.values().counters["env_steps"] == 3
    assert metrics.values().counters["agent_steps"] == 3


def test_equal_seeds_give_equal_rows() -> None:
    def play() -> list[np.ndarray]:
        env, taker = make_env("Mixed", 2), Taker()
        steps(make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, seed=5), 20)
        return [block["fields"]["action.1"] for block in taker.blocks]

    for one, other in zip(play(), play(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_actor_in_lock_step_answers_its_receiver_while_it_waits_for_weights() -> None:
    """Or credit that it was given in advance could not be called back for those who are behind."""
    env, taker = make_env("Clock", 2), Taker()
    looks = 0

    def keep_going() -> bool:
        nonlocal looks
        looks += len(taker.blocks) == 2  # segments 0 and 1 are done, version 1 is not there
        return looks < 10

    rollout = make_rollout(env, CONFIG, NETWORK, store_with(env, FIRST), taker, keep_going=keep_going, lock_step=True)
    steps(rollout, 10)
    before = len(taker.polls)
    rollout.step()
    assert len(taker.polls) >= before + 9


def test_a_segment_begins_with_the_oldest_version_that_its_receiver_would_take_or_a_newer_one() -> None:
    env, taker = make_env("Clock", 2), Taker()
    store = store_with(env, FIRST)
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            store.put(ModelRef("main", 1, 1), weights_of(CONFIG, NETWORK, env.spaces, seed=1))

    rollout = make_rollout(env, CONFIG, NETWORK, store, taker, sleep=sleep)
    steps(rollout, 4)
    taker.least_version = 1
    steps(rollout, 13)
    assert waits == 3
    assert [block["version"].min() for block in taker.blocks] == [0, 1, 1]
