"""Charts as inline SVG without scripts: axes with ticks at round numbers, units, legend, marks, values on hover.

Text keeps its size in a window of any width: places are shares of the plot, and only lines, in an SVG of their own
within it, are stretched. The pointer selects a column of the plot, which shows its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from rlctl.spec.words import clock
from rlctl_agents.manager.web.rendering import ENGINE, number

MOST_POINTS = 150
"""Points of a line, at most; neighbouring ones are merged."""
CHARACTER_PX = 6.0
"""Width in pixels of a character of 11 pixels in a wide font, for the background of values."""
COLUMNS = 25
"""Columns of a plot that react to the pointer; their width is in the style sheet."""
MOST_MARKS, LONGEST_MARK = 20, 100
"""Marks of a kind with a text in a large chart, and its characters, at most; marks within 1 % of the plot are one."""
UNITS_S: Sequence[tuple[float, float, str]] = (
    (120, 1, "s"),
    (7200, 60, "min"),
    (172_800, 3600, "h"),
    (1e99, 86_400, "d"),
)
"""Units of an axis of time: longest axis in seconds, seconds of the unit, its name."""
_LARGE = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
"""Units of large numbers: least value, divisor, sign."""
_SIXTIES = (5.0, 10.0, 15.0, 30.0, 60.0)
"""Round steps of seconds and minutes."""
_INNER = 1000
"""Side in pixels of the square in which lines are drawn before they are stretched."""


class ChartPoint(NamedTuple):
    """Point of a curve."""

    x: float
    y: float
    low: float | None = None  # lower bound of its spread
    high: float | None = None  # upper bound
    told: str = ""  # shown in place of the value; in the legend without what follows a comma


class Line(NamedTuple):
    """Curve of a chart."""

    name: str
    points: Sequence[ChartPoint]  # in the order of time; x falls where a learner went back
    dots: bool = False
    colour: int = 1  # 1 to 6


class ChartMark(NamedTuple):
    """Event that is marked on the x axis."""

    kind: str
    x: float
    text: str


class XAxis(NamedTuple):
    """Horizontal axis of all charts of a kind."""

    label: str
    time: bool = False  # in seconds


class Chart(NamedTuple):
    """Chart of one figure, or of several of one unit."""

    title: str
    unit: str
    x: XAxis
    lines: Sequence[Line]
    marks: Sequence[ChartMark] = ()
    floor: float | None = None  # the y axis begins here or below
    ceiling: float | None = None  # and ends here or above


def drawn(chart: Chart, *, large: bool = False) -> Markup:
    """Draw a chart; empty if no line has a point.

    Args:
        large: the chart is the main one of the page.
    """
    lines = [line._replace(points=[one for one in line.points if math.isfinite(one.x) and math.isfinite(one.y)])
             for line in chart.lines]  # fmt: skip
    lines = [line for line in lines if line.points]
    if not lines:
        return Markup()
    every = [one for line in lines for one in line.points]
    ys = [value for one in every for value in (one.y, one.low, one.high) if value is not None]
    ys += [bound for bound in (chart.floor, chart.ceiling) if bound is not None]
    x = _Scale.over([0.0, *(one.x for one in every)], times=chart.x.time)
    y = _Scale.over(ys, margin=0.04, floor=chart.floor, ceiling=chart.ceiling)
    return Markup(
        ENGINE.get_template("chart.html.j2").render(
            chart=chart, large=large, unit_x=x.unit,
            x_ticks=[(x.share(tick), text) for tick, text in x.ticks(9 if large else 5)],
            y_ticks=[(100 - y.share(tick), text) for tick, text in y.ticks(8 if large else 5)],
            lines=[_shown(line, x, y) for line in lines], columns=_columns(lines, chart.x, x),
            marks=_marks([mark for mark in chart.marks if x.low <= mark.x <= x.high], x, told=large),
            said=", ".join(f"{line.name} {number(line.points[-1].y)}" for line in lines),
        )
    )  # fmt: skip


class _Scale(NamedTuple):
    """Map from values to shares of the plot, in per cent."""

    low: float
    high: float
    size: float = 1.0  # of the unit, in which ticks are round
    unit: str = ""

    @classmethod
    def over(
        cls,
        values: Iterable[float],
        *,
        times: bool = False,
        margin: float = 0.0,
        floor: float | None = None,
        ceiling: float | None = None,
    ) -> _Scale:
        known = [*values]
        low, high = min(known), max(known)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            room = 0.1 * abs(high) or 1.0
            low, high = (low if floor == low or times else low - room), (high if ceiling == high else high + room)
        room = margin * (high - low)
        low, high = (low if floor == low else low - room), (high if ceiling == high else high + room)
        size, unit = next((size, unit) for most, size, unit in UNITS_S if high < most) if times else (1.0, "")
        return cls(low, high, size, unit)

    def share(self, value: float) -> float:
        """Share of the plot below a value, in per cent."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Round values within the scale, and their labels."""
        low, high = self.low / self.size, self.high / self.size
        power = 10.0 ** math.floor(math.log10((high - low) / most))
        round_ones = sorted(
            [*(of * power for of in (1, 2, 5, 10, 20)), *(_SIXTIES if self.unit in ("s", "min") else ())]
        )
        fits = [step for step in round_ones if math.floor(high / step) - math.ceil(low / step) < most]
        step = next(step for step in fits if self.unit not in ("s", "min") or step < 5 or step in _SIXTIES)
        first, count = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        values = [at * step for at in range(first, count + 1)]
        size, sign = next(((size, sign) for least, size, sign in _LARGE if max(-low, high) >= least), (1.0, ""))
        return [(value * self.size, _written(value / size, step / size) + (sign if value else "")) for value in values]


def _written(value: float, step: float) -> str:
    """Label of a tick, with ticks a step apart."""
    if value == 0 or abs(value) < step / 2:
        return "0"
    if step < 1e-4:
        digits = max(0, math.floor(math.log10(abs(value)) + 1e-9) - math.floor(math.log10(step) + 1e-9))
        mantissa, _, power = f"{value:.{digits}e}".partition("e")
        return f"{float(mantissa):g}e{int(power)}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}".replace("-", "−")


def _shown(line: Line, x: _Scale, y: _Scale) -> dict[str, object]:
    """Paths of a line within the square of `_INNER` pixels."""

    def place(at: float, value: float) -> str:
        across, down = _INNER / 100 * x.share(at), _INNER / 100 * (100 - y.share(value))
        return f"{across:.0f},{down:.0f}"

    kept, void = _standing(line.points)
    together = math.ceil(len(line.points) / MOST_POINTS)
    kept, void = _thinned(kept, together), [_thinned(part, together) for part in void]
    band = [one for one in kept if one.low is not None and one.high is not None]
    around = [place(one.x, one.high or 0.0) for one in band] + [place(one.x, one.low or 0.0) for one in reversed(band)]
    alone = line.dots or len(kept) == 1
    return {
        "name": line.name, "colour": line.colour,
        "told": line.points[-1].told.partition(", ")[0] or number(line.points[-1].y),
        "path": Markup(" ".join(place(one.x, one.y) for one in kept)),  # numbers, which are not cut like a text
        "band": Markup(" ".join(around) if len(band) > 1 else ""),
        "dots": Markup("".join(f"M{place(one.x, one.y)}h0" for one in kept) if alone else ""),
        "void": [Markup("M" + " ".join(place(one.x, one.y) for one in part)) for part in void],
    }  # fmt: skip


def _thinned(points: list[ChartPoint], together: int) -> list[ChartPoint]:
    """Means of `together` neighbouring points, from the first place to the last."""
    if together == 1:
        return points
    first, *others = [_mean(points[at : at + together]) for at in range(0, len(points), together)]
    return [first._replace(x=points[0].x), *others]


def _mean(points: Sequence[ChartPoint]) -> ChartPoint:
    lows, highs = (
        [one.low for one in points if one.low is not None],
        [one.high for one in points if one.high is not None],
    )
    return ChartPoint(
        points[-1].x, math.fsum(one.y for one in points) / len(points),
        math.fsum(lows) / len(lows) if lows else None, math.fsum(highs) / len(highs) if highs else None,
    )  # fmt: skip


def _standing(points: Sequence[ChartPoint]) -> tuple[list[ChartPoint], list[list[ChartPoint]]]:
    """Points that still hold, and stretches of points that were learned and lost: a smaller x follows them."""
    kept: list[ChartPoint] = []
    void: list[list[ChartPoint]] = []
    least, broken = math.inf, True
    for one in reversed(points):
        if one.x <= least:
            kept.append(one)
            least, broken = one.x, True
        else:
            if broken:
                void.append([])
            void[-1].append(one)
            broken = False
    return kept[::-1], void


def _columns(lines: Sequence[Line], axis: XAxis, x: _Scale) -> list[dict[str, Any]]:
    """Columns of the plot, each with the last value of each line in it; the values of either half are shown in the
    other."""
    found: dict[int, dict[int, ChartPoint]] = {}
    for at, line in enumerate(lines):
        for one in _standing(line.points)[0]:
            column = min(int(x.share(one.x) / 100 * COLUMNS), COLUMNS - 1)
            found.setdefault(column, {})[at] = one
    halves: tuple[list[Any], list[Any]] = [], []
    for column, values in sorted(found.items()):
        last = max(one.x for one in values.values())
        told = [(0, clock(last) if axis.time else f"{last:,.0f} steps")]
        for at, one in values.items():
            name = f"{lines[at].name.removeprefix('evaluation, ')} " if len(lines) > 1 else ""
            told.append((lines[at].colour if name else 0, name + (one.told or number(one.y))))
        wide = CHARACTER_PX * max(len(text) for _, text in told) + 12
        halves[2 * column >= COLUMNS].append((100 / COLUMNS * column, math.ceil(wide), told))
    return [{"name": "at right", "x": 100, "columns": halves[0]}, {"name": "at", "x": 0, "columns": halves[1]}]


def _marks(marks: Sequence[ChartMark], x: _Scale, *, told: bool) -> list[dict[str, Any]]:
    """Marks of each kind: a path of all, and the newest with their texts."""
    found: dict[str, dict[int, list[ChartMark]]] = {}
    for mark in marks:
        found.setdefault(mark.kind, {}).setdefault(int(x.share(mark.x)), []).append(mark)
    shown = []
    for kind, places in found.items():
        newest = [near[-1] for near in places.values()][-100 if told else -MOST_MARKS :]
        lines = "".join(
            f"M{_INNER / 100 * x.share(mark.x):.0f},{_INNER}V{970 if kind == 'generation' else 0}" for mark in newest
        )
        texts = []
        for near in [*places.values()][-MOST_MARKS:] if told and kind != "generation" else ():
            more = f" and {len(near) - 1} more beside it" if len(near) > 1 else ""
            texts.append((int(x.share(near[-1].x)), near[-1].text[:LONGEST_MARK] + more))
        shown.append({"kind": kind, "path": Markup(lines), "texts": texts})
    return shown


def by_name(lines: Mapping[str, Sequence[ChartPoint]]) -> list[Line]:
    """Lines with these names, each in a colour of its own, while there are at most six."""
    return [Line(name, points, colour=at % 6 + 1) for at, (name, points) in enumerate(lines.items())]
