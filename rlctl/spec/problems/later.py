"""Features of the schema that are not built yet: one line each, removed by the work that brings it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlctl.spec import fields
from rlctl.spec.base import Model
from rlctl.spec.problems.messages import Fault
from rlctl.spec.schema import Spec
from rlctl.spec.words import show


@dataclass(frozen=True, slots=True)
class Later:
    """A refused value: where (`*` is any key), which, and what can be written today."""

    path: str
    refused: Callable[[Any], bool]
    today: str


def _given(value: Any) -> bool:
    return value is not None


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _more_than(most: int) -> Callable[[Any], bool]:
    return lambda value: value is not None and (len(value) if isinstance(value, dict) else value) > most


def _other_than(usual: Any) -> Callable[[Any], bool]:
    return lambda value: value is not None and value != usual


LATER = (
    Later("policies", _more_than(1), "name one policy"),
    Later("policies", lambda value: "main" not in value, "call the policy main"),
    Later("policies.*.population", _more_than(1), "remove it"),
    Later("env.id", lambda value: value.startswith(("openspiel/", "gfootball/")), "use a Gymnasium id or your own"),
    Later("env.splits", _more_than(1), "remove it"),
    Later("inference.mode", _is("central"), "remove it"),
    Later("inference.colocate", _is("learner"), "remove it"),
    Later("inference.max_wait_ms", _other_than(5.0), "remove it"),
    Later("inference.max_batch", _given, "remove it"),
    Later("league", _given, "remove it"),
    Later("pbt", _given, "remove it"),
    Later("roles.inference", _given, "remove it"),
)


def not_built(spec: Spec) -> Iterator[Fault]:
    """Faults for everything in the spec that is not built yet."""
    plain = fields.folded(spec)
    for later in LATER:
        for path, value in _found(plain, tuple(later.path.split("."))):
            if later.refused(value):
                shown = f" ({show(value)})" if isinstance(value, (str, int, float)) else ""
                yield Fault(fields.as_written(spec, path), f"not built yet{shown}; {later.today}")


def _found(section: Any, pattern: tuple[str, ...], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values that a pattern matches; the values of absent sections are not there."""
    if not pattern:
        yield path, section
        return
    key, *rest = pattern
    if isinstance(section, dict):
        for name in section if key == "*" else ():
            yield from _found(section[name], tuple(rest), (*path, name))
    elif isinstance(section, Model):
        yield from _found(getattr(section, key), tuple(rest), (*path, key))
