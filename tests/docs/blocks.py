"""Blocks of the documentation: commands that are run, files that they need, and what says why one is not run.

A comment on the line before a fence is for the tests:

    <!-- not run: REASON -->     needs what a test does not have
    <!-- file: NAME -->          the block is that file of the page's folder
    <!-- exit: N -->             its last command ends with N
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COMMANDS = ("console", "sh", "bash")
"""Languages of blocks that hold commands: after prompts, with what they say below them; or nothing but commands."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*)[^`]*$")
_COMMENT = re.compile(r"^ *<!-- (?P<kind>not run|file|exit): (?P<value>.+?) -->$")
_LIKE_COMMANDS = re.compile(r"^(\$ |(rlctl|pip|make|kubectl|docker|git|python3?|mkdir|cd|export) )", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block."""

    page: str  # path in the repository
    line: int  # of its fence
    language: str
    text: str
    kind: str = ""  # of its comment
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> bool:
        return self.language in COMMANDS

    @property
    def run(self) -> bool:
        return self.commands and self.kind != "not run"

    @property
    def disguised(self) -> bool:
        """Commands that no language says to be some."""
        return not self.language and bool(_LIKE_COMMANDS.search(self.text))

    def steps(self) -> Iterator[tuple[str, list[str]]]:
        """Commands, each with the lines that it is shown to say; a block without prompts is one command."""
        if self.language != "console":
            yield self.text, []
            return
        command, said = "", list[str]()
        for line in self.text.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, said
                command, said = line[2:], []
            elif line.startswith("> ") and not said:
                command += "\n" + line[2:]
            else:
                said.append(line)
        yield command, said


def pages() -> list[str]:
    """Every page that is read by users, by its path."""
    found = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    return [page for page in found if not page.startswith("docs/decisions/")]


def blocks(page: str, text: str | None = None) -> list[Block]:
    """All fenced blocks of a page.

    Raises:
        ValueError: a fence is not closed.
    """
    found: list[Block] = []
    lines = (text if text is not None else (ROOT / page).read_text()).splitlines()
    at = 0
    while at < len(lines):
        if (opened := _FENCE.match(lines[at])) is None:
            at += 1
            continue
        end = at + 1
        while end < len(lines) and lines[end].strip() != opened["fence"]:
            end += 1
        if end == len(lines):
            raise ValueError(f"{page}:{at + 1}: the fence is not closed")
        inner = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
        comment = _COMMENT.match(lines[at - 1]) if at else None
        kind, value = (comment["kind"], comment["value"]) if comment else ("", "")
        found.append(Block(page, at + 1, opened["language"], inner, kind, value))
        at = end + 1
    return found


def missing(shown: list[str], said: str) -> str | None:
    """The first line of those shown that was not said, in their order; None: all were.

    Numbers and Ana's home may differ, `...` stands for anything, and lines in between may be left out.
    """
    rest = said.splitlines()
    for line in shown:
        if not line.strip() or line.strip() == "...":
            continue
        parts = re.split(r"(\.\.\.|/home/ana/[\w/]*|-?\d[\d.,]*|\s+)", line.strip())
        pattern = "".join(map(_loosely, parts))
        at = next((number for number, one in enumerate(rest) if re.search(pattern, one)), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None


def _loosely(part: str) -> str:
    if part == "..." or part.startswith("/home/ana/"):
        return ".*"
    if part.isspace():
        return r"\s+"
    return r"-?\d[\d.,]*" if re.match(r"-?\d", part) else re.escape(part)
