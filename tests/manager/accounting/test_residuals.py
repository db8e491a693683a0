"""Actors that are far off are found, and no others, in simulated fleets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rlctl_agents.manager.accounting.outliers import MIXED_S, SLICE_S, SLICES, ActorEpisodes, Outliers
from rlctl_agents.manager.accounting.residuals import Figures, far_off, groups_off
from rlctl_agents.types.control import Origin
from rlctl_agents.types.figures import Moments
from tests.manager.world import Time
from tests.support.fleet import (
    DRAWS,
    NAMES,
    Draw,
    Simulated,
    alike,
    balanced,
    bounded,
    heavy,
    learning,
    normal,
    plateau,
    rare,
    told,
)
from tests.support.samples import sample

SIZES = (2, 3, 5, 20)
LOTS = 200


def shifted(figures: Any) -> Any:
    return figures - (150.0, 0.0, 0.0, 0.0)


def halved(figures: Any) -> Any:
    return figures * (1.0, 0.5, 1.0, 1.0)


def swapped(figures: Any) -> Any:
    return figures[:, [0, 1, 3, 2]]


def texts(found: list[Any]) -> list[str]:
    return [one.text for one in found]


def quiet(
    fleet: Callable[[int, np.random.Generator], list[Simulated]], draw: Draw, sizes: Sequence[int] = SIZES, **how: Any
) -> None:
    """Nothing is told of honest fleets of every size."""
    for size, seed in itertools.product(sizes, range(2)):
        rng = np.random.default_rng([size, seed])
        found = told(fleet(size, rng), draw, seed=seed, **how)
        assert [texts(one) for one in found if one] == [], (size, seed)


def equals(size: int, rng: np.random.Generator) -> list[Simulated]:
    return [Simulated(number, Origin(f"node-{number % 4}", "image")) for number in range(size)]


def lagging(size: int, rng: np.random.Generator) -> list[Simulated]:
    """Weights of different ages, and simulators of different speeds."""
    return [Simulated(number, lag=rng.uniform(0, 0.5), episodes=rng.uniform(5, 40)) for number in range(size)]


def sparing(size: int, rng: np.random.Generator) -> list[Simulated]:
    """Two episodes in half a minute."""
    return [Simulated(number, episodes=2.0) for number in range(size)]


@pytest.mark.parametrize(
    ("draw", "fleet", "skill"),
    sample("honest fleets", [*itertools.product(DRAWS, (equals, sparing, lagging), (plateau, learning))], 9),
)
def test_nothing_is_told_of_an_honest_fleet(draw: Draw, fleet: Any, skill: Any) -> None:
    quiet(fleet, draw, skill=skill, slices=10)


def test_nothing_is_told_of_two_hundred_honest_actors() -> None:
    quiet(lagging, heavy, [LOTS], skill=learning, slices=6)
    quiet(equals, bounded, [LOTS], slices=6)


def test_nothing_is_told_of_actors_that_differ_among_each_other_by_nature() -> None:
    def maps(size: int, rng: np.random.Generator) -> list[Simulated]:
        return [Simulated(number, handicap=rng.uniform(0, 0.4)) for number in range(max(size, 20))]

    quiet(maps, normal)


@pytest.mark.parametrize("size", sample("ladders", [2, 4, 60, 8], 2))
def test_nothing_is_told_of_a_ladder_of_epsilons(size: int) -> None:
    """As in Ape-X (Horgan et al. 2018): 0.4 to the power 1 + 7 i / (N - 1)."""
    ladder = [0.4 ** (1 + 7 * number / (size - 1)) for number in range(size)]
    fleet = [Simulated(at, epsilon=epsilon, handicap=0.75 * epsilon / 0.4) for at, epsilon in enumerate(ladder)]
    assert [texts(one) for one in told(fleet) if one] == []


@pytest.mark.parametrize("size", sample("fleets with a broken actor", SIZES, 3))
@pytest.mark.parametrize(
    ("change", "what"),
    [(shifted, "returns"), (halved, "episode lengths"), (swapped, "share of action=0")],
)
def test_a_broken_actor_is_told_with_how_far_image_and_node(change: Any, what: str, size: int) -> None:
    fleet = [Simulated(number, Origin(f"node-{number}", "sha256:1")) for number in range(size)]
    fleet[size // 2].change = change
    (problem,) = told(fleet)[-1]
    pair = size == 2  # either of them may be the one that is named
    number = int(problem.process.removeprefix("actor/"))
    assert pair or number == size // 2
    assert problem.text.startswith(f"actor/{number} (node node-{number}, image sha256:1) plays otherwise than ")
    assert what in problem.text
    assert " sigma, " in problem.text
    assert problem.text.endswith("which of the two is off cannot be told") == pair


def test_a_broken_actor_is_told_among_two_hundred() -> None:
    fleet = [Simulated(number) for number in range(LOTS)]
    fleet[123].change = halved
    assert [one.process for one in told(fleet, slices=8)[-1]] == ["actor/123"]


def test_how_far_and_over_how_much_is_in_the_text() -> None:
    fleet = [Simulated(number, Origin("host")) for number in range(6)]
    fleet[1].change = shifted
    (problem,) = told(fleet)[-1]
    words = problem.text.split("returns ")[1].split()
    assert float(words[0]) == pytest.approx(170, abs=20)
    assert float(words[3]) == pytest.approx(320, abs=20)
    assert float(words[4].removeprefix("(")) >= 6


def test_a_broken_actor_is_told_where_all_others_episodes_are_the_same() -> None:
    fleet = [Simulated(number) for number in range(6)]
    fleet[4].change = lambda figures: figures * (0.5, 1.0, 1.0, 1.0)
    (problem,) = told(fleet, alike)[-1]
    assert "returns 200 instead of 400 (" in problem.text


@pytest.mark.parametrize(("size", "nodes"), [(4, 2), (8, 4), (40, 4)])
@pytest.mark.parametrize("change", [shifted, halved])
def test_a_node_whose_actors_are_all_off_is_told_as_one_problem(size: int, nodes: int, change: Any) -> None:
    fleet = [Simulated(number, Origin(f"node-{number % nodes}", "image")) for number in range(size)]
    for one in fleet[1::nodes]:
        one.change = change
    (problem,) = told(fleet)[-1]
    assert problem.text.startswith(f"all {size // nodes} actors of node node-")
    assert "image image" in problem.text
    if nodes > 2:
        assert "of node node-1, such as actor/1 (node node-1, image image), play otherwise than" in problem.text


def test_a_node_is_told_though_none_of_its_actors_has_enough_episodes_of_its_own() -> None:
    fleet = [Simulated(number, Origin(f"node-{number % 4}"), episodes=1.2) for number in range(80)]
    for one in fleet[3::4]:
        one.change = shifted
    (problem,) = told(fleet, slices=12)[-1]
    assert problem.text.startswith("all 20 actors of node node-3")


def test_an_image_whose_actors_are_all_off_is_told_before_their_nodes() -> None:
    fleet = [Simulated(number, Origin(f"node-{number % 4}", "new" if number < 5 else "old")) for number in range(20)]
    for one in fleet[:5]:
        one.change = shifted
    (problem,) = told(fleet)[-1]
    assert problem.text.startswith(
        "all 5 actors of image new, such as actor/0 (node node-0, image new), play otherwise"
    )


@pytest.mark.parametrize("size", [8, 40])
def test_one_broken_actor_is_not_laid_at_the_door_of_its_node(size: int) -> None:
    fleet = [Simulated(number, Origin(f"node-{number % 4}", "image")) for number in range(size)]
    fleet[2].change = shifted
    (problem,) = told(fleet)[-1]
    assert problem.text.startswith("actor/2 (node node-2, image image) plays otherwise")


def test_two_broken_actors_are_told_both() -> None:
    fleet = [Simulated(number, Origin(f"node-{number}")) for number in range(10)]
    fleet[3].change, fleet[7].change = shifted, halved
    assert {one.process for one in told(fleet)[-1]} == {"actor/3", "actor/7"}


def test_actors_that_explore_as_much_are_compared_with_each_other() -> None:
    fleet = [Simulated(number, epsilon=0.4 if number < 5 else 0.01) for number in range(10)]
    fleet[2].change = shifted
    assert [one.process for one in told(fleet)[-1]] == ["actor/2"]


def test_an_actor_that_was_mended_is_forgotten_with_its_boot() -> None:
    fleet = [Simulated(number) for number in range(6)]
    fleet[1].change = shifted
    assert told(fleet)[-1]
    fleet[1] = Simulated(101)
    assert told(fleet)[-1] == []


def test_few_episodes_are_not_judged_until_slices_have_grown_long_enough() -> None:
    fleet = [Simulated(number, episodes=0.5) for number in range(6)]
    fleet[1].change = shifted
    found = told(fleet, slices=12 * SLICES)
    first = next(at for at, one in enumerate(found) if one)
    assert first > 2 * SLICES
    assert [one.process for one in found[-1]] == ["actor/1"]


def test_actors_of_another_image_than_the_rest_are_told_once_a_roll_out_would_be_over() -> None:
    fleet = [Simulated(number, Origin(f"node-{number}", "old" if number == 3 else "new")) for number in range(6)]
    found = told(fleet, slices=int(MIXED_S / SLICE_S) + 3)
    assert not any(found[: int(MIXED_S / SLICE_S) - 1])
    (problem,) = found[-1]
    assert problem.text.startswith("1 of 6 actors have run another image than the rest for ")
    assert "actor/3 (node node-3, image old); the rest: image new" in problem.text


@pytest.mark.parametrize(
    "lie",
    [
        Moments(float("nan"), 0.0, 0.0),
        Moments(1e9, float("inf"), 0.0),
        Moments(-5.0, 0.0, 0.0),
        Moments(100.0, 1e200, 0.0),
        Moments(100.0, 1e11, 1e20),
    ],
)
def test_whatever_a_strange_actor_says_of_itself_nothing_is_told_of_others(lie: Moments) -> None:
    fleet, time, rng = [Simulated(number) for number in range(5)], Time(), np.random.default_rng(1)
    outliers = Outliers(time)

    def actors() -> list[ActorEpisodes]:
        strange = ActorEpisodes("f" * 16, "actor/9", Origin("\x1b[2J"), [lie] * len(NAMES))
        return [*(one.actor() for one in fleet), strange, strange._replace(boot="e" * 16, figures=[lie])]

    for now in range(10):
        outliers.turn(NAMES, actors)
        for one in fleet:
            one.play(rng, normal, plateau, float(now))
        time.now += SLICE_S
        outliers.turn(NAMES, actors)
        assert all(one.process == "actor/9" for one in outliers.found)


def test_a_slice_of_many_actors_takes_longer_so_that_the_manager_has_time_for_others() -> None:
    time, asked = Time(), 0

    def actors() -> list[ActorEpisodes]:
        nonlocal asked
        asked += 1
        return [ActorEpisodes(f"{at:016x}", f"actor/{at}", Origin(), [Moments()] * len(NAMES)) for at in range(2000)]

    outliers = Outliers(time)
    for _ in range(5):
        outliers.turn(NAMES, actors)
        time.now += SLICE_S
    assert asked == 3


def test_nobody_is_judged_alone_or_without_episodes() -> None:
    assert told([Simulated(0)])[-1] == []
    assert told([Simulated(0, episodes=0.0), Simulated(1, episodes=0.0)])[-1] == []
    assert told([])[-1] == []


def test_the_difference_and_its_sigma_are_those_of_a_calculation_by_hand() -> None:
    """Three slices alike; 100 episodes of deviation 2 a unit and slice, one unit 5 above three others."""
    count = np.full((4, 3), 100.0)
    mean = np.zeros((4, 3))
    mean[2] = 5.0
    (off,) = far_off(Figures(count, mean, 100.0 * 4.0 * np.ones((4, 3))))
    # sqrt(4 * (1 / 300 + 1 / 900)) = 0.1333; the others do not differ
    assert (off.unit, off.here, off.others, off.episodes) == (2, 5.0, 0.0, 300)
    assert off.sigma == pytest.approx(5.0 / (4.0 * (1 / 300 + 1 / 900)) ** 0.5, rel=0.01)


def test_a_group_is_the_sum_of_its_members() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(4, 2, 50))
    figures = Figures(np.full((4, 2), 50.0), values.mean(2), np.square(values - values.mean(2, keepdims=True)).sum(2))
    both = figures.together(np.array([0, 1, 1, 0]), 2)
    joined = np.concatenate([values[1], values[2]], -1)
    np.testing.assert_allclose(both.mean[1], joined.mean(1))
    np.testing.assert_allclose(both.m2[1], np.square(joined - joined.mean(1, keepdims=True)).sum(1))
    assert groups_off(figures, np.array([0, 0, 0, 0]), 1) == []


def test_draws_are_what_they_are_called() -> None:
    """So that the fleets above test what they say."""
    rng = np.random.default_rng(0)
    sample = {draw: draw(rng, 0.8, 20_000) for draw in (normal, alike, heavy, rare, balanced, bounded)}
    assert sample[alike].std() == 0
    assert sample[heavy].max() > 100 * sample[heavy].mean()
    assert (sample[rare] > 0).mean() < 0.05
    assert abs(sample[balanced].mean()) < 0.05
    assert np.median(sample[bounded]) == 500
    assert sample[normal].std() == pytest.approx(60, rel=0.05)
