"""Pages as text: every value passes `shown`, nothing else becomes HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from rlctl_ci.forges.base import text as one_line
from rlctl_ci.states import State

MARKS: Final[dict[State, tuple[str, str]]] = {
    "succeeded": ("✓", "good"), "failed": ("✗", "bad"), "rolled_back": ("↺", "bad"), "cancelled": ("–", "none"),
    "ignored": ("·", "none"), "superseded": ("»", "none"), "interrupted": ("!", "warn"), "received": ("…", "busy"),
    "queued": ("…", "busy"), "fetching": ("▸", "busy"), "building": ("▸", "busy"), "pushing": ("▸", "busy"),
    "deploying": ("▸", "busy"), "verifying": ("▸", "busy"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already."""

    text: str


def shown(value: object) -> str:
    """A value inside an element or a quoted attribute."""
    return value.text if isinstance(value, Html) else escape(str(value), quote=True)


def tag(element: str, /, *inside: object, **attributes: object) -> Html:
    """An element; `class_` and `data_x` stand for `class` and `data-x`, None leaves an attribute out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{shown(value)}"' if value is not True else f" {key}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in ("input", "link", "meta", "br"):
        return Html(f"<{element}{said}>")
    return Html(f"<{element}{said}>{''.join(map(shown, inside))}</{element}>")


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(map(shown, parts)))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> Html:
    """Rows of cells; a cell that is a `td` already stays so."""
    if not rows:
        return tag("p", empty, class_="soft")
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    body = (
        tag(
            "tr", *(cell if isinstance(cell, Html) and cell.text.startswith("<td") else tag("td", cell) for cell in row)
        )
        for row in rows
    )
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def state(name: str) -> Html:
    """A sign, a word and a colour."""
    mark, kind = MARKS[name]  # type: ignore[index]
    return tag("span", f"{mark} {name.replace('_', ' ')}", class_=f"state {kind}")


def ago(at: float, now: float) -> Html:
    """`3 min ago`, with the absolute time to be pointed at."""
    past = max(0, int(now - at))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            words = f"{past // size} {unit} ago"
            break
    else:
        words = f"{past} s ago"
    return tag("time", words, datetime=stamp(at), title=stamp(at))


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def line(value: str) -> str:
    """What a stranger wrote."""
    return one_line(value)


def document(title: str, body: Iterable[object], *, live: str | None, icon: str, who: object) -> str:
    """The whole page."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("link", rel="icon", href=f"/static/{icon}.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/static/style.css"),
        tag("link", rel="alternate", href="/feed.atom", type="application/atom+xml", title="Builds"),
        Html('<script src="/static/live.js" defer></script>'),
    )
    top = tag("header", tag("h1", tag("a", "rlctl ci", href="/")), who)
    stale = tag("p", "The service does not answer: what is shown is old.", id="stale", class_="banner", hidden=True)
    page = tag("html", head, tag("body", top, stale, *body), lang="en", data_live=live)
    return f"<!doctype html>{page.text}"
