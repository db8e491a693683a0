"""Values as text for a terminal: durations, counts, tables, curves; without control characters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from rlctl.errors import UsageError
from rlctl.spec.words import clock as clock
from rlctl.spec.words import duration, seconds_of
from rlctl.spec.words import plain as plain

_BARS = "▁▂▃▄▅▆▇█"


def age(seconds: float) -> str:
    """Duration for a column: at most four characters."""
    return duration(seconds, short=True)


def count(value: float | None) -> str:
    """Three digits and a unit: 950, 14.2k, 1.20M; - when there is none."""
    if value is None:
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.{max(0, 2 - len(str(int(abs(scaled)))) + 1)}f}{unit}"
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:.1f}"


def whole(value: float | None) -> str:
    """Every digit, in groups: 1,204,000; - when there is none."""
    return "-" if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A measured value with at most four significant places: 487.3, 21, -20.9; - when there is none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 9_999.5 else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share of 0 to 1 in per cent: 61 %; - when there is none."""
    return "-" if share is None else f"{100 * share:.0f} %"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last `width` values as bars from the smallest to the largest; empty without values, gaps are left out."""
    shown = [value for value in values if value is not None and math.isfinite(value)][-width:] if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return _BARS[0] * len(shown)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in shown)


def table(rows: Iterable[Sequence[str]], *, indent: str = "") -> list[str]:
    """Rows as aligned lines without trailing blanks; the first row may be a heading."""
    cells = [[plain(cell).replace("\n", " ") for cell in row] for row in rows]
    columns = max((len(row) for row in cells), default=0)
    widths = [max((len(row[at]) for row in cells if at < len(row)), default=0) for at in range(columns)]
    return [
        (indent + "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))).rstrip()
        for row in cells
    ]


def moment(text: str, *, now: datetime) -> datetime:
    """A point in time from "5s", "2m", "3h", "1d" (ago) or RFC 3339; without a zone it is local.

    Raises:
        ValueError: neither.
    """
    try:
        ago_s = seconds_of(text)
        if ago_s is not None:
            return now - timedelta(seconds=ago_s)
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is before or after all times that can be written") from None
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a time ago (5s, 2m, 3h, 1d) nor RFC 3339 (2026-11-21T04:00:00Z)"
        ) from None


def span(text: str, option: str) -> float:
    """Duration in seconds that an option gives: "30", "5s", "2m", "1h30m", "1d"; 0 is allowed.

    Raises:
        UsageError: not a duration.
    """
    length_s = float(text) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text) else seconds_of(text)
    if length_s is None:
        raise UsageError(f"{option}: {text!r} is not a length of time, as in 30s, 10m or 1h30m")
    return length_s


def stamp(time: datetime, *, utc: bool) -> str:
    """A time of day to the millisecond, in the local zone unless `utc`."""
    local = time.astimezone(UTC if utc else None)
    return local.strftime("%H:%M:%S") + f".{local.microsecond // 1000:03d}" + ("Z" if utc else "")


def moment_of(time: datetime | float, *, utc: bool) -> str:
    """Date and time to the second, in the local zone unless `utc`; a number is seconds since the epoch."""
    time = time if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)
    return time.astimezone(UTC if utc else None).strftime("%Y-%m-%d %H:%M:%S") + ("Z" if utc else "")


def rfc3339(time: datetime) -> str:
    """RFC 3339 text in UTC, to the microsecond."""
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
