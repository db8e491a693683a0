"""Which files a .dockerignore leaves out, by Docker's rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ignore:
    """The patterns of one .dockerignore; the last that fits decides."""

    rules: tuple[tuple[bool, re.Pattern[str]], ...]  # whether it leaves out, and what

    @classmethod
    def parse(cls, text: str) -> Ignore:
        """Patterns, one a line: `*` within a name, `**` over folders, `!` takes back, `#` begins a comment."""
        rules = []
        for line in text.splitlines():
            pattern = line.strip()
            if pattern.startswith("#"):
                continue
            out = not pattern.startswith("!")
            pattern = _clean(pattern.removeprefix("!").strip())
            if pattern:
                rules.append((out, re.compile(_as_regex(pattern), re.DOTALL)))
        return cls(tuple(rules))

    def leaves_out(self, path: str) -> bool:
        """Whether a file is left out.

        Args:
            path: from the folder of the .dockerignore, with `/`.
        """
        parts = path.split("/")
        # a rule for a folder covers what is in it
        around = ["/".join(parts[:size]) for size in range(1, len(parts) + 1)]
        out = False
        for leaves_out, pattern in self.rules:
            if any(pattern.fullmatch(name) for name in around):
                out = leaves_out
        return out

    @property
    def takes_back(self) -> bool:
        """Whether a file can be in although its folder is out."""
        return any(not out for out, _ in self.rules)


def _clean(pattern: str) -> str:
    """Without `./`, `//` and slashes at the ends, which say nothing here."""
    return "/".join(part for part in pattern.split("/") if part not in ("", "."))


def _as_regex(pattern: str) -> str:
    parts: Sequence[str] = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\]|\\.)", pattern)
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    regex = ""
    for part in parts:
        if part in words:
            regex += words[part]
        elif part.startswith("[") and len(part) > 2:
            regex += part if part[1] != "!" else f"[^{part[2:]}"
        elif part.startswith("\\") and len(part) == 2:
            regex += re.escape(part[1])
        else:
            regex += re.escape(part)
    return regex
