"""A curve as inline SVG, without a script and without a style of its own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 600, 120
MARGIN = 4
MOST_POINTS = 240


def svg(points: Sequence[tuple[float, float]], title: str) -> str:
    """A line through the points, x ascending; few of many points are drawn, the first and the last always.

    Args:
        title: what it shows, for whoever cannot see it.

    Returns:
        "" for fewer than two points.
    """
    if len(points) < 2:
        return ""
    points = thinned(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = " ".join(
        f"{_place(x, min(xs), max(xs), WIDTH):.1f},{HEIGHT - _place(y, min(ys), max(ys), HEIGHT):.1f}"
        for x, y in points
    )
    return (
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" preserveAspectRatio="none">'
        f'<title>{escape(title)}</title><polyline points="{line}"/></svg>'
    )


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most so many of the points, evenly, with both ends."""
    if len(points) <= most:
        return list(points)
    return [points[round(number * (len(points) - 1) / (most - 1))] for number in range(most)]


def _place(value: float, low: float, high: float, size: int) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return MARGIN + share * (size - 2 * MARGIN)
