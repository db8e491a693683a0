"""Check that the arrays of a stored policy fit a new run's network, part by part: `init` of a spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlctl.spec.problems.messages import Fault
from rlctl.spec.words import both, closest

Arrays = Mapping[str, str]
"""Name of each array -> dtype and shape, as in `torso.mlp.0.weight` -> `float32 [64, 4]`."""


def part_of(array: str) -> str:
    """The part of a network that an array belongs to: the module that its name begins with."""
    return array.partition(".")[0]


def taken(arrays: Arrays, parts: Sequence[str]) -> dict[str, str]:
    """Arrays of the given parts; of all parts where none is given."""
    return {name: array for name, array in arrays.items() if not parts or part_of(name) in parts}


def unknown_parts(given: Arrays, parts: Sequence[str], of: str) -> Iterator[Fault]:
    """Parts that the stored policy does not have.

    Args:
        given: its arrays.
        of: its name.
    """
    known = sorted(set(map(part_of, given)))
    for part in dict.fromkeys(parts):
        if part not in known:
            close = closest(part, known)
            meant = f"; did you mean `{close}`?" if close else ""
            yield Fault(("init", "parts"), f"{of} has no part `{part}`{meant}; it has {both(known)}")


def misfits(given: Arrays, own: Arrays, parts: Sequence[str], of: str) -> Iterator[Fault]:
    """Every array that is taken and does not fit, or is missing on either side.

    Args:
        given: arrays of the stored policy.
        own: those of the new network.
        of: name of the stored policy.
    """
    theirs, ours, path = taken(given, parts), taken(own, parts), ("init", "run")
    for part in dict.fromkeys(map(part_of, [*theirs, *ours])):
        sides = [any(part_of(name) == part for name in side) for side in (theirs, ours)]
        if not all(sides):
            where = f"{of} has it, and this network has not" if sides[0] else f"this network has it, and {of} has not"
            yield Fault(path, f"part `{part}`: {where}; name in init.parts those to take")
            continue
        for name in dict.fromkeys([*theirs, *ours]):
            was, now = theirs.get(name, "not there"), ours.get(name, "not there")
            if part_of(name) == part and was != now:
                yield Fault(path, f"{name} is {was} in {of}, and {now} in this network")
