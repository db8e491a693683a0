"""Statistics of runs, against numbers known beforehand."""

import numpy as np
import pytest

from rlctl.statistics import bootstrap, compared, improvement, iqm


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0], 7.0), ([1.0, 3.0], 2.0), ([0.0, 1.0, 2.0, 99.0], 1.5), ([5.0, 1.0, 2.0, 3.0, 4.0], 3.0),
     ([float(n) for n in range(8)], 3.5), ([0.0, 0.0, 1.0, 1.0, 1.0, 9.0], 2.5 / 3)],
)  # fmt: skip
def test_iqm_is_the_mean_of_the_middle_half(values: list[float], expected: float) -> None:
    repeated = np.repeat(np.sort(values), 4)  # then a quarter is a whole number of entries
    quarter = len(values)
    assert repeated[quarter:-quarter].mean() == pytest.approx(iqm(np.array(values)))
    assert expected == pytest.approx(iqm(np.array(values)))


def test_bootstrap_interval_holds_the_statistic_and_shrinks_without_spread() -> None:
    low, high = bootstrap([1.0, 2.0, 3.0, 4.0, 5.0], lambda x: float(x.mean()), draws=300)
    assert low < 3 < high
    assert bootstrap([4.0] * 5, iqm, draws=50) == (4.0, 4.0)


def test_improvement_is_the_share_of_pairs_of_which_the_first_is_above() -> None:
    assert improvement([3, 1], [2, 1]) == 0.625
    assert improvement([5, 6], [1, 2]) == 1
    assert improvement([1], [1]) == 0.5


def test_two_samples_are_resampled_apart() -> None:
    found = compared([10.0, 12.0], [1.0, 1.0, 1.0], lambda a, b: float(a.mean() - b.mean() + 100 * (a.size - b.size)))
    # of the first 10, 11 or 12, of the second always 1; sizes stay
    assert found == (-90.0, -91.0, -89.0)
    assert compared([4.0] * 5, [3.0] * 5, improvement, draws=50) == (1.0, 1.0, 1.0)
