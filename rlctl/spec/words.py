"""How values and choices read in a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Path = tuple[str | int, ...]
"""Keys from the top of a spec to a value; an entry of a list is its number from 0."""


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
