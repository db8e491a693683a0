"""Axes of a sweep: `--set PATH=VALUES` as values and ranges.

Commas that stand outside of brackets, braces and quotes separate values: `1e-4,3e-4` is two, `[64, 64]` one,
`[64],[64, 64]` two. `LOW..HIGH`, or `LOW..HIGH:log`, is a range, for a search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from rlctl.errors import Problem

Settings = Mapping[str, str]
"""Path -> value, both as in `--set`."""

_NUMBER: Final = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE: Final = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(:log)?")
_NAMED_BY_THE_SWEEP: Final = {"run": "a sweep names its runs itself: --name", "target": "a sweep has one target"}
NO_SETTINGS: Final = ("run", "seed", "target", "storage", "images", "kubernetes", "code", "checkpoint", "trackers")
"""Sections and fields in which runs of one group may differ: they do not change what is learned."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A field of the spec that a sweep varies: over listed values, or over a range."""

    path: str
    values: tuple[str, ...]  # for a range both bounds
    range: bool = False
    log: bool = False

    @property
    def text(self) -> str:
        """The axis as `--set` has it."""
        values = ("..".join(self.values) + ":log" * self.log) if self.range else ",".join(self.values)
        return f"{self.path}={values}"


def split(text: str) -> list[str]:
    """Values of a list with commas.

    Example:
        `split("[1, 2],{a: 1, b: 2},'x,y'")` returns three values.
    """
    parts, depth, quote, before = [""], 0, "", ","
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and before in ",[{:":  # elsewhere it is an apostrophe
            quote = sign
        elif sign == "," and depth <= 0:
            parts.append("")
            before = sign
            continue
        else:
            depth += (sign in "[{") - (sign in "]}")
        parts[-1] += sign
        before = before if sign.isspace() else sign
    return [part.strip() for part in parts]


def read(sets: Iterable[str], *, search: bool) -> tuple[list[str], list[Axis], list[Problem]]:
    """Split `--set` options into fixed values and axes.

    Args:
        sets: values of `--set`; for one path the last wins.
        search: ranges are allowed.

    Returns:
        Options with one value, unchanged; the axes; the problems.
    """
    fixed: dict[str, str] = {}
    axes: dict[str, Axis] = {}
    problems: list[Problem] = []
    for text in sets:
        path, _, written = text.partition("=")
        fixed.pop(path, None)
        axes.pop(path, None)
        values, bounds = split(written), _RANGE.fullmatch(written.strip())
        if len(values) == 1 and bounds is None:
            fixed[path] = text
            continue
        axes[path] = Axis(path, tuple(values))
        fault = _NAMED_BY_THE_SWEEP.get(path, "")
        if path != "seed" and path.partition(".")[0] in NO_SETTINGS:
            fault = fault or "trials that differ in it alone are one group of a comparison: a sweep for each value"
        if bounds is not None:
            axes[path] = Axis(path, (bounds[1], bounds[2]), range=True, log=bool(bounds[3]))
            fault = fault or _wrong_range(float(bounds[1]), float(bounds[2]), log=bool(bounds[3]), search=search)
        elif "" in values:
            fault = fault or "has an empty value; a list for one run is written in brackets, nothing as null"
        elif len(set(values)) < len(values):
            fault = fault or "has the same value twice"
        problems += [Problem(path, fault, f"--set {text}")] if fault else []
    return [*fixed.values()], [*axes.values()], problems


def _wrong_range(low: float, high: float, *, log: bool, search: bool) -> str:
    if not search:
        return "a range needs --search optuna; without a search write values, as in 1e-4,3e-4"
    if low >= high:
        return f"its lower end must be below the other, got {low:g} and {high:g}"
    return f"a range in logarithms lies above 0, got {low:g}" if log and low <= 0 else ""


def grid(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Settings of every combination, the last axis fastest; with a range those of `tried`."""
    if not any(axis.range for axis in axes):
        return [
            dict(zip((axis.path for axis in axes), values, strict=True))
            for values in product(*(axis.values for axis in axes))
        ]
    return tried(axes)


def tried(axes: Sequence[Axis]) -> list[dict[str, str]]:
    """Settings to check before a sweep: each value of an axis once, with the first values of the others."""
    first = {axis.path: axis.values[0] for axis in axes}
    return [first, *({**first, axis.path: value} for axis in axes for value in axis.values[1:])]


def words(settings: Settings) -> str:
    """`algorithm.lr=1e-4 env.id=CartPole-v1`; "" for none."""
    return " ".join(f"{path}={value}" for path, value in settings.items())
