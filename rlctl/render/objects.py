"""Parsing of rendered templates into objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rlctl.errors import Problem, SpecError
from rlctl.spec import yaml

Object = dict[str, Any]


def objects(text: str, origin: str) -> Iterator[Object]:
    """The objects of a rendered template; keys and items without a value are left out of them.

    A value never fills more than one line, so `---` on a line of its own is the template's, and the lines of the text
    are those of the template.

    Raises:
        SpecError: it is not YAML, or not objects with kind and name; with template and line.
    """
    for found in _parsed(text, origin):
        yield without_nothing(found)


@lru_cache(maxsize=256)
def _parsed(text: str, origin: str) -> tuple[Object, ...]:
    """The objects as written; cached, because a service that deploys renders the same ones repeatedly."""
    line, parsed = 0, []
    for part in text.split("\n---\n"):
        tree = yaml.read("\n" * line + part, origin)
        line += part.count("\n") + 2
        if tree.problems:
            raise SpecError(tree.problems)
        found = tree.value
        metadata = found.get("metadata") if isinstance(found, dict) else None
        named = isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
        if not named or found.get("kind") is None:
            raise SpecError([Problem("", "must be an object with kind and metadata.name", *tree.places[()])])
        parsed.append(found)
    return tuple(parsed)


def without_nothing(value: Any) -> Any:
    """The same value, without the keys and items whose value is null."""
    if isinstance(value, dict):
        return {key: without_nothing(below) for key, below in value.items() if below is not None}
    return [without_nothing(item) for item in value if item is not None] if isinstance(value, list) else value
