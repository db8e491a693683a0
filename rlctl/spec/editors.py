"""JSON Schema of a spec file, for editors: it offers what this release can do, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlctl.spec.fields import HIDDEN
from rlctl.spec.schema import Spec

_DEFINITIONS = "#/$defs/"


def json_schema() -> dict[str, Any]:
    """The schema; `x-applies` and `x-read-by` say what a change of a field does. What is not built yet is left out."""
    schema = Spec.model_json_schema()
    for path in HIDDEN:
        _leave_out(schema, schema, path.split("."))
    for policies in _sections(schema, schema["properties"]["policies"]):
        (policy,) = policies.pop("patternProperties").values()
        policies |= {"properties": {"main": policy}, "additionalProperties": False}
    _without_unused(schema)
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **schema, "title": "rlctl spec"}


def _sections(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The mappings that a node allows, through references and alternatives."""
    if "$ref" in node:
        yield from _sections(schema, schema["$defs"][node["$ref"].removeprefix(_DEFINITIONS)])
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _sections(schema, alternative)
    if "properties" in node or "patternProperties" in node:
        yield node


def _leave_out(schema: dict[str, Any], node: dict[str, Any], path: list[str]) -> None:
    """Remove a field, and its value from the defaults of the sections around it."""
    key, *below = path
    default: Any = node
    for name in ("default", *path[:-1]):
        default = default.get(name) if isinstance(default, dict) else None
    if isinstance(default, dict):
        default.pop(path[-1], None)
    for section in _sections(schema, node):
        if key == "*":
            for inner in section["patternProperties"].values():
                _leave_out(schema, inner, below)
        elif below:
            _leave_out(schema, section["properties"][key], below)
        else:
            section["properties"].pop(key, None)


def _without_unused(schema: dict[str, Any]) -> None:
    """Remove definitions that nothing refers to any more."""
    used: set[str] = set()
    waiting: list[Any] = [{name: part for name, part in schema.items() if name != "$defs"}]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix(_DEFINITIONS)
            if name in schema["$defs"] and name not in used:
                used.add(name)
                waiting.append(schema["$defs"][name])
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    schema["$defs"] = {name: part for name, part in schema["$defs"].items() if name in used}
