"""YAML as a spec may use it: the JSON part of YAML 1.2, with the place of every value.

Refused: the same key twice, anchors and aliases, tags, several documents, keys that are not text, infinite and
not-a-number. Unlike YAML 1.1, `yes`, `no`, `on` and `off` are text, `1e-4` is a number, `010` is ten, and there are no
dates, base-60 numbers or merge keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import yaml

from rlctl.errors import Problem
from rlctl.spec.words import MAX_PROBLEMS, YES_NO, Path, dotted, show

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
MAX_KEY: Final = 500

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # without libyaml the same events, ten times slower
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\r(?!\n)")
"""Control characters, and line ends that editors do not count as such."""
_NOTHING: Final = object()  # a value that is not usable, and said so

_SYNTAX = {
    "mapping values are not allowed in this context": "`: ` does not fit here; start a new line, or put the value in"
    " quotes",
    "did not find expected key": "the indentation does not fit, or a `:` is missing",
    "could not find expected ':'": "a key without `:`",
    "did not find expected '-' indicator": "an entry of a list without `- `",
    "did not find expected ',' or ']'": "a `,` or the closing `]` is missing",
    "did not find expected ',' or '}'": "a `,` or the closing `}` is missing",
    "found unexpected end of stream": "a quote is not closed",
    "did not find expected node content": "a value is missing",
}


class Location(NamedTuple):
    """Location in a file; line and column from 1, line 0 where there are none."""

    file: str
    line: int = 0
    column: int = 0


@dataclass(slots=True)
class Tree:
    """Content of a file: plain data, and the location of each part of it."""

    value: Any = None
    places: dict[Path, Location] = field(default_factory=dict)  # of the key, or of a list's entry
    texts: dict[Path, str] = field(default_factory=dict)  # plain scalars as written that are not text, or no: 007, yes
    broken: set[Path] = field(default_factory=set)  # missing from `value`, because of a problem
    problems: list[Problem] = field(default_factory=list)

    def report(self, path: Path, message: str, place: Location) -> None:
        self.problems.append(Problem(dotted(path), message, *place))


def nearest(path: Path, places: Mapping[Path, Location]) -> Location:
    """Location of a value, or of the nearest section around it that is written; without a file: of none."""
    written = (path[:length] for length in range(len(path), -1, -1) if path[:length] in places)
    return next((places[above] for above in written), Location(""))


def located(path: Path, message: str, places: Mapping[Path, Location]) -> Problem:
    """Problem of a value, with its location, or that of the nearest section around it."""
    return Problem(dotted(path), message, *nearest(path, places))


def read(text: str, file: str) -> Tree:
    """Parse one document.

    Never raises for what `text` holds: faults are in `problems`, all of them up to the first fault of syntax, and
    whatever could not be read is missing from `value` and named in `broken`. An empty document is None.
    """
    tree = Tree()
    fault = _NOT_ALLOWED.search(text)
    if len(text) > MAX_BYTES:
        tree.report((), f"must be at most {MAX_BYTES >> 20} MiB long", Location(file))
    elif fault:
        line = text.count("\n", 0, fault.start()) + 1
        place = Location(file, line, fault.start() - text.rfind("\n", 0, fault.start()))
        tree.report((), f"the character {fault[0]!a} is not allowed; remove it", place)
    else:
        try:
            _Reader(tree, file, text).document()
        except _Enough as error:
            tree.value = None
            tree.report((), str(error), error.place)
        except yaml.MarkedYAMLError as error:
            _report_syntax(tree, file, text, error)
        except (yaml.YAMLError, ValueError) as error:  # pragma: no cover  (the checks above leave none)
            tree.report((), f"not YAML: {error}", Location(file))
    if tree.problems and tree.value is None:
        tree.broken.add(())
    return tree


def _report_syntax(tree: Tree, file: str, text: str, error: yaml.MarkedYAMLError) -> None:
    lines = text.split("\n")
    mark, opened = error.problem_mark or error.context_mark, error.context_mark
    if opened and mark and not "".join(lines[mark.line :])[mark.column :].strip():
        mark = opened  # where the file ends says less than where the unfinished thing begins
    problem = error.problem or "unreadable"
    words = _SYNTAX.get(problem, problem)
    if problem == "found character that cannot start any token" and mark and mark.line < len(lines):
        char = lines[mark.line][mark.column : mark.column + 1]
        words = f"a value cannot start with {char}; put it in quotes"
        words = "a tab cannot indent; use spaces" if char == "\t" else words
    since = f" (it begins in line {opened.line + 1})" if opened and mark and opened.line < mark.line else ""
    tree.value = None
    if mark is None:
        place = Location(file)
    elif mark.line < len(lines):
        place = Location(file, mark.line + 1, mark.column + 1)
    else:
        place = Location(file, len(lines), len(lines[-1]) + 1)
    tree.report((), f"not YAML: {words}{since}", place)


class _Enough(Exception):
    """End of parsing at a location: time and memory for the rest could be unbounded."""

    def __init__(self, message: str, place: Location) -> None:
        super().__init__(message)
        self.place = place


class _Reader:
    """Builds a tree from the parser's events."""

    def __init__(self, tree: Tree, file: str, text: str) -> None:
        self._tree = tree
        self._file = file
        self._events = self._bounded(text)

    def _bounded(self, text: str) -> Iterator[Any]:
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:  # libyaml looks at all open lists for every sign
                    raise _Enough(f"nested deeper than {MAX_DEPTH} levels", self._place(event))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if len(self._tree.problems) >= MAX_PROBLEMS:
                raise _Enough(f"{MAX_PROBLEMS} problems so far; the rest is not read", self._place(event))
            yield event

    def document(self) -> None:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                break
        else:
            return  # nothing but comments
        event = next(self._events)
        self._tree.places[()] = self._place(event)
        value = self._node(event, (), self._place(event))
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._report((), "`---` starts a second document; a file holds one, give two files", event)
                break
        self._tree.value = None if value is _NOTHING else value

    def _node(self, event: Any, path: Path, key: Location) -> Any:
        self._tree.places[path] = key
        value = _NOTHING
        if isinstance(event, yaml.ScalarEvent) and event.tag is None:
            value = self._scalar(event, path)
        elif isinstance(event, yaml.AliasEvent):
            self._report(path, f"aliases (*{event.anchor}) are not allowed; write the value out", event)
        elif event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._report(path, f"tags ({tag}) are not allowed; remove it, and put text in quotes", event)
            self._skip(event)
        else:
            value = self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._list(path)
        if event.anchor and not isinstance(event, yaml.AliasEvent):
            self._report(path, f"anchors (&{event.anchor}) are not allowed; remove it", event)
        if value is _NOTHING:
            self._tree.broken.add(path)
        return value

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path)
            value = next(self._events)
            if key is None:
                self._skip(value)
                continue
            place = self._place(event)
            if key in lines:
                message = f"given twice, in line {lines[key]} and in line {place.line}; keep one"
                self._tree.report((*path, key), message, place)
            lines.setdefault(key, place.line)
            node = self._node(value, (*path, key), place)
            if node is not _NOTHING:
                found[key] = node
        return found

    def _key(self, event: Any, path: Path) -> str | None:
        """The key, or None once its fault is reported and its events are skipped."""
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
            self._report(path, "a key must be plain text", event)
            self._skip(event)
            return None
        key: str = event.value
        if len(key) > MAX_KEY:
            self._report(path, f"a key has at most {MAX_KEY} characters, got {show(key)}", event)
            return None
        if event.implicit[0]:
            if key == "<<":
                self._report((*path, key), "merge keys are not allowed; give a second file instead", event)
                return None
            if key in _NULL or key in _BOOL or _INT.fullmatch(key) or _FLOAT.fullmatch(key):
                self._report((*path, key), f"a key must be text; put it in quotes: '{key}'", event)
                return None
        return key

    def _list(self, path: Path) -> list[Any]:
        found: list[Any] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            node = self._node(event, (*path, len(found)), self._place(event))
            found.append(None if node is _NOTHING else node)
        return found

    def _scalar(self, event: Any, path: Path) -> Any:
        if not event.implicit[0]:  # quoted, or a block of text
            return event.value
        try:
            value = plain(event.value)
        except ValueError as error:
            self._report(path, str(error), event)
            return _NOTHING
        if not isinstance(value, str) or value.lower() in YES_NO:
            self._tree.texts[path] = event.value
        return value

    def _skip(self, event: Any) -> None:
        """Skip the rest of a node whose first event is `event`."""
        depth = 0
        while True:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            event = next(self._events)

    def _place(self, event: Any) -> Location:
        mark = event.start_mark
        return Location(self._file, mark.line + 1, mark.column + 1)

    def _report(self, path: Path, message: str, event: Any) -> None:
        self._tree.report(path, message, self._place(event))


def plain(text: str) -> Any:
    """The value of a scalar without quotes: None, a bool, an int, a float, or the text itself.

    Raises:
        ValueError: a number that a spec cannot hold.

    Source: YAML 1.2.2, section 10.3.2 (core schema).
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        if len(text) <= 22:  # 0o and 22 octal digits would be more than 64 bits as well
            value = int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            if -(2**63) <= value < 2**64:
                return value
        raise ValueError(f"whole numbers have at most 64 bits, got {show(text)}")
    if _FLOAT.fullmatch(text):
        real = float(text)
        if math.isinf(real):
            raise ValueError(f"numbers go up to 1.8e308, got {show(text)}")
        return real
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"must be a finite number, got {text}; to switch a limit off write a large one, as 1e30")
    return text
