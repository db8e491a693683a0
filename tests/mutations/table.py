"""Mutations as written in `tests/mutations/*.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file; `find` stands there exactly once."""

    file: str  # from the root of the tree
    find: str
    replace: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """A promise taken back, and the tests that have to notice."""

    name: str  # what is wrong after the edits
    item: str  # groups those of one mend
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]  # as pytest takes them

    def matches(self, word: str) -> bool:
        return word == self.item or word in self.name or any(word in test for test in self.tests)


def load(folder: Path = FOLDER) -> list[Mutation]:
    """All mutations, by file and place.

    Raises:
        KeyError, TypeError: an entry lacks a field, or has one too many.
    """
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text())["mutation"]:
            edits = tuple(Edit(**edit) for edit in entry.pop("edits"))
            found.append(Mutation(edits=edits, tests=tuple(entry.pop("tests")), **entry))
    return found


def apply(mutation: Mutation, texts: Mapping[str, str]) -> dict[str, str]:
    """The files after its edits.

    Args:
        mutation: what to do.
        texts: file -> its text, of every file that an edit names.

    Raises:
        ValueError: a text to find is not there, or more than once.
    """
    done = dict(texts)
    for edit in mutation.edits:
        times = done[edit.file].count(edit.find)
        if times != 1:
            raise ValueError(
                f"{mutation.name}: {edit.file} holds the text {times} times, once is wanted: {edit.find!r}"
            )
        done[edit.file] = done[edit.file].replace(edit.find, edit.replace)
    return done
