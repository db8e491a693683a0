"""Pages as text: every value passes `shown`, nothing else becomes HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from rlctl_ci.forges.base import text as one_line

MARKS: Final[dict[str, tuple[str, str]]] = {
    "succeeded": ("✓", "good"), "failed": ("✗", "bad"), "rolled_back": ("↺", "bad"), "cancelled": ("–", "none"),
    "ignored": ("·", "none"), "superseded": ("»", "none"), "interrupted": ("!", "warn"), "received": ("…", "busy"),
    "queued": ("…", "busy"), "fetching": ("▸", "busy"), "building": ("▸", "busy"), "pushing": ("▸", "busy"),
    "deploying": ("▸", "busy"), "verifying": ("▸", "busy"),
    # of deployments
    "planned": ("…", "busy"), "applied": ("▸", "busy"), "verified": ("✓", "good"),
    "rolling_back": ("▸", "busy"),
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


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str, kind: str = "") -> Html:
    """Rows of cells; a cell knows its column by its class, and by its name where there is no room for columns."""
    if not rows:
        return tag("p", empty, class_="soft")
    head = tag("tr", *(tag("th", name, scope="col") for name in heads))
    body = (
        tag(
            "tr",
            *(
                tag("td", cell, class_=f"c-{name.lower() or 'do'}", data_head=name)
                for name, cell in zip(heads, row, strict=True)
            ),
        )
        for row in rows
    )
    return tag("table", tag("thead", head), tag("tbody", *body), class_=f"list {kind}".strip())


def state(name: str, *, past: bool = False) -> Html:
    """A sign, a word and a colour; a step that is past does not look as if it were under way."""
    mark, kind = MARKS[name]
    if past and kind == "busy":
        mark, kind = "✓", "none"
    return tag("span", tag("i", mark, aria_hidden="true"), f" {name.replace('_', ' ')}", class_=f"state {kind}")


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


def clip(value: str, kind: str = "") -> Html:
    """Two lines of what may be many; all of it where one points, and on the page of the build."""
    return tag("span", line(value), class_=f"clip {kind}".strip(), title=line(value))


def line(value: str) -> str:
    """What a stranger wrote."""
    return one_line(value)


def document(
    title: str, body: Iterable[object], *, live: str | None, icon: str, who: object, trail: Sequence[object] = ()
) -> str:
    """The whole page.

    Args:
        title: of the window.
        body: what is below the header.
        live: where to hear that the page has changed; None: it will not.
        icon: a name of pages.ICONS.
        who: looks at it.
        trail: where the page is, from the project on.
    """
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
    path = [tag("a", "rlctl ci", href="/", class_="home"), *trail]
    top = tag("header", tag("nav", join(path, '<span class="soft">/</span>'), aria_label="Where you are"), who)
    stale = tag("p", "The service does not answer: what is shown is old.", id="stale", class_="banner", hidden=True)
    page = tag("html", head, tag("body", top, tag("main", stale, *body)), lang="en", data_live=live)
    return f"<!doctype html>{page.text}"


def notice(message: str, hint: str) -> str:
    """A page that only says why there is no other."""
    body = [tag("h1", f"{message[:1].upper()}{message[1:]}"), *([tag("p", hint, class_="soft")] if hint else []),
            tag("p", tag("a", "To the overview", href="/"))]  # fmt: skip
    return document(f"{message} · rlctl ci", body, live=None, icon="none", who="")
