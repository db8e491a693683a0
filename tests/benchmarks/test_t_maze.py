"""T-maze: 4 for an agent that remembers, 1.95 at most for one that does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from benchmarks.learning.t_maze import DAWDLING, FORWARD, LEFT, LENGTH, RIGHT, RIGHT_WAY, STANDING, WRONG_WAY, TMaze

Obs = NDArray[np.float32]


def played(env: TMaze, seed: int, act: Callable[[list[Obs]], int]) -> tuple[float, list[Obs], bool]:
    """Return, observations, and whether it came to its end; `act` is given all observations until then."""
    seen, total = [env.reset(seed=seed)[0]], 0.0
    while True:
        obs, reward, terminated, truncated, _ = env.step(act(seen))
        seen.append(obs)
        total += reward
        if terminated or truncated:
            assert terminated != truncated
            return total, seen, terminated


def remembers(seen: list[Obs]) -> int:
    return FORWARD if not seen[-1][2] else LEFT if seen[0][0] else RIGHT


def forgets(way: int) -> Callable[[list[Obs]], int]:
    """By what it sees at this moment, as any agent without a memory."""
    return lambda seen: FORWARD if not seen[-1][2] else way


@pytest.mark.parametrize("length", [1, 7, LENGTH])
def test_with_a_memory_the_way_is_always_right_and_without_one_half_the_time(length: int) -> None:
    env = TMaze(length)
    best = [played(env, seed, remembers) for seed in range(200)]
    assert {total for total, *_ in best} == {RIGHT_WAY}
    assert {len(seen) - 1 for _, seen, _ in best} == {length + 1}
    for way in (LEFT, RIGHT):
        totals = [played(env, seed, forgets(way))[0] for seed in range(400)]
        assert set(totals) == {WRONG_WAY, RIGHT_WAY}
        assert np.mean(np.equal(totals, RIGHT_WAY)) == pytest.approx(0.5, abs=4 * 0.5 / 20), (
            "four deviations of 400 coins"
        )


def test_after_the_first_observation_nothing_tells_the_way_or_the_place() -> None:
    env = TMaze()
    ways = {}
    for seed in range(50):
        _, seen, _ = played(env, seed, remembers)
        assert seen[0].tolist() in ([1, 0, 0], [0, 1, 0])
        ways[tuple(seen[0].tolist())] = np.stack(seen[1:]).tolist()
    assert ways[1, 0, 0] == ways[0, 1, 0], "both ways look alike from then on"
    assert ways[1, 0, 0] == [[0, 0, 0]] * (LENGTH - 1) + [[0, 0, 1]] * 2, "the last one is what the end shows"
    env.reset(seed=0)
    assert env.step(LEFT)[0].tolist() == [0, 0, 0], "the signal belongs to the moment, not to the place"


def test_who_does_not_come_to_the_junction_or_stays_there_pays_for_each_step_and_is_cut_short() -> None:
    most = DAWDLING * (LENGTH + 1)
    for way, stood in ((LEFT, most), (RIGHT, most), (FORWARD, most - LENGTH)):
        total, seen, terminated = played(TMaze(), 0, lambda seen, way=way: way)  # type: ignore[misc]
        assert (total, terminated) == (pytest.approx(STANDING * stood), False)
        assert len(seen) - 1 == most


def test_a_decision_in_the_last_step_counts() -> None:
    env = TMaze(1)
    most = DAWDLING * 2
    waits = lambda seen: FORWARD if len(seen) < most else remembers(seen)  # noqa: E731
    total, seen, terminated = played(env, 3, waits)
    assert (total, len(seen) - 1, terminated) == (pytest.approx(RIGHT_WAY + STANDING * (most - 2)), most, True)


def test_it_is_an_environment_of_gymnasium_and_a_seed_gives_the_same_way() -> None:
    check_env(TMaze(), skip_render_check=True)
    env = TMaze()
    for seed in range(10):
        assert env.reset(seed=seed)[0].tolist() == env.reset(seed=seed)[0].tolist()
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        TMaze(0)
