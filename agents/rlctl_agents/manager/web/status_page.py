"""The status of a run as a page for people: read-only, complete without scripts, nothing from elsewhere.

It is shown on the manager's probe listener. Whoever wants figures reads the same at /status.json.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from rlctl_agents.manager.web.rendering import ENGINE, TEMPLATES
from rlctl_agents.runtime.http_server import Response

REFRESH_S = 5
STALE_S = 10.0
"""Figures older than this are not what the run is like now: the manager's main loop hangs."""
MOST_ROWS = 50
MOST_POINTS, MARGIN = 240, 4
"""Of a curve: points, and pixels around it."""

STATES: Mapping[str, tuple[str, str, str]] = {
    "running": ("▶", "running", "#1a7f37"),
    "starting": ("…", "starting", "#57606a"),
    "problem": ("!", "running, with problems", "#bc4c00"),
    "stale": ("?", "figures are old", "#bc4c00"),
    "finished": ("✓", "finished", "#0969da"),
}
"""State -> sign, words, colour: never colour alone."""

STYLE = (TEMPLATES / "status.css").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """Status as pages and watchers show it; replaced as a whole."""

    status: Mapping[str, Any] = field(default_factory=dict)
    encoded: bytes = b""
    generations: Sequence[Mapping[str, Any]] = ()  # committed, newest first
    stale_s: float = STALE_S  # when it is so old, the next one should have come long ago

    @classmethod
    def of(
        cls, status: Mapping[str, Any], generations: Sequence[Mapping[str, Any]] = (), every_s: float = 0.0
    ) -> Shown:
        """A status as it is now.

        Args:
            every_s: until the next one.
        """
        return cls(status, msgspec.json.encode(status) + b"\n", generations, max(STALE_S, 3.0 * every_s))


def pages(shown: Callable[[], Shown], unix: Callable[[], float] = time.time) -> dict[str, Callable[[], Response]]:
    """Pages of a manager's probe listener beside those of every process."""

    def html() -> Response:
        now = shown()
        text = page(now.status, now.generations, unix(), now.stale_s)
        return Response(200 if now.status else 503, text.encode(), "text/html; charset=utf-8", HEADERS)

    def json() -> Response:
        encoded = shown().encoded
        return Response(200, encoded) if encoded else Response.refusal(503, "the manager has only just started")

    return {"/": html, "/status.json": json}


def state_of(status: Mapping[str, Any], now: float, stale_s: float = STALE_S) -> str:
    """One of STATES."""
    if status.get("phase") == "finished":
        return "finished"
    if status and now - status["time"] >= stale_s:
        return "stale"
    if status.get("problems"):
        return "problem"
    return "running" if status.get("phase") == "running" else "starting"


def page(
    status: Mapping[str, Any], generations: Sequence[Mapping[str, Any]], now: float, stale_s: float = STALE_S
) -> str:
    """The whole page.

    Args:
        status: as at /status.json; empty: there is none yet.
        generations: committed ones, newest first.
        now: unix time.
        stale_s: figures so old are not what the run is like now.
    """
    state = state_of(status, now, stale_s)
    sign, words, colour = STATES[state]
    shown: dict[str, Any] = {}
    if "members" in status:
        silent = [(role, one) for role, entries in status["roles"].items() for one in entries if one.get("silent")]
        shown = {
            "curve": curve_of([(steps, mean) for steps, _, mean in status["history"] if mean is not None]),
            "silent": silent[:MOST_ROWS],
            "more_silent": sum(one["silent"] for one in status["members"].values()) - len(silent[:MOST_ROWS]),
        }
    return ENGINE.get_template("status.html.j2").render(
        state=state, sign=sign, words=words, colour=colour, run=status.get("run", "run"), status=status, now=now,
        generations=generations[:MOST_ROWS], style=Markup(STYLE), refresh_s=REFRESH_S, most_rows=MOST_ROWS, **shown,
    )  # fmt: skip


class Curve(NamedTuple):
    """A line through points, and what they say."""

    of: int
    """Points before they were thinned out."""
    first: tuple[float, float]
    last: tuple[float, float]
    low: float
    high: float
    line: list[tuple[float, float]]
    """Pixels from the upper left corner."""
    width: int = 600
    height: int = 120


def curve_of(points: Sequence[tuple[float, float]]) -> Curve | None:
    """A curve of few of many points, the first and the last always; None for fewer than two."""
    if len(points) < 2:
        return None
    steps = min(len(points), MOST_POINTS) - 1
    shown = [points[round(at * (len(points) - 1) / steps)] for at in range(steps + 1)]
    xs, ys = zip(*points, strict=True)
    size = Curve._field_defaults
    across, up = _scale(min(xs), max(xs), size["width"]), _scale(min(ys), max(ys), size["height"])
    line = [(round(across(x), 1), round(size["height"] - up(y), 1)) for x, y in shown]
    return Curve(len(points), points[0], points[-1], min(ys), max(ys), line)


def _scale(low: float, high: float, pixels: int) -> Callable[[float], float]:
    """From values to pixels between two margins; where all values are one, to the middle."""
    factor = (pixels - 2 * MARGIN) / (high - low) if high > low else 0.0
    return lambda value: MARGIN + (value - low) * factor if factor else pixels / 2
