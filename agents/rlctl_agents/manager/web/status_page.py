"""The status of a run as a page for people: read-only, complete without scripts, nothing from elsewhere.

It is shown on the manager's probe listener. Whoever wants figures reads the same at /status.json.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

import msgspec

from rlctl_agents.manager.web.sparkline import svg
from rlctl_agents.runtime.http_server import Response

REFRESH_S = 5
STALE_S = 10.0
"""Figures older than this are not what the run is like now: the manager's main loop hangs."""
MOST_ROWS = 50
LONGEST = 400
"""Characters of a text that a process has said."""

STATES: Mapping[str, tuple[str, str, str]] = {
    "running": ("▶", "running", "#1a7f37"),
    "starting": ("…", "starting", "#57606a"),
    "problem": ("!", "running, with problems", "#bc4c00"),
    "stale": ("?", "figures are old", "#bc4c00"),
    "finished": ("✓", "finished", "#0969da"),
}
"""State -> sign, words, colour: never colour alone."""

STYLE = """
:root{color-scheme:light dark;--fg:#1f2328;--bg:#fff;--dim:#59636e;--line:#d1d9e0;--bad:#a40e26;--mark:#0969da}
@media(prefers-color-scheme:dark){
:root{--fg:#e6edf3;--bg:#0d1117;--dim:#9198a1;--line:#3d444d;--bad:#ff8182;--mark:#58a6ff}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
main{max-width:64rem;margin:1.5rem auto;padding:0 1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .4rem}
.verdict{font-size:1.15rem;margin:.4rem 0}.dim{color:var(--dim)}.stale,.bad{color:var(--bad);font-weight:600}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;vertical-align:top;overflow-wrap:anywhere}
th,td{padding:.2rem .8rem .2rem 0;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600}td.n,th.n{text-align:right}
.scroll{overflow-x:auto}code{font:13px/1.4 ui-monospace,monospace}
.curve{width:100%;height:7.5rem;border-bottom:1px solid var(--line)}
.curve polyline{fill:none;stroke:var(--mark);stroke-width:2;vector-effect:non-scaling-stroke}
"""
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
    """What watchers are told; replaced as a whole."""

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
    """What the probe listener of a manager shows besides."""

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
    run = str(status.get("run", "run"))
    icon = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="15" fill="{colour}"/>'
        f'<text x="16" y="23" font-size="20" text-anchor="middle" fill="#fff">{sign}</text></svg>'
    )
    nothing = "The last figures of the run cannot be read." if status else "The manager has only just started."
    whole = "members" in status
    sections = _sections(status, generations, state, now) if whole else [f"<p>{nothing}</p>"]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{sign} {_text(run)}: {words}</title>",
            f'<link rel="icon" href="data:image/svg+xml,{quote(icon)}">',
            f'<meta http-equiv="refresh" content="{REFRESH_S}">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<style>{STYLE}</style></head><body><main>",
            f'<h1><span aria-hidden="true">{sign}</span> {_text(run)}: {words}</h1>',
            *sections,
            "</main></body></html>",
            "",
        ]
    )


def _sections(
    status: Mapping[str, Any], generations: Sequence[Mapping[str, Any]], state: str, now: float
) -> Iterable[str]:
    if state == "stale":
        yield '<p class="stale">The manager answers, but has not brought its figures up to date.</p>'
    met = status["stop"]["met"]
    verdict = f"finished: {met}" if state == "finished" and met else status["verdict"]["text"]
    yield f'<p class="verdict">{_text(verdict)}</p>'
    if suggest := status["verdict"].get("suggest"):
        yield f"<p>next: <code>{_text(suggest)}</code></p>"
    if problems := status["problems"]:
        yield "<h2>Problems</h2>"
        yield _table(
            ("what", "next"), [(_text(one["text"]), f"<code>{_text(one.get('next', ''))}</code>") for one in problems]
        )
    yield "<h2>Learning</h2>"
    yield from _learning(status)
    yield "<h2>Speed</h2>"
    yield _table(("", "a second", "in all"), _speed(status), numbers=(1, 2))
    yield from _roles(status)
    yield "<h2>Checkpoints</h2>"
    yield from _checkpoints(status, generations, now)
    age_s = max(now - status["time"], 0.0)
    yield (
        f'<p class="dim">Last updated <time datetime="{_moment(status["time"])}" title="{_moment(status["time"])}">'
        f"{_duration(age_s)} ago</time>; the page renews itself every {REFRESH_S} s. Run {_text(status['uid'][:8])}, "
        f"term {_whole(status['term'])}, {_duration(status['wall_s'])} in all. "
        '<a href="status.json">status.json</a></p>'
    )


def _learning(status: Mapping[str, Any]) -> Iterable[str]:
    evaluation, history = status["evaluation"], status["history"]
    points = [(float(rows), float(mean)) for rows, _, mean in history if mean is not None]
    if evaluation is None:
        yield '<p class="dim">Nothing has been evaluated yet.</p>'
    else:
        yield (
            f"<p>Mean return <strong>{_number(evaluation['mean'])}</strong> ± {_number(evaluation['std'])} over "
            f"{_whole(evaluation['episodes'])} episodes, {_text(evaluation['mode'])}, lowest "
            f"{_number(evaluation['min'])}, highest {_number(evaluation['max'])}</p>"
        )
    if len(points) > 1:
        first, last = points[0], points[-1]
        yield svg(points, f"Mean return of {len(points)} evaluations, from {first[1]:.4g} to {last[1]:.4g}")
        means = [mean for _, mean in points]
        yield (
            f'<p class="dim">Mean returns of evaluations, {_number(min(means))} to {_number(max(means))}, over rows '
            f"learned from, {_whole(first[0])} to {_whole(last[0])}.</p>"
        )
    if (cadence := status.get("cadence")) and cadence["every_s"] is not None:
        yield (
            f'<p class="dim">One evaluation each {_duration(cadence["every_s"])}, '
            f"{_percent(cadence['cpu_share'])} of the run's CPU.</p>"
        )
    rows = [(f"goal: {_text(name)}", _goal(name, goal)) for name, goal in status["stop"]["conditions"].items()]
    if training := status["train_return"]:
        rows.append(("training", f"{_number(training['mean'])} over {_whole(training['episodes'])} episodes"))
    lag = status["lag"]
    if lag["mean"] is not None:
        text = f"mean {_number(lag['mean'])}, p95 {_number(lag['p95'])}, max {_number(lag['max'])} versions"
        rows.append(("lag", text))
    for name, policy in list(status["policies"].items())[:MOST_ROWS]:
        ledger = policy["ledger"]
        balanced = "balanced" if ledger["balanced"] else '<span class="bad">not balanced</span>'
        lost = f"{_whole(ledger['stale'])} stale, {_whole(ledger['lost'])} lost"
        if discarded := ledger.get("discarded"):
            lost = f"{_whole(discarded)} discarded with a learner that died, {lost}"
        rows.append((f"rows of {_text(name)}", f"{_whole(ledger['consumed'])} consumed, {lost}, {balanced}"))
    yield _table(("", ""), rows)


def _speed(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rates, totals = status["throughput"], status["totals"]
    rows = [
        (name.replace("_", " "), _number(rates.get(f"{name}_per_s")), _whole(total)) for name, total in totals.items()
    ]
    verdict = status["verdict"]
    return [
        *rows,
        ("learner waits for data", _percent(verdict["learner_waits_data"]), ""),
        ("actors wait for credit", _percent(verdict["actor_waits_credit"]), ""),
        ("actors wait for models", _percent(verdict["actor_waits_model"]), ""),
    ]


def _roles(status: Mapping[str, Any]) -> Iterable[str]:
    cpu_s, members = status["cpu_s"], status["members"]
    yield "<h2>Roles</h2>"
    yield _table(
        ("role", "joined", "silent", "CPU"),
        [
            (_text(role), _whole(one["live"]), _bad(one["silent"]), _duration(cpu_s.get(role, 0.0)))
            for role, one in members.items()
        ],
        numbers=(1, 2, 3),
    )
    silent = [(role, entry) for role, entries in status["roles"].items() for entry in entries if entry.get("silent")]
    if silent:
        more = sum(one["silent"] for one in members.values()) - len(silent[:MOST_ROWS])
        yield _table(
            ("silent", "for", "joined", "model"),
            [
                (
                    f"{_text(role)}/{_whole(entry['index'])}",
                    _duration(entry["silent_s"]),
                    f"{_duration(entry['age_s'])} ago",
                    _text(f"{entry['model']['policy']} v{entry['model']['version']}") if entry["model"] else "-",
                )
                for role, entry in silent[:MOST_ROWS]
            ],
        )
        if more > 0:
            yield f'<p class="dim">and {_whole(more)} more</p>'


def _checkpoints(status: Mapping[str, Any], generations: Sequence[Mapping[str, Any]], now: float) -> Iterable[str]:
    if resumed := status["resumed"]:
        yield f"<p>{_text(resumed['text'])}</p>"
    if not generations:
        yield '<p class="dim">Nothing has been saved yet.</p>'
        return
    yield _table(
        ("generation", "policy", "version", "rows", "saved"),
        [
            (
                _whole(one["number"]),
                _text(one["policy"]),
                _whole(one["ref"]["version"]),
                _whole(one["rows"]),
                f'<time datetime="{_moment(one["created"])}" title="{_moment(one["created"])}">'
                f"{_duration(max(now - one['created'], 0.0))} ago</time>",
            )
            for one in generations[:MOST_ROWS]
        ],
        numbers=(0, 2, 3),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="n"' if at in numbers else "" for at in range(len(row))]
        return "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def _text(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _goal(name: str, goal: object) -> str:
    if not isinstance(goal, int | float):
        return _text(goal)
    return _duration(goal) if name == "wall_time" else _number(goal)


def _whole(value: float) -> str:
    return f"{int(value):,}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"


def _bad(count: int) -> str:
    return f'<span class="bad">{_whole(count)}</span>' if count else "0"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = divmod(int(seconds) // 60, 60)[::-1]
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _moment(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))
