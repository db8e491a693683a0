"""Encoding of values in documents: no value, whatever it holds, adds a key, a line or a section."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_@+=:,./{}-]+")
_PLAIN_TEXT = re.compile(r"-{0,2}[A-Za-z/][A-Za-z0-9_./=@$()-]*(?::[A-Za-z0-9_./=@$()-]+)*")
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that some YAML readers take for a Boolean or null, in small letters."""
_quoted_by_json = json.JSONEncoder(ensure_ascii=False).encode
_PRINTABLE_LINES = re.compile(r"[!-~](?:[ -~]*[!-~])?\n(?:(?:[ -~]*[!-~])?\n)*(?<!\n\n)")


def to_yaml(value: Any) -> str:
    """One YAML value on one line: JSON, with floats that YAML 1.1 reads as floats.

    Raises:
        ValueError: a number that is not finite, a key that is no string, half a surrogate pair, or no plain data.

    Example:
        1e-05 becomes 1.0e-05, which PyYAML reads as a number; JSON's own 1e-05 is a string to it.
    """
    if isinstance(value, str):
        value.encode("utf-8")  # half a surrogate pair: UnicodeEncodeError is a ValueError
        return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", _quoted_by_json(value))
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return json.dumps(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"must be a finite number, got {value!r}")
        digits, exponent, power = repr(value).partition("e")
        return f"{digits if '.' in digits else digits + '.0'}{exponent}{power}"
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ValueError(f"keys must be strings, got {wrong[0]!r}")
        return "{" + ", ".join(f"{to_yaml(key)}: {to_yaml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(to_yaml(item) for item in value) + "]"
    raise ValueError(f"must be plain data, got {type(value).__name__}")


def to_document(value: Mapping[str, Any]) -> str:
    """A whole YAML document in block style: one value on a line, and text of several lines as a block.

    Raises:
        ValueError: as `to_yaml`.
    """
    if not value:
        return "{}\n"
    lines: list[str] = []
    _write(value, "", "", lines)
    return "\n".join(lines) + "\n"


def _write(value: Any, indent: str, head: str, lines: list[str]) -> None:
    """Append the lines of a mapping or a list that is not empty.

    Args:
        value: written below `indent`.
        indent: before each line but the first.
        head: before the first.
        lines: of the whole document.
    """
    if isinstance(value, Mapping):
        for key, below in value.items():
            if not isinstance(key, str):
                raise ValueError(f"keys must be strings, got {key!r}")
            if _is_block(below):
                lines.append(f"{head}{_text(key)}:")
                _write(below, f"{indent}  ", f"{indent}  ", lines)
            else:
                _write_leaf(below, f"{indent}  ", f"{head}{_text(key)}: ", lines)
            head = indent
    else:
        for item in value:
            if _is_block(item):
                _write(item, f"{indent}  ", f"{head}- ", lines)
            else:
                _write_leaf(item, f"{indent}    ", f"{head}- ", lines)
            head = indent


def _is_block(value: Any) -> bool:
    """Whether a value fills lines of its own."""
    return not isinstance(value, str) and isinstance(value, (Mapping, list, tuple)) and bool(value)


def _write_leaf(value: Any, indent: str, head: str, lines: list[str]) -> None:
    if not isinstance(value, str):
        lines.append(head + to_yaml(value))
    elif "\n" in value and _PRINTABLE_LINES.fullmatch(value):
        lines.append(f"{head}|")
        lines += [indent + line if line else "" for line in value[:-1].split("\n")]
    else:
        lines.append(head + _text(value))


@lru_cache(maxsize=1024)
def _text(value: str) -> str:
    """YAML of a text, without quotes where no reader takes it for another type."""
    plain = _PLAIN_TEXT.fullmatch(value) and value.lower() not in _NOT_TEXT
    return value if plain else to_yaml(value)


def to_ini(value: Any) -> str:
    """One value of a supervisor configuration: text, a command line from a list, an environment from a mapping.

    `%` is doubled, because supervisor expands every value once. What its format cannot hold is refused.

    Raises:
        ValueError: a line break or another control character; a comment sign after a space outside a command; both
            kinds of quotes, or one at an end, in an environment variable; or no such data.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        text = value
    elif isinstance(value, (list, tuple)):
        text = " ".join(_word(_checked(word)) for word in value)
    elif isinstance(value, Mapping):
        text = ",".join(f"{_variable(name)}={_quoted(_checked(item))}" for name, item in value.items())
    else:
        raise ValueError(f"must be text, a whole number, a list or a mapping, got {type(value).__name__}")
    _checked(text)
    if text != text.strip() or re.search(r"(^|\s)[;#]", text):
        raise ValueError(f"supervisor cannot read space at an end, or ; or # after a space, in {text!r}")
    return text.replace("%", "%%")


def _checked(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, got {value!r}")
    if found := _CONTROL.search(value):
        raise ValueError(f"must not hold the control character {found[0]!r}: {value!r}")
    return value


def _word(word: str) -> str:
    """A word for shlex; a comment sign gets quotes of its own: configparser looks for ` ;` before shlex does."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    quoted = word.replace("'", "'\"'\"'")
    return "'" + re.sub("[;#]", lambda sign: "''" + sign[0], quoted) + "'"


def _variable(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"must be the name of an environment variable, got {name!r}")
    return name


def _quoted(value: str) -> str:
    if value[:1] in {"'", '"'} or value[-1:] in {"'", '"'} or {"'", '"'} <= set(value):
        raise ValueError(f"supervisor cannot pass these quotes in an environment variable: {value!r}")
    return f"'{value}'" if '"' in value else f'"{value}"'
