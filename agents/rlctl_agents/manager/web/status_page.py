"""Status of a run as a web page: read-only, complete without scripts, without external resources.

It is shown on the manager's probe listener. Programs read the same figures at /status.json.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from rlctl_agents.manager.evaluation.films import FILE
from rlctl_agents.manager.status.history import EMPTY, HistoryView
from rlctl_agents.manager.web.panels import PanelCache, Panels
from rlctl_agents.manager.web.rendering import ENGINE, TEMPLATES
from rlctl_agents.manager.web.stored_files import piece
from rlctl_agents.runtime.http_server import Response
from rlctl_agents.types.control import MAX_FILM_BYTES

REFRESH_S, FINISHED_REFRESH_S = 5, 300
STALE_S = 10.0
"""Age in seconds from which figures are stale: the manager's main loop hangs."""
MOST_ROWS = 50
MOST_GENERATIONS, MOST_LINES, MOST_MARKS = 20, 20, 10
"""Generations, log lines and events that are shown: the newest."""

STATES: Mapping[str, tuple[str, str, str]] = {
    "running": ("▶", "running", "#1a7f37"),
    "starting": ("…", "starting", "#57606a"),
    "problem": ("!", "running, with problems", "#bc4c00"),
    "stale": ("?", "figures are old", "#bc4c00"),
    "finished": ("✓", "finished", "#0969da"),
    "failed": ("✗", "failed", "#cf222e"),
    "over": ("■", "over", "#57606a"),
}
"""State -> sign, words, colour: never colour alone."""
ENDED = ("finished", "failed", "over")
"""States of a run that makes no progress any more."""

STYLE = (TEMPLATES / "status.css").read_text(encoding="utf-8")
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_SAFE = (("X-Content-Type-Options", "nosniff"), ("Referrer-Policy", "no-referrer"))
HEADERS = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
    ),
    *_SAFE,
    ("Cache-Control", "no-store"),
)
FILM_HEADERS = (
    ("Content-Security-Policy", "default-src 'none'; sandbox"),
    *_SAFE,
    ("Cache-Control", "private, max-age=86400, immutable"),  # no two episodes have one name
)


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Status as pages and watchers show it; replaced as a whole."""

    status: Mapping[str, Any] = field(default_factory=dict)
    encoded: bytes = b""
    generations: Sequence[Mapping[str, Any]] = ()  # committed, newest first
    stale_s: float = STALE_S  # age from which the status is stale
    history: HistoryView = EMPTY

    @classmethod
    def of(
        cls,
        status: Mapping[str, Any],
        generations: Sequence[Mapping[str, Any]] = (),
        every_s: float = 0.0,
        history: HistoryView = EMPTY,
    ) -> StatusSnapshot:
        """Snapshot of a status.

        Args:
            every_s: seconds until the next one.
        """
        return cls(status, msgspec.json.encode(status) + b"\n", generations, max(STALE_S, 3.0 * every_s), history)


def pages(
    shown: Callable[[], StatusSnapshot],
    unix: Callable[[], float] = time.time,
    lines: Callable[[], Sequence[str]] = tuple,
    episodes: Path | None = None,
) -> dict[str, Callable[[str], Response]]:
    """Pages of a manager's probe listener beside those of every process: path -> handler.

    Args:
        lines: the newest log lines of all processes, oldest first.
        episodes: folder of the recorded episodes.
    """
    cache = PanelCache()

    def html(_: str) -> Response:
        now = shown()
        found = now.status.get("evaluation") or {}
        panels = cache.of(now.history, str(found.get("mode", "")))
        text = page(now.status, now.generations, unix(), now.stale_s, now.history, panels, lines())
        return Response(200 if now.status else 503, text.encode(), "text/html; charset=utf-8", HEADERS)

    def twin(_: str) -> Response:
        encoded = shown().encoded
        return Response(200, encoded) if encoded else Response.refusal(503, "the manager has only just started")

    def film(name: str) -> Response:
        try:
            if episodes is None or not FILE.fullmatch(name):
                raise FileNotFoundError(name)
            return Response(200, piece(episodes / name, 0, MAX_FILM_BYTES), "image/gif", FILM_HEADERS)
        except OSError:
            return Response.refusal(404, "there is no such episode, or not any more")

    return {"/": html, "/status.json": twin, "/episodes/": film}


def state_of(status: Mapping[str, Any], now: float, stale_s: float = STALE_S) -> str:
    """State of a run, one of STATES."""
    if status.get("phase") in ENDED:
        return str(status["phase"])
    if status and now - status["time"] >= stale_s:
        return "stale"
    if status.get("problems"):
        return "problem"
    return "running" if status.get("phase") == "running" else "starting"


def page(
    status: Mapping[str, Any],
    generations: Sequence[Mapping[str, Any]],
    now: float,
    stale_s: float = STALE_S,
    history: HistoryView = EMPTY,
    panels: Panels | None = None,
    lines: Sequence[str] = (),
) -> str:
    """Render the whole page.

    Args:
        status: as at /status.json; empty: there is none yet.
        generations: committed ones, newest first.
        now: Unix time.
        stale_s: age in seconds from which figures are stale.
        history: history of the run, for its marks.
        panels: charts of the history.
        lines: log lines of all processes, oldest first.
    """
    state = state_of(status, now, stale_s)
    films = status.get("recordings", [])
    sign, words, colour = STATES[state]
    shown: dict[str, Any] = {}
    if "members" in status:
        known = [(role, one) for role, entries in status["roles"].items() for one in entries]
        processes = sorted(known, key=lambda pair: not pair[1].get("silent"))[:MOST_ROWS]
        shown = {
            "processes": processes,
            "more": sum(one["live"] for one in status["members"].values()) - len(processes),
            "more_silent": sum(one["silent"] for one in status["members"].values())
            - sum(bool(one.get("silent")) for _, one in processes),
            "marks": [mark for mark in reversed(history.marks) if mark.kind != "generation"][:MOST_MARKS],
            "lines": sorted(filter(None, map(log_line, lines)), key=itemgetter(0))[-MOST_LINES:],
            "panels": panels,
            "films": films,
        }
    return ENGINE.get_template("status.html.j2").render(
        state=state, sign=sign, words=words, colour=colour, run=status.get("run", "run"), status=status, now=now,
        generations=generations[:MOST_GENERATIONS], style=Markup(STYLE), refresh_s=_refresh_s(state, films),
        most_rows=MOST_ROWS, ended=state in ENDED, **shown,
    )  # fmt: skip


def _refresh_s(state: str, films: Sequence[Mapping[str, Any]]) -> int:
    """Seconds until the page reloads: a film then starts anew, so not before it has ended."""
    if state in ENDED:
        return FINISHED_REFRESH_S
    return max([REFRESH_S, *(math.ceil(float(one["seconds"])) + 1 for one in films[:1])])


def log_line(text: str) -> tuple[str, str, str, str] | None:
    """Time, level, process and message of a log line of any process; None: it is not a log line."""
    try:
        said = json.loads(text)
        told = [str(said[key]) for key in ("ts", "level", "id", "msg")]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return told[0], told[1], told[2], " ".join(told[3].split())
