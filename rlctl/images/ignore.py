"""Patterns of a .dockerignore, by Docker's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlctl.errors import UsageError
from rlctl.images.bounded import read_bounded

MAX_BYTES: Final = 128 << 10
MAX_PATTERNS: Final = 1000
"""Patterns of a file, at most: every file of a project is compared with each of them."""
MAX_PATTERN: Final = 1000
"""Characters of a pattern, at most."""
_NAMED: Final = 20
"""Faults named in an error, at most: a file that is no .dockerignore has thousands."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern, matched name by name in time that grows with the lengths of pattern and path alone.

    Args:
        out: True: excludes; False (`!`): includes again.
        names: expression for each name of a path; None (`**`): any folders, or at the end anything in them.
    """

    out: bool
    names: tuple[re.Pattern[str] | None, ...]

    def covers(self, parts: Sequence[str]) -> bool:
        """Whether the pattern matches a path, or a folder around it."""
        last = len(self.names) - 1
        places = self._after({0})
        for part in parts:
            found = set()
            for place in places:
                name = self.names[place]
                if name is None and place < last:
                    found.add(place)
                elif name is None or name.fullmatch(part):
                    found.add(place + 1)
            if last + 1 in found:
                return True
            places = self._after(found)
        return False

    def _after(self, places: set[int]) -> set[int]:
        """Add the positions behind each `**`, which may match no folder."""
        for place in sorted(places):
            while place < len(self.names) - 1 and self.names[place] is None:
                place += 1
                places.add(place)
        return places


@dataclass(frozen=True, slots=True)
class Ignore:
    """Patterns of one .dockerignore; the last match decides."""

    rules: tuple[Rule, ...]

    @classmethod
    def read(cls, path: Path) -> Ignore:
        """Read the patterns of a file, which need not be trusted; none if there is no file.

        Raises:
            UsageError: it is longer than MAX_BYTES, or has more or longer patterns than a project needs.
            OSError: it cannot be read.
        """
        if not path.is_file():
            return cls(())
        lines = read_bounded(path, MAX_BYTES).decode(errors="replace").splitlines()
        patterns = [(number, text) for number, line in enumerate(lines, 1) if (text := _pattern(line))]
        faults = [
            f"{path}:{number}: a pattern of {len(text)} characters, and at most {MAX_PATTERN} are read"
            for number, text in patterns if len(text) > MAX_PATTERN
        ]  # fmt: skip
        if len(patterns) > MAX_PATTERNS:
            number = patterns[MAX_PATTERNS][0]
            faults.append(f"{path}:{number}: {len(patterns)} patterns, and at most {MAX_PATTERNS} are read")
        if faults:
            more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
            raise UsageError(
                "; ".join(faults[:_NAMED]) + more, hint="name folders in place of files: data/ leaves out all in it"
            )
        return cls.parse("\n".join(text for _, text in patterns))

    @classmethod
    def parse(cls, text: str) -> Ignore:
        """Parse lines of patterns: `*` within a name, `**` over folders, `!` includes again, `#` begins a comment."""
        rules = []
        for pattern in filter(None, map(_pattern, text.splitlines())):
            out = not pattern.startswith("!")
            names = tuple(_names(pattern.removeprefix("!").strip()))
            if names:
                rules.append(Rule(out, names))
        return cls(tuple(rules))

    def leaves_out(self, path: str) -> bool:
        """Whether a file is left out.

        Args:
            path: relative to the folder of the .dockerignore, with `/`.
        """
        parts = path.split("/")
        out = False
        for rule in self.rules:
            if rule.out != out and rule.covers(parts):
                out = rule.out
        return out

    @property
    def takes_back(self) -> bool:
        """Whether a file may be included although its folder is left out."""
        return any(not rule.out for rule in self.rules)


def _pattern(line: str) -> str:
    """Pattern of a line; empty for a comment."""
    text = line.strip()
    return "" if text.startswith("#") else text


def _names(pattern: str) -> Iterator[re.Pattern[str] | None]:
    """Names of a pattern, without `./`, `//` and slashes at the ends, which mean nothing here. `**x` is `**/*x`; `x**`
    and `x**y` stay within a name.
    """
    for part in pattern.split("/"):
        if part == ".":
            continue
        if part.startswith("**"):
            yield None
        if part.strip("*") or part == "*":
            yield _name(part)


def _name(pattern: str) -> re.Pattern[str]:
    """Expression of a name that never backtracks further than over one `*`."""
    pieces = [""]  # between the stars
    for part in re.split(r"(\*+|\?|\[[^]]*\]|\\.)", pattern):
        if part.startswith("*"):
            pieces.append("")
        elif part == "?":
            pieces[-1] += "."
        elif part.startswith("[") and len(part) > 2:
            pieces[-1] += _one_of(part)
        elif part.startswith("\\") and len(part) == 2:
            pieces[-1] += re.escape(part[1])
        else:
            pieces[-1] += re.escape(part)
    first, *between = pieces
    last = f".*{between.pop()}" if between else ""
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in between) + last, re.DOTALL)


def _one_of(part: str) -> str:
    """Expression of `[a-z]` or `[!a-z]`; an invalid one is literal."""
    inside = re.sub(r"([&~|[\\])", r"\\\1", part[1:-1].removeprefix("!"))
    found = f"[^{inside}]" if part[1] == "!" else f"[{inside}]"
    try:
        re.compile(found)
    except re.error:
        return re.escape(part)
    return found
