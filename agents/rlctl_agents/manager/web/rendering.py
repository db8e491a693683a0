"""Template engine of the manager's pages: values are escaped, long texts are cut, and a missing name is an error."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlctl.spec.words import clock, duration

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 400
"""Characters of a text, at most: it may be from any process."""


def _cut(value: Any) -> Any:
    too_long = isinstance(value, str) and not isinstance(value, Markup) and len(value) > LONGEST
    return f"{value[:LONGEST]}..." if too_long else value


ENGINE = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_cut,
    auto_reload=False,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def whole(value: float) -> str:
    return f"{int(value):,}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"


def moment(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))


def cores(busy: float | None) -> str:
    return "-" if busy is None else f"{busy:.2f} cores"


def mebibytes(size: float | None) -> str:
    return "-" if not size else f"{size / 2**20:,.0f} MiB"


ENGINE.filters |= {
    "cores": cores,
    "mebibytes": mebibytes,
    "clock": clock,
    "number": number,
    "whole": whole,
    "percent": percent,
    "duration": duration,
    "moment": moment,
}
