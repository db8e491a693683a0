"""Pages, feed and badge as text: every value is escaped and one line, a missing name is an error."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlctl.spec.words import duration
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
"""State -> sign and colour: never colour alone."""
LONGEST: Final = 4096
"""Characters of any value, at most; untrusted text is cut earlier, by the filter `line`."""


def _harmless(value: Any) -> Any:
    return one_line(value, LONGEST) if isinstance(value, str) and not isinstance(value, Markup) else value


def stamp(at: float) -> str:
    """Unix time as RFC 3339."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def render(template: str, **values: object) -> str:
    """Render a document.

    Args:
        template: in templates/.
        values: escaped where they are put in; `Markup` alone is taken as it is.
    """
    return _ENGINE.get_template(template).render(values)


_ENGINE = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_harmless,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENGINE.filters |= {
    "stamp": stamp,
    "duration": duration,
    "line": one_line,
    "words": lambda name: name.replace("_", " "),
}
_ENGINE.globals |= {"MARKS": MARKS}
