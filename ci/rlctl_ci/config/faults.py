"""Problems of a ci.yaml, worded like those of a spec, each with its location."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel, ValidationError

from rlctl.errors import Problem
from rlctl.spec.problems.messages import in_words
from rlctl.spec.words import Path, closest, dotted, show
from rlctl.spec.yaml import Tree, located

_PATTERNS: Final = {
    r"^[a-z0-9]+/[a-z0-9]+$": "a system and a processor, as in linux/amd64",
    r"^[A-Za-z0-9._-]{1,64}$": "at most 64 letters, digits, ., _ and -",
}


def problems(error: ValidationError, tree: Tree, sections: Mapping[str, type[BaseModel]]) -> list[Problem]:
    """One problem for each wrong value.

    Args:
        error: validation error of the file's content.
        tree: the parsed file.
        sections: path of a mapping -> model of its keys; "" for the top level, `*` for a name that the user chose.
    """
    found = []
    for detail in error.errors(include_url=False):
        path = tuple(part for part in detail["loc"] if part != "[key]")
        kind, context = detail["type"], detail.get("ctx", {})
        if kind == "extra_forbidden":
            message = _unknown(path, sections)
        elif kind == "missing":
            message = "is missing"
        elif kind == "path_type":
            message = f"must be the name of a file, got {show(detail['input'])}"
        elif kind == "string_pattern_mismatch" and context["pattern"] in _PATTERNS:
            message = f"must be {_PATTERNS[context['pattern']]}, got {show(detail['input'])}"
        elif kind == "list_type" and isinstance(detail["input"], str):
            message = f"must be a list; write [{detail['input']}]"
        else:  # `_parsing`: a text that does not parse as the type
            message = in_words({**detail, "type": kind.replace("_parsing", "_type")}, tree.texts.get(path))
        if path not in tree.broken:  # its syntax error is reported already
            found.append(located(path, f"the name {message}" if "[key]" in detail["loc"] else message, tree.places))
    return found


def in_order(found: Iterable[Problem]) -> list[Problem]:
    """Problems in the order of the file; of several with one path, the one that was found first."""
    first: dict[str, Problem] = {}
    for one in found:
        first.setdefault(one.path, one)
    return sorted(first.values(), key=lambda one: (one.line, one.column, one.path))


def _unknown(path: Path, sections: Mapping[str, type[BaseModel]]) -> str:
    above = tuple("*" if place == 1 and path[0] == "projects" else part for place, part in enumerate(path[:-1]))
    names = {name: list(model.model_fields) for name, model in sections.items()}
    key, here = str(path[-1]), names.get(dotted(above), [])
    if near := closest(key, here):
        return f"unknown key; did you mean `{near}`?"
    if others := [f"{name}.{key}".removeprefix(".") for name, known in names.items() if key in known]:
        return f"unknown key here; did you mean `{others[0].replace('*', 'NAME')}`?"
    return f"unknown key; keys here are {', '.join(here)}"
