"""The reference of the spec, from the schema: type, default, meaning of every field, and what a change of it does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlctl.spec.editors import json_schema

Node = Mapping[str, Any]
HEAD = """# The spec

Every field of a spec file, from the schema that reads it. `rlctl lint spec.yaml` names what is wrong with one, and
`rlctl lint --schema` prints a JSON Schema for your editor.

**A change** of a field does to a live run, with `rlctl up` again:

| | |
|---|---|
| live | it reaches the running processes; nothing restarts |
| restarts ... | these roles are started again, and no others; the learner goes on from its newest generation |
| new run | experience or weights of before would no longer fit: it is refused, and needs a run of another name |
"""
TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """The page in Markdown."""
    schema = json_schema()
    parts = [HEAD]
    for path, kind, node in sections(schema):
        parts.append(
            f"\n## {path}{f': {kind}' if kind else ''}\n\n{_cell(node.get('description', ''))}\n\n{table(node)}"
        )
    return "".join(parts)


def sections(schema: Node) -> Iterator[tuple[str, str, Node]]:
    """Path, kind (of an algorithm) and definition of every mapping with fields of its own, the outer ones first."""
    seen: set[str] = set()

    def below(path: str, node: Node) -> Iterator[tuple[str, str, Node]]:
        for name, field in node["properties"].items():
            for found in _references(field):
                definition = schema["$defs"][found]
                if found not in seen:
                    seen.add(found)
                    here = f"{path}.{name}" if path else name
                    kind = definition["properties"].get("name", {}).get("const", "")
                    of_your_own = "your own" if found == "External" else ""
                    yield here, kind or of_your_own, definition
                    yield from below(here, definition)

    yield "The top", "", schema
    yield from below("", schema)


def table(node: Node) -> str:
    """Fields of one mapping."""
    lines = ["| field | type | default | | change |", "|---|---|---|---|---|"]
    for name, field in node["properties"].items():
        inner = _references(field)
        default = "needed" if name in node.get("required", ()) else "" if inner else _written(field.get("default"))
        kind = "see below" if inner else _type(field)
        lines.append(f"| `{name}` | {kind} | {default} | {_cell(field.get('description', ''))} | {_change(field)} |")
    return "\n".join(lines) + "\n"


def _references(field: Node) -> list[str]:
    """Names of the definitions that a field may hold."""
    found = [field["$ref"].rpartition("/")[2]] if "$ref" in field else []
    nested = [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]
    nested += field.get("properties", {}).values()
    return found + [name for one in nested for name in _references(one)]


def _type(field: Node) -> str:
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if alternatives := [*field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]:
        return " or ".join(dict.fromkeys(_type(one) for one in alternatives))
    if ":" in str(field.get("pattern", "")):
        return "`module:Class`"
    match field.get("type"):
        case "array":
            return f"list of {_type(field['items'])}" if field.get("items") else "list"
        case "object":
            return "mapping"
        case str(name):
            given = {sign: field[key] for key, sign in SIGNS.items() if key in field}
            bounds = ", ".join(f"{sign} {'2^63' if bound == 2**63 else bound}" for sign, bound in given.items())
            return f"{TYPES[name]} {bounds}".strip()
    return "any"


def _written(value: Any) -> str:
    """A default as one writes it in YAML."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _change(field: Node) -> str:
    match field.get("x-applies"):
        case "live":
            return "live"
        case "restart":
            return f"restarts {', '.join(field['x-read-by'])}"
        case "new_run":
            return "new run"
    return ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")
