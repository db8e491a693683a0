"""Validation errors of pydantic in our words and under the user's own paths."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlctl.image_names import IMAGE, IMAGE_BY_DIGEST
from rlctl.spec import fields
from rlctl.spec.algorithms import BUILT, Algorithm
from rlctl.spec.cluster import OBJECT_NAME, QUEUE_NAME
from rlctl.spec.problems import other_words
from rlctl.spec.schema import POLICY_NAME, RUN_NAME, Spec
from rlctl.spec.words import CLASS_PATH, MAX_PROBLEMS, YES_NO, Path, closest, dotted, either, number, show

_PATTERNS: Final = {
    CLASS_PATH: "package.module:Class",
    RUN_NAME: "at most 40 of a-z, 0-9 and -, with no - at the ends",
    POLICY_NAME: "at most 20 of a-z, 0-9 and -, with no - at the ends",
    IMAGE: "an image by tag (name:1.0) or by digest (name@sha256:<64 hex digits>, as `rlctl image push` prints it)",
    IMAGE_BY_DIGEST: "an image by digest (name@sha256:<64 hex digits>)",
    OBJECT_NAME: "the name of an object of the cluster: at most 253 of a-z, 0-9, - and .",
    QUEUE_NAME: "the name of a queue: at most 63 of a-z, 0-9, - and .",
}
_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_EXAMPLES: Final[Mapping[Path, str]] = {
    ("run",): "`run: my-run`",
    ("env",): "`env: {id: CartPole-v1}`",
    ("env", "id"): "`id: CartPole-v1`",
    ("algorithm",): "`algorithm: {name: impala}`",
    ("stop",): "`stop: {eval_return: 475}`",
    ("code",): "`code: {path: .}`",
}
_OF_A_TYPE: Final = {"bool_type": ["true", "false"], "float_type": ["a number"]}
_YES_NO: Final = {**YES_NO, "y": "true", "n": "false"}
_KIN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ppo2", "trpo", "ppg", "mappo"), "ppo"),
    **dict.fromkeys(("a2c", "a3c", "reinforce", "vtrace", "actorcritic"), "impala"),
    **dict.fromkeys(("ddqn", "doubledqn", "duelingdqn", "c51", "qrdqn", "iqn", "pqn", "simpleq"), "dqn"),
    **dict.fromkeys(("apex", "rainbow"), "apex_dqn"),
    **dict.fromkeys(("drqn", "rdqn", "ngu", "agent57"), "r2d2"),
    **dict.fromkeys(("redq", "crossq", "tqc", "droq"), "sac"),
    **dict.fromkeys(("ddpg", "d4pg"), "td3"),
}
"""Algorithms that other libraries have, in small letters and digits -> ours of the same kind."""


class Fault(NamedTuple):
    """Fault of the value at a path. It is not reported when a value that it rests on is faulty itself."""

    path: Path
    message: str
    rests_on: tuple[Path, ...] = ()


def faults(error: ValidationError, values: Mapping[str, Any], texts: Mapping[Path, str]) -> list[Fault]:
    """One fault per path, in pydantic's order; beyond MAX_PROBLEMS the first, and their number.

    Args:
        error: of validating `values` against Spec.
        values: the plain data.
        texts: numbers, booleans and nulls as the user wrote them, and `yes`, `no`, `on`, `off`.
    """
    by_path: dict[Path, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        by_path.setdefault(_user_path(detail, values), []).append(detail)
    found = [Fault(path, _message(path, details, values, texts)) for path, details in by_path.items()]
    if error.error_count() > MAX_PROBLEMS:
        found.append(Fault((), f"has {error.error_count()} problems; the first {MAX_PROBLEMS} are listed"))
    return found


def words_of_yaml_1_1(texts: Mapping[Path, str]) -> Iterator[Fault]:
    """Faults of arguments to a user's code that are `yes`, `no`, `on` or `off` without quotes: `no` would be text, and
    true for Python.

    Args:
        texts: as in `faults`.
    """
    for path, text in texts.items():
        meant = YES_NO.get(text.lower())
        if meant and not {"kwargs", "params"}.isdisjoint(path):
            yield Fault(path, f"{text} is text here, not a boolean; write {meant}, or the text in quotes: '{text}'")


def in_words(detail: ErrorDetails, text: str | None = None) -> str:
    """Message for a single value: its fault, and the remedy.

    Args:
        detail: one entry of pydantic's list.
        text: the value as written, when that is not how it would be shown.
    """
    got, kind, context = detail["input"], detail["type"], detail.get("ctx", {})
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"must be {words} {number(context[name])}, got {show(got)}"
    match kind:
        case "int_type" | "int_from_float" | "float_type":
            what = "a number" if kind == "float_type" else "a whole number"
            plain = got.replace("_", "").replace(",", "") if isinstance(got, str) and len(got) <= 60 else ""
            if re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", plain):
                return f"must be {what}, got the text {show(got)}; write {plain}"
            return f"must be {what}, got {show(got)}"
        case "bool_type":
            meant = _YES_NO.get(got.lower()) if isinstance(got, str) else None
            return f"must be true or false, got {show(got)}" + (f"; write {meant}" if meant else "")
        case "string_type":
            if isinstance(got, (bool, int, float)):
                shown = text if text is not None else show(got)
                return f"must be text, got {shown}; put it in quotes: '{shown}'"
            return f"must be text, got {show(got)}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"must be at most {context['max_length']} characters long, got {len(got)}"
        case "string_pattern_mismatch":
            return f"must be {_PATTERNS.get(context['pattern'], context['pattern'])}, got {show(got)}"
        case "literal_error":
            names = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
            near = closest(got, names) if isinstance(got, str) else None
            return f"must be {either(names)}, got {show(got)}" + (f"; did you mean `{near}`?" if near else "")
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a mapping (key: value), got {show(got)}"
        case "list_type":
            return f"must be a list, as in [1, 2], got {show(got)}"
        case "too_short":
            return "must have at least one entry"
        case "value_error":
            return str(context["error"])
    return detail["msg"].replace("Input should", "must") + f", got {show(got)}"


def _message(path: Path, details: list[ErrorDetails], values: Mapping[str, Any], texts: Mapping[Path, str]) -> str:
    first = details[0]
    kinds = {detail["type"] for detail in details}
    if first["type"] == "extra_forbidden":
        return _unknown(path, values)
    example = f", as in {_EXAMPLES[path]}" if path in _EXAMPLES else ""
    if first["type"] == "missing":
        return f"is missing{example}"
    if path[-2:] and path[-1] == "name" and path[-2] == "algorithm":
        got = _value(values, path)
        return f"must be {either([*BUILT, 'your own package.module:Class'])}, got {show(got)}{_kin(got)}"
    if len(details) > 1 and kinds <= {
        "literal_error", "string_pattern_mismatch", "string_type", "bool_type", "float_type", *_BOUNDS
    }:  # fmt: skip
        names: list[str] = []
        for detail in details:
            context = detail.get("ctx", {})
            if detail["type"] in _BOUNDS:
                words, name = _BOUNDS[detail["type"]]
                names.append(f"{words} {number(context[name])}")
                continue
            said = _OF_A_TYPE.get(detail["type"]) or re.findall(r"'([^']*)'", context.get("expected", ""))
            names += said or [_PATTERNS[CLASS_PATH]]
        got = first["input"]
        near = closest(got, names) if isinstance(got, str) else None
        return f"must be {either(names)}, got {show(got)}" + (f"; did you mean `{near}`?" if near else "")
    words = in_words(first, texts.get(path))
    if first["type"] in ("model_type", "dict_type"):
        words += f"; write it{example}" if example else "; give it keys or remove it" if first["input"] is None else ""
    if "[key]" in first["loc"]:
        words = f"the name {words}"
    return words


def _kin(name: Any) -> str:
    """Hint for an unknown name of an algorithm: the one probably meant, or ours of the same kind."""
    if not isinstance(name, str) or ":" in name:
        return ""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if plain not in _KIN and (near := closest(name, BUILT)):
        return f"; did you mean `{near}`?"
    return f"; use {_KIN[plain]}, which is of that kind" if plain in _KIN else ""


def _unknown(path: Path, values: Mapping[str, Any]) -> str:
    if known := other_words.ours(path, _algorithm_of(path, values)):
        return known
    key = str(path[-1])
    here = fields.at(path[:-1], values)
    siblings = list(fields.keys(here.model)) if isinstance(here, fields.Section) else []
    siblings = [name for name in siblings if not fields.hidden((*path[:-1], name))]
    elsewhere = [
        dotted(found)
        for found in fields.everywhere()
        if found[-1] == key and "policies" not in found and found != path and not fields.hidden(found)
    ][:3]
    if near := closest(key, siblings, 0.6 if not elsewhere else 0.8):
        return f"unknown key; did you mean `{near}`?"
    if external := _hyperparameter_of_an_own_algorithm(path, values):
        return external
    if elsewhere:
        return f"unknown key here; did you mean {either([f'`{found}`' for found in elsewhere])}?"
    return f"unknown key; keys here are {', '.join(siblings)}" if 0 < len(siblings) <= 12 else "unknown key; remove it"


def _algorithm_of(path: Path, values: Mapping[str, Any]) -> str:
    """Name of the algorithm whose section holds a key, else of the run's; "": not known."""
    section = _value(values, path[:-1]) if path[-2:-1] == ("algorithm",) else values.get("algorithm", {})
    name = section.get("name", BUILT[0]) if isinstance(section, Mapping) else ""
    return name if isinstance(name, str) else ""


def _hyperparameter_of_an_own_algorithm(path: Path, values: Mapping[str, Any]) -> str:
    section = _value(values, path[:-1])
    own = section.get("class") if isinstance(section, Mapping) else None
    name = own if isinstance(own, str) else _algorithm_of(path, values)
    if len(path) > 1 and path[-2] == "algorithm" and ":" in name:
        return f"unknown key for an algorithm of your own; what {name} alone reads belongs below `params`"
    return ""


def _user_path(detail: ErrorDetails, values: Mapping[str, Any]) -> Path:
    """Path as the user writes it: pydantic's location without the names of union members."""
    path = tuple(_steps(detail["loc"], values))
    return (*path, "name") if detail["type"].startswith("union_tag") else path


def _steps(location: Path, values: Any) -> Iterator[str | int]:
    here: Any = fields.Section(Spec)
    path: Path = ()
    union = False
    for part in location:
        if union:  # the part names the member
            union = False
            continue
        below = fields.at((*path, part), values) if here is not None else None
        leaf = isinstance(here, fields.Value)
        if leaf or part == "[key]":
            value = _value(values, path)
            if not ((isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int))):
                return
            path = (*path, part)
            yield part
            continue
        path = (*path, part)
        yield part
        here = below
        union = isinstance(here, fields.Section) and issubclass(here.model, Algorithm)


def _value(values: Any, path: Path) -> Any:
    for key in path:
        if isinstance(values, Mapping):
            values = values.get(key)
        elif isinstance(values, list) and isinstance(key, int) and key < len(values):
            values = values[key]
        else:
            return None
    return values
