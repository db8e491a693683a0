"""Values, times and choices as words of a message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

Path = tuple[str | int, ...]
"""Keys from the top of a spec to a value; an entry of a list is its number from 0."""

CLASS_PATH: Final = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
"""Pattern of `package.module:Class`."""

YES_NO: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Words of YAML 1.1 that are text in YAML 1.2 -> what is written today."""
MAX_PROBLEMS: Final = 1000
"""Problems reported for one file, at most: more do not help a person, and the file may not be trusted."""

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c|$)"  # strings: titles, clipboard
    r"|\x1b[ -/]*[0-~]"  # the other escapes
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # every other control character but tab and newline
    r"|[\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"  # what reorders, or is not seen
    r"|[\ud800-\udfff\U000e0000-\U000e007f]",
    re.DOTALL,
)


def plain(text: str) -> str:
    """Text without terminal escapes, control characters (but tab and newline), and invisible or reordering ones."""
    return _ESCAPE.sub("", text)


def printable(text: str) -> str:
    """Text with everything written out that a terminal would act on."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def show(value: object) -> str:
    """A value as one writes it in YAML, short enough for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return f"'{printable(text)}'"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def number(value: float) -> str:
    """A number without a needless fraction: 2 for 2.0, 0.5 for 0.5."""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


_AGES = ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h"), (1000 * 86_400, 86_400, "d"))
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration(seconds: float, *, short: bool = False) -> str:
    """Duration in one unit: 45 s, 12 min, 3 h, 2 d, 3 y; - when there is none.

    Args:
        short: at most four characters, as kubectl prints an age: 45s, 12m.
    """
    if not 0 <= seconds < float("inf"):
        return "-"
    size, unit = next(((size, unit) for limit, size, unit in _AGES if seconds < limit), (365 * 86_400, "y"))
    return f"{int(seconds // size)}{unit[0]}" if short else f"{int(seconds // size)} {unit}"


def clock(seconds: float) -> str:
    """Duration in hours, minutes and seconds: 00:03:12, 26:00:00."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def seconds_of(text: str) -> float | None:
    """Duration in seconds of "30s", "5m", "1h30m" or "500ms"; None: the text is no duration."""
    if not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhd]))+", text):
        return None
    parts = re.findall(r"([0-9.]+)(ms|[smhd])", text)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


def either(options: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return options[0] if len(options) == 1 else ", ".join(options[:-1]) + f" or {options[-1]}"


def both(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"


def closest(name: str, options: Iterable[str], likeness: float = 0.6) -> str | None:
    """The option that `name` was probably meant to be, or None. Likeness is from 0 to 1."""
    from difflib import get_close_matches  # only needed once something is wrong

    found = get_close_matches(name.lower(), list(options), n=1, cutoff=likeness)
    return found[0] if found else None


def dotted(path: Path) -> str:
    """`roles.actor.replicas`"""
    return printable(".".join(map(str, path)))
