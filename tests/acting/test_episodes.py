"""Whole games with fixed shares."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rlctl.spec.schema import Network
from rlctl_agents.acting.episodes import EpisodeResults, play, shares
from rlctl_agents.acting.policy import Table
from rlctl_agents.acting.policy_player import NetworkPolicy
from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.envs.base import Env
from rlctl_agents.envs.gymnasium import make_from
from rlctl_agents.envs.stacking import Stacked
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.experience import Decisions
from tests.support.chain import make_env, settings


def played(
    name: str, envs: int, episodes: int, *, greedy: bool = True, seed: int = 1, **kwargs: int
) -> EpisodeResults | None:
    env = make_env(name, envs, **kwargs)
    table = Table.of_seats(env.spaces, envs, [list(range(env.spaces.seats))])
    player = NetworkPolicy(
        Impala(settings(), Network(hidden=[8]), env.spaces, seed=3), table.slots[0], seed=seed, rows=8, greedy=greedy
    )
    return play(
        env, [seed * 100 + number for number in range(envs)], table, [player], episodes,
        metrics=Metrics(), keep_going=lambda: True,
    )  # fmt: skip


@pytest.mark.parametrize(("episodes", "envs"), [(100, 10), (7, 10), (10, 4), (1, 1), (3, 3)])
def test_shares_are_as_equal_as_they_can_be(episodes: int, envs: int) -> None:
    found = shares(episodes, envs)
    assert sum(found) == episodes
    assert max(found) - min(found) <= 1


@pytest.mark.parametrize("episodes", [2, 3, 6, 8])
def test_exactly_the_episodes_asked_for_are_counted_with_raw_returns(episodes: int) -> None:
    result = played("Clock", 3, episodes, length=4)
    assert result is not None
    assert result.returns == [4.0] * episodes
    assert result.lengths == [4] * episodes


def test_quick_environments_do_not_count_more_often() -> None:
    """A random policy's games of Turns last 1 to 7 moves; counting the first 40 to end would favour short ones."""
    result = played("Turns", 4, 40, greedy=False, stones=7)
    assert result is not None
    assert len(result.returns) == 40
    assert set(result.returns) <= {-1.0, 1.0}


def test_equal_seeds_give_equal_games_and_others_do_not() -> None:
    one, same, other = (played("Mixed", 3, 9, greedy=False, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_playing_ends_when_told_to() -> None:
    env = make_env("Clock", 2)
    table = Table.of_seats(env.spaces, 2, [[0]])
    player = NetworkPolicy(Impala(settings(), Network(hidden=[8]), env.spaces, seed=3), table.slots[0], seed=1, rows=8)
    turns = itertools.count()
    assert play(env, [1, 2], table, [player], 100, metrics=Metrics(), keep_going=lambda: next(turns) < 9) is None


def test_every_seat_needs_exactly_one_player() -> None:
    spaces = make_env("Duel", 2).spaces
    assert [slots.tolist() for slots in Table.of_seats(spaces, 2, [[1], [0]]).slots] == [[1, 3], [0, 2]]
    for wrong in ([[0]], [[0, 1], [1]], [[0, 1, 2]]):
        with pytest.raises(ValueError, match="2 seats"):
            Table.of_seats(spaces, 2, wrong)


def test_decisions_are_split_among_players_and_their_actions_joined_in_order() -> None:
    env = make_env("Duel", 2)
    table = Table.of_seats(env.spaces, 2, [[1], [0]])
    parts = table.split(env.reset([1, 2]))
    assert [(who, rows.tolist(), part.slot.tolist()) for who, rows, part in parts] == [
        (0, [1, 3], [0, 1]),
        (1, [0, 2], [0, 1]),
    ]
    joined = table.join([(rows, {"action": np.full(2, who)}) for who, rows, _ in parts], 4)
    assert joined["action"].tolist() == [1, 0, 1, 0]


def test_an_evaluation_counts_the_steps_without_any_end() -> None:
    env, metrics = make_env("Clock", 2, length=9), Metrics()
    table = Table.of_seats(env.spaces, 2, [[0]])
    player = NetworkPolicy(Impala(settings(), Network(hidden=[8]), env.spaces, seed=3), table.slots[0], seed=1, rows=8)
    seen: list[float] = []

    def going() -> bool:
        seen.append(metrics.values().gauges.get("steps_without_end", 0))
        return len(seen) < 8

    play(env, [1, 2], table, [player], 8, metrics=metrics, keep_going=going)
    assert seen == [*range(8)]
    assert metrics.values().gauges["steps_without_end"] == 0, "it was withdrawn"
    play(env, [1, 2], table, [player], 2, metrics=metrics, keep_going=lambda: True)
    assert metrics.values().gauges["steps_without_end"] == 0


def test_numbers_of_the_games_that_count_are_averaged() -> None:
    told = played("Exam", 2, 5, length=3)
    assert told is not None
    assert told.info == {"is_success": 0.4, "score": 2.6}, "seeds 100 and 101: 3 games and 2"


class Walk(gymnasium.Env[Any, Any]):
    """Episodes of as many steps as the seed says; counts the steps of all that were made."""

    observation_space, action_space = Box(-1.0, 1.0, (2,)), Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length, self.left = (seed, seed) if seed is not None else (self.length, self.length)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Walk.steps += 1
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize("frames", [0, 2])
def test_an_environment_that_has_played_its_share_rests(frames: int) -> None:
    single = make_from("walk", Walk, 4, [0] * 4, {}, None)
    env = Stacked(single, frames) if frames else single
    table, metrics = Table.of_seats(env.spaces, 4, [[0]]), Metrics()
    player = NetworkPolicy(Impala(settings(), Network(hidden=[8]), env.spaces, seed=3), table.slots[0], seed=1, rows=8)
    for episodes, steps in ((4, 2 + 5 + 3 + 9), (6, 4 + 10 + 3 + 9), (2, 2 + 5)):
        Walk.steps, before = 0, metrics.values().counters.get("agent_steps", 0.0)
        found = play(env, [2, 5, 3, 9], table, [player], episodes, metrics=metrics, keep_going=lambda: True)
        assert found is not None
        assert sum(found.lengths) == steps == sum(found.returns) == metrics.values().counters["agent_steps"] - before
        # those without a share rest from the first end on
        assert steps <= Walk.steps <= steps + (4 if episodes == 2 else 0)


class Lives:
    """Walks of which two are a game: the first is a life."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.spaces, self.envs, self.frame_skip = env.spaces, env.envs, env.frame_skip
        self.reset, self.close = env.reset, env.close
        self._walks = np.zeros(env.envs, np.int64)

    def step(self, slot: Any, action: Any) -> Decisions:
        decisions = self._env.step(slot, action)
        ended = decisions.terminated | decisions.truncated
        self._walks[decisions.slot[ended]] += 1
        return replace(decisions, life=ended & (self._walks[decisions.slot] % 2 == 1))


def test_a_lost_life_ends_no_game() -> None:
    env = Lives(make_from("walk", Walk, 2, [0] * 2, {}, None))
    table = Table.of_seats(env.spaces, 2, [[0]])
    player = NetworkPolicy(Impala(settings(), Network(hidden=[8]), env.spaces, seed=3), table.slots[0], seed=1, rows=8)
    found = play(env, [2, 3], table, [player], 4, metrics=Metrics(), keep_going=lambda: True)
    assert found is not None
    assert found.returns == [4, 4, 6, 6]
    assert found.lengths == [4, 4, 6, 6]
