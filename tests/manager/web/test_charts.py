"""Charts: where things are drawn, and what stands beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest

from rlctl_agents.manager.web.charts import MOST_POINTS, Chart, ChartMark, ChartPoint, Line, XAxis, drawn

STEPS, TIME = XAxis("steps"), XAxis("running time", time=True)


def chart(points: Sequence[tuple[float, float]], axis: XAxis = STEPS, **more: float) -> ElementTree.Element:
    lines = [Line("one", [ChartPoint(x, y) for x, y in points])]
    return ElementTree.fromstring(drawn(Chart("a title", "units", axis, lines, **more)))


def texts(of: ElementTree.Element, kind: str) -> list[str]:
    return [one.text or "" for one in of.iter("text") if one.get("class") == kind]


def line(of: ElementTree.Element) -> list[tuple[float, float]]:
    (found,) = of.iter("polyline")
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.get("points", "").split())]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.0, 1.0), ["0", "0.5", "1.0"]),
        ((-21.0, 21.0), ["−20", "−10", "0", "10", "20"]),
        ((0.0, 47_500_000.0), ["0", "10M", "20M", "30M", "40M"]),
        ((0.0, 12_345.0), ["0", "5k", "10k"]),
        ((995.0, 1004.0), ["996", "998", "1,000", "1,002", "1,004"]),
        ((0.0, 2.5e-5), ["0", "1e-5", "2e-5"]),
        ((0.9e-3, 1.1e-3), ["9e-4", "9.5e-4", "1e-3", "1.05e-3", "1.1e-3"]),
        ((-3e9, -1e9), ["−3.0G", "−2.5G", "−2.0G", "−1.5G", "−1.0G"]),
    ],
)
def test_ticks_of_values_are_round(values: tuple[float, float], ticks: list[str]) -> None:
    found = texts(chart([*enumerate(values)]), "y")
    assert found == ticks


@pytest.mark.parametrize(
    ("last_s", "unit", "ticks"),
    [
        (90.0, "s", ["0", "30", "60", "90"]),
        (3600.0, "min", ["0", "15", "30", "45", "60"]),
        (43_200.0, "h", ["0", "5", "10"]),
        (864_000.0, "d", ["0", "5", "10"]),
    ],
)
def test_an_axis_of_time_begins_at_0_in_the_unit_that_fits(last_s: float, unit: str, ticks: list[str]) -> None:
    found = chart([(last_s / 10, 1.0), (last_s, 2.0)], TIME)
    assert texts(found, "x") == ticks
    assert texts(found, "over") == [f"running time, {unit}"]


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [-3.0, -3.0, -3.0], [1e-300, 1e-300], [1e300, -1e300]])
def test_a_line_that_does_not_vary_and_one_that_varies_wildly_have_axes_too(values: list[float]) -> None:
    found = chart([*enumerate(values)])
    assert len(texts(found, "y")) >= 1
    assert all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in line(found))


def test_shares_are_drawn_between_0_and_100_per_cent() -> None:
    found = chart([(0, 40.0), (1, 60.0)], floor=0.0, ceiling=100.0)
    assert [y for _, y in line(found)] == [600.0, 400.0]


def test_what_is_no_number_is_not_drawn_and_nothing_at_all_is_no_chart() -> None:
    assert len(line(chart([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)]))) == 2
    assert drawn(Chart("a title", "units", STEPS, [Line("one", [ChartPoint(0, math.nan)]), Line("two", [])])) == ""


def test_a_long_line_is_drawn_with_few_points_and_both_ends() -> None:
    found = line(chart([(x, x % 7) for x in range(5000)]))
    assert MOST_POINTS / 2 < len(found) <= MOST_POINTS
    assert (found[0][0], found[-1][0]) == (0.0, 1000.0)


def test_what_was_learned_and_lost_is_no_part_of_the_line() -> None:
    found = chart([(0, 0.0), (10, 10.0), (20, 20.0), (30, 30.0), (12, 11.0), (24, 22.0), (40, 30.0)])
    assert [round(x / 25) for x, _ in line(found)] == [0, 10, 12, 24, 40]
    (void,) = [one.get("d", "") for one in found.iter("path") if one.get("class") == "void"]
    assert len(re.findall(",", void)) == 2, "20 and 30, from before the learner went back to 10"


def test_a_column_shows_the_values_of_all_lines_and_a_mark_what_happened() -> None:
    lines = [Line("mean", [ChartPoint(0, 1.0), ChartPoint(100, 2.0)]),
             Line("max", [ChartPoint(0, 3.0), ChartPoint(100, 4.0, told="4 of 5")], colour=2)]  # fmt: skip
    marks = [ChartMark("failure", 50.0, "learner 0 was lost"), ChartMark("restart", 500.0, "beyond the axis")]
    found = ElementTree.fromstring(drawn(Chart("lag", "versions", STEPS, lines, marks), large=True))
    columns = [("".join(one.itertext())) for one in found.iter("text") if one.get("class") is None]
    assert columns == ["0 stepsmean 1max 3", "100 stepsmean 2max 4 of 5"]
    assert [one.text for one in found.iter("title")] == ["learner 0 was lost"]
    assert [(one.get("class"), one.get("d")) for one in found.iter("path")][-1] == ("failure", "M500,1000V0")
