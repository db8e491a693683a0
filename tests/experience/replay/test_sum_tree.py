"""The sum tree draws as a cumulative sum over all leaves would, and never a leaf without mass."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl_agents.experience.replay.sum_tree import FAN_OUT, TOP, SumTree

SIZES = (1, 2, 15, 17, TOP, TOP + 1, TOP * FAN_OUT, TOP * FAN_OUT + 1, 100_003)


def leaves_at(mass: np.ndarray, points: np.ndarray) -> np.ndarray:
    """By definition."""
    running = np.cumsum(mass.astype(np.float64))
    return running.searchsorted(points * running[-1], "right")


@pytest.mark.parametrize("capacity", SIZES)
def test_draws_are_those_of_a_cumulative_sum(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, mass = SumTree(capacity), np.zeros(capacity, np.float32)
    for share in (1.0, 0.01, 0.5):
        at = rng.integers(0, capacity, max(1, int(share * capacity)))
        new = (rng.random(at.size) ** 8 * rng.integers(0, 2, at.size)).astype(np.float32)
        new[-1] = 0.5
        tree.set(at, new)
        mass[at] = new
        points = rng.random(2000)
        np.testing.assert_array_equal(tree.mass, mass)
        assert tree.total == pytest.approx(mass.astype(np.float64).sum(), rel=1e-12)
        assert (tree.draw(points) == leaves_at(mass, points)).mean() > 0.999, "rounding may move a border"


@given(
    capacity=st.sampled_from(SIZES),
    sets=st.lists(
        st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1e10, width=32)), max_size=8), max_size=6
    ),
    points=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=8),
)
def test_a_leaf_without_mass_is_never_drawn(
    capacity: int, sets: list[list[tuple[float, float]]], points: list[float]
) -> None:
    tree = SumTree(capacity)
    for one in sets:
        at = np.array([int(where * capacity) for where, _ in one], np.int64)
        tree.set(at, np.array([mass for _, mass in one], np.float32))
    ends = np.array([*points, 0.0, np.nextafter(1.0, 0.0)])
    if tree.mass.any() and tree.total > 1e-30:
        assert tree.mass[tree.draw(ends)].all()
    elif not tree.mass.any():
        with pytest.raises(ValueError, match="nothing to draw"):
            tree.draw(ends)


def test_a_leaf_at_every_border_of_a_family_is_found() -> None:
    capacity = TOP * FAN_OUT * 2
    for leaf in (0, FAN_OUT - 1, FAN_OUT, FAN_OUT**2 - 1, FAN_OUT**2, capacity - 1):
        tree = SumTree(capacity)
        tree.set(np.array([leaf]), np.array([1e-10]))
        assert tree.draw(np.linspace(0, np.nextafter(1, 0), 50)).tolist() == [leaf] * 50


def test_of_a_leaf_that_comes_twice_the_last_mass_counts() -> None:
    tree = SumTree(100)
    tree.set(np.array([3, 5, 3]), np.array([9.0, 1.0, 2.0]))
    assert tree.mass[[3, 5]].tolist() == [2.0, 1.0]
    assert tree.total == 3.0


def test_sums_do_not_drift() -> None:
    rng, tree = np.random.default_rng(0), SumTree(TOP * FAN_OUT)
    for _ in range(2000):
        at = rng.integers(0, TOP * FAN_OUT, 64)
        tree.set(at, rng.random(64) * 10.0 ** rng.integers(-10, 10, 64))
    before = tree.total
    tree.rebuild()
    assert tree.total == pytest.approx(before, rel=1e-15)
    tree.set(np.arange(TOP * FAN_OUT), np.zeros(TOP * FAN_OUT))
    assert tree.total == 0.0


@pytest.mark.parametrize("capacity", SIZES)
def test_bytes_are_those_computed(capacity: int) -> None:
    assert SumTree(capacity).nbytes == SumTree.bytes_for(capacity)


def test_a_tree_without_leaves_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)
