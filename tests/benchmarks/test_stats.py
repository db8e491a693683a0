"""Statistics of the benchmarks, against numbers known beforehand."""

import math

import pytest

from benchmarks.shared import usl
from benchmarks.shared.stats import jain, spread, student_quantile, student_tail, tost
from benchmarks.shared.usl import Law, efficiency, fit, fit_with_intervals, linear_to

WORKERS = [1, 4, 16, 64, 128]


@pytest.mark.parametrize("law", [Law(1000.0, 0.02, 0.0001), Law(90.0, 0.0, 0.0), Law(5.0, 0.5, 0.0)])
def test_usl_fit_finds_the_law_that_made_the_figures(law: Law) -> None:
    found = fit(WORKERS, [law.at(n) for n in WORKERS])
    assert found == pytest.approx(law, rel=1e-9, abs=1e-12)


def test_usl_fit_has_no_negative_coefficient_when_growth_is_more_than_linear() -> None:
    found = fit([1, 2, 4], [100.0, 210.0, 440.0])
    assert found.sigma == 0
    assert found.kappa == 0


def test_usl_peak_is_where_the_law_is_highest() -> None:
    law = Law(100.0, 0.05, 0.001)
    best = max(range(1, 200), key=law.at)
    assert abs(best - law.peak) <= 1
    assert Law(1.0, 0.1, 0.0).peak == math.inf


def test_usl_fit_refuses_one_number_of_workers() -> None:
    with pytest.raises(ValueError, match="two numbers of workers"):
        fit([4, 4], [10.0, 11.0])


def test_usl_intervals_hold_the_true_coefficients_of_noisy_repeats() -> None:
    law = Law(100.0, 0.03, 0.0002)
    repeats = {n: [law.at(n) * f for f in (0.99, 0.995, 1.0, 1.005, 1.01)] for n in WORKERS}
    found = fit_with_intervals(repeats, draws=200)
    assert found.sigma.low <= 0.03 <= found.sigma.high
    assert found.kappa.low <= 0.0002 <= found.kappa.high


def test_efficiency_and_where_growth_stops_being_linear() -> None:
    found = efficiency({1: [100.0, 100.0], 4: [396.0, 396.0], 16: [1520.0, 1520.0], 64: [3200.0, 3200.0]}, draws=50)
    assert [one.value for one in found] == pytest.approx([1.0, 0.99, 0.95, 0.5])
    assert linear_to(found) == 16
    assert linear_to([usl.Efficiency(1, 1, 1, 1), usl.Efficiency(2, 0.95, 0.89, 1), usl.Efficiency(4, 1, 1, 1)]) == 1


def test_jain_is_1_for_equals_and_1_over_n_for_one_who_takes_all() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([1, 2]) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("t", "freedom", "tail"),
    [(2.228, 10, 0.025), (1.812, 10, 0.05), (0.0, 3, 0.5), (-2.228, 10, 0.975), (6.314, 1, 0.05)],
)
def test_student_tails_are_those_of_the_printed_tables(t: float, freedom: float, tail: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(tail, abs=1e-4)
    if 0 < tail < 0.5:
        assert student_quantile(tail, freedom) == pytest.approx(t, abs=1e-3)


def test_tost_calls_equal_means_equivalent_and_far_ones_not() -> None:
    steady = [499.0, 500.0, 501.0, 500.0, 500.0]
    assert tost(steady, [498.0, 500.0, 502.0, 500.0, 500.0], margin=25).p < 1e-6
    assert tost(steady, [450.0, 451.0, 449.0, 450.0, 450.0], margin=25).p > 0.99
    assert tost([500.0, 500.0], [500.0, 500.0], margin=1).p == 0
    noisy = tost([300.0, 500.0, 400.0], [310.0, 490.0, 420.0], margin=25)
    assert noisy.p > 0.05, "three noisy runs say nothing"


def test_tost_equals_welch_by_hand() -> None:
    # means 10 and 11, variances 1 of 4 each: error sqrt(0.5), 6 degrees of freedom
    first, second = [9.0, 10.0, 10.0, 11.0], [10.0, 11.0, 11.0, 12.0]
    found = tost(first, second, margin=2)
    error = math.sqrt(2 / 3 / 4 * 2)
    assert found.difference == -1
    assert found.p == pytest.approx(student_tail((2 - 1) / error, 6))
    assert found.low == pytest.approx(-1 - 1.943 * error, abs=1e-3)


def test_spread_is_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    with pytest.raises(ValueError, match="no values"):
        spread([])
