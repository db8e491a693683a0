"""Loading of spec files: a checked Spec, or every problem in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from rlctl.errors import Problem, SpecError
from rlctl.spec import fields, yaml
from rlctl.spec.machine import Machine
from rlctl.spec.problems import checks, messages
from rlctl.spec.problems.findings import hardly_meant, unread_patches
from rlctl.spec.problems.later import not_built
from rlctl.spec.problems.messages import Fault
from rlctl.spec.schema import Spec
from rlctl.spec.words import Path as Keys
from rlctl.spec.words import dotted
from rlctl.spec.yaml import Location, Tree, located

MAX_BYTES: Final = 256 << 10
"""Bytes of a spec file, at most."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec that can be planned, and where it comes from."""

    spec: Spec
    values: dict[str, Any]  # what the user wrote, merged; defaults are not in it
    base: Path  # folder of the first file: `code.path` and `storage.path` are relative to it
    places: Mapping[Keys, Location]  # of what the user wrote; line and column are 0 for `--set`
    findings: list[Problem]  # values that are valid, but probably not intended

    def problem(self, fault: Fault) -> Problem:
        """Problem with the location of its value, or that of the nearest mapping around it."""
        return located(fault.path, fault.message, self.places)


def load(paths: Sequence[Path], sets: Sequence[str] = (), *, machine: Machine | None = None) -> Loaded:
    """Read, merge and check spec files.

    Args:
        paths: merged left to right: mappings key by key, everything else replaced. `-` is standard input.
        sets: `path=value` on top of them, typed by the schema.
        machine: resources that findings about size compare with; None: this machine.

    Raises:
        SpecError: with every problem, in the order of the files.
    """
    if not paths:
        raise SpecError([Problem("", "no spec file given")])
    files = [_read(path) for path in paths]
    tree = files[0]
    for over in files[1:]:
        _overlay(tree, over)
    problems = list(tree.problems)
    if any(() in file.broken for file in files):  # an unreadable file would make others look wrong
        raise SpecError(_in_order(problems, paths, sets))
    for text in sets:
        problem = _set(tree, text)
        problems += [problem] if problem else []
    _make_whole(tree.value, (), tree.value)

    wrong = _validate(tree)
    faulty = {_to_a_list(path) for path in tree.broken.union(fault.path for fault in wrong)}
    base = Path.cwd() if str(paths[0]) == "-" else paths[0].parent
    spec = _without(tree.value, faulty)
    if spec is not None:
        unsound = [*checks.impossible(spec, base), *not_built(spec)]
        wrong += _first_by_path(fault for fault in unsound if not _rests_on(fault, faulty))
    problems += [located(fault.path, fault.message, tree.places) for fault in wrong]
    if problems or spec is None:
        raise SpecError(_in_order(problems, paths, sets))
    notes = hardly_meant(spec, base, machine or Machine.here())
    findings = [located(fault.path, fault.message, tree.places) for fault in notes]
    findings = [*_in_order(findings, paths, sets), *unread_patches(spec, base, paths)]
    return Loaded(spec, tree.value, base, tree.places, findings)


def _name(path: Path) -> str:
    return "stdin" if str(path) == "-" else str(path)


def _set_name(text: str) -> str:
    return f"--set {text}"


def _read(path: Path) -> Tree:
    """Parse a file into a tree with a mapping at the top; otherwise () is broken, and the reason is a problem."""
    name = _name(path)
    tree = Tree()
    try:
        if str(path) == "-":
            if sys.stdin is None:
                raise ValueError("standard input is closed")
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ValueError(f"longer than {MAX_BYTES >> 10} KiB")
        tree = yaml.read(_decoded(raw), name)
        if tree.value is None and not tree.problems:
            tree.report((), "is empty; a spec has at least `run: my-run` and `env: {id: CartPole-v1}`", Location(name))
        elif tree.value is not None and not isinstance(tree.value, dict):
            tree.report((), "must be a mapping (key: value) at the top", tree.places[()])
    except FileNotFoundError:
        tree.report((), "no such file", Location(name))
    except _NotUtf8 as error:
        tree.report((), str(error), Location(name, error.line, error.column))
    except (OSError, ValueError) as error:  # ValueError: closed, too long, or a name with a null byte
        reason = error.strerror if isinstance(error, OSError) else None
        tree.report((), f"cannot be read: {reason.lower() if reason else error}", Location(name))
    if not isinstance(tree.value, dict):
        tree.value = {}
        tree.broken.add(())
    return tree


class _NotUtf8(Exception):
    def __init__(self, raw: bytes, position: int) -> None:
        utf16 = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        super().__init__(f"is {'UTF-16' if utf16 else 'not UTF-8'}; save it as UTF-8")
        self.line = raw.count(b"\n", 0, position) + 1
        self.column = len(raw[raw.rfind(b"\n", 0, position) + 1 : position].decode("utf-8", "replace")) + 1


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _NotUtf8(raw, error.start) from error


def _overlay(tree: Tree, over: Tree) -> None:
    """Merge `over` into `tree`: mappings key by key, everything else replaces what was there."""
    top = {(): tree.places[()]} if () in tree.places else {}
    _merge(tree, tree.value, over.value, ())
    tree.places |= over.places | top
    tree.texts |= over.texts
    tree.broken |= over.broken
    tree.problems += over.problems


def _merge(tree: Tree, value: dict[str, Any], over: dict[str, Any], path: Keys) -> None:
    for key, new in over.items():
        here = (*path, key)
        old = value.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            _merge(tree, old, new, here)
            continue
        if key in value:
            _forget(tree, here)
        value[key] = new


def _forget(tree: Tree, path: Keys) -> None:
    for table in (tree.places, tree.texts):
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]


def _set(tree: Tree, text: str) -> Problem | None:
    """Apply one `path=value`; returns the problem that prevents it, or None."""
    place = Location(_set_name(text))
    name, equals, written = text.partition("=")
    path = tuple(name.split("."))
    if not equals or not all(path):
        return Problem("", "must be path=value, as in algorithm.lr=1e-3", *place)
    if not written.isprintable() and "\n" not in written:
        return Problem(name, "has a character that is not allowed", *place)
    read = yaml.read(written, place.file)
    if read.problems:
        return Problem(name, read.problems[0].message, *place)
    value = read.value
    wanted = fields.at(path, tree.value)
    if isinstance(wanted, fields.Value):
        types = wanted.types
        fits = type(value) in types or (type(value) is int and float in types)
        if str in types and not isinstance(value, str) and not fits and Any not in types:
            value = written  # 007 stays text where text is wanted
    parent: Any = tree.value
    for depth, key in enumerate(path[:-1], 1):
        below = parent.get(key)
        if below is None:
            parent[key] = below = {}
            tree.places[path[:depth]] = place
        if not isinstance(below, dict):
            return Problem(name, f"`{dotted(path[:depth])}` has no keys below it", *place)
        parent = below
    _overlay(tree, _nested(path, value, place, read))
    return None


def _nested(path: Keys, value: Any, place: Location, read: Tree) -> Tree:
    places = {(*path, *below): place for below in read.places} | {path: place}
    for key in reversed(path):
        value = {key: value}
    return Tree(value, places, {(*path, *below): text for below, text in read.texts.items()})


def _make_whole(value: Any, path: Keys, values: Any) -> None:
    """Turn 5e6 into 5000000 where a whole number is wanted: YAML reads it as a float."""
    if isinstance(value, dict):
        for key, below in value.items():
            here = (*path, key)
            if isinstance(below, float) and below.is_integer() and abs(below) < 2**53:
                wanted = fields.at(here, values)
                if isinstance(wanted, fields.Value) and int in wanted.types and float not in wanted.types:
                    value[key] = int(below)
            _make_whole(below, here, values)


def _validate(tree: Tree) -> list[Fault]:
    """Validation errors, apart from keys that are missing because they could not be read."""
    found = list(messages.words_of_yaml_1_1(tree.texts))
    try:
        Spec.model_validate(tree.value, strict=True)
    except ValidationError as error:
        found += messages.faults(error, tree.value, tree.texts)
    return [fault for fault in found if not _covers(tree.broken, fault.path)]


def _covers(faulty: set[Keys], path: Keys) -> bool:
    """Whether the value at a path, or a mapping around it, is faulty."""
    return any(path[:length] in faulty for length in range(len(path) + 1))


def _to_a_list(path: Keys) -> Keys:
    """Path of the list that holds an entry, else the path itself: to drop one entry would renumber the others."""
    return path[: next((at for at, key in enumerate(path) if isinstance(key, int)), len(path))]


def _rests_on(fault: Fault, faulty: set[Keys]) -> bool:
    return any(_covers(faulty, path) for path in (fault.path, *fault.rests_on))


_STAND_INS: Final[dict[Keys, Any]] = {("run",): "unnamed", ("env",): {"id": "-"}, ("env", "id"): "-"}


def _without(values: dict[str, Any], faulty: set[Keys]) -> Spec | None:
    """The spec with defaults in place of faulty values, so that the rest can be checked; None where that fails."""
    values = _copy(values)
    drop = set(faulty)
    for _ in range(8):
        for path in sorted(drop, key=len, reverse=True):
            _drop(values, path)
        try:
            return Spec.model_validate(values, strict=True)
        except ValidationError as error:
            drop = {_to_a_list(fault.path) for fault in messages.faults(error, values, {})}
    return None


def _copy(value: Any) -> Any:
    return {key: _copy(below) for key, below in value.items()} if isinstance(value, dict) else value


def _drop(values: Any, path: Keys) -> None:
    for key in path[:-1]:
        values = values.get(key) if isinstance(values, dict) else None
    if isinstance(values, dict) and path:
        values.pop(path[-1], None)
        if path in _STAND_INS:
            values[path[-1]] = _STAND_INS[path]


def _first_by_path(faults: Any) -> list[Fault]:
    found: dict[Keys, Fault] = {}
    for fault in faults:
        found.setdefault(fault.path, fault)
    return list(found.values())


def _in_order(problems: Sequence[Problem], paths: Sequence[Path], sets: Sequence[str]) -> list[Problem]:
    """Problems sorted by file and line, then by `--set` option."""
    sources = [*map(_name, paths), *(_set_name(text) for text in sets)]
    order = {source: number for number, source in reversed(list(enumerate(sources)))}

    def key(problem: Problem) -> tuple[int, int, int, str, str]:
        return order.get(problem.file, len(order)), problem.line, problem.column, problem.path, problem.message

    return sorted(set(problems), key=key)
