"""Evaluations of runs, runs of equal settings together, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rlctl.cli.context import World
from rlctl.cli.display.text import count, number
from rlctl.cli.experiments.record import flat
from rlctl.cli.models.listing import whole
from rlctl.cli.run.target import as_now, find
from rlctl.errors import Conflict, UsageError

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState

_NO_SETTINGS: Final = ("run", "seed", "target", "storage", "images", "kubernetes", "code", "checkpoint")
"""Sections and fields in which runs of one group may differ: they do not change what is learned."""
_MOST_NAMED: Final = 4
_NEAR: Final = 0.05
Point = tuple[int, float]
"""Agent steps, and mean return of an evaluation."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One run with its evaluations in the mode that counts."""

    run: str
    seed: int
    mode: str
    phase: str
    settings: Mapping[str, Any]  # resolved spec by dotted path, of what may change what is learned
    curve: Sequence[Point]  # ascending
    wanted: int | None  # stop.agent_steps

    @property
    def env(self) -> dict[str, Any]:
        return {path: value for path, value in self.settings.items() if path.startswith("env.")}

    def at(self, steps: int | None) -> float | None:
        """Its newest evaluation, of no more than so many agent steps; None: there is none."""
        return next((mean for at, mean in reversed(self.curve) if steps is None or at <= steps), None)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of equal settings."""

    name: str
    runs: Sequence[Scored]
    values: Sequence[float]  # one a run

    @property
    def seeds(self) -> list[int]:
        return sorted(one.seed for one in self.runs)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a table says of a group. Intervals are of 95 %; None: of one run there is none."""

    group: Group
    iqm: float
    interval: tuple[float, float] | None
    below: float | None  # probability that the best group improves on it; None: the best, or another environment
    below_interval: tuple[float, float] | None


def scored(world: World, run: str, target: str | None) -> Scored:
    """
    Raises:
        UsageError: there is no such run.
        RlctlError: its evaluations cannot be had.
    """
    backend, state = find(world, run, target)
    state = as_now(backend, state)
    spec = dict(state.spec)
    mode = (spec.get("evaluation") or {}).get("mode", "greedy")
    settings = flat({key: value for key, value in spec.items() if key not in _NO_SETTINGS})
    wanted = (spec.get("stop") or {}).get("agent_steps")
    return Scored(run, int(spec.get("seed", 0)), mode, state.phase, settings, _curve(backend, state, mode), wanted)


def _curve(backend: Backend, state: RunState, mode: str) -> list[Point]:
    """From its file; of a run that is taken down on a cluster, from the last words of its manager."""
    try:
        files = backend.stored_files(state.run)
        stored = (
            b"" if "evaluations.jsonl" not in files.sizes("results") else whole(files, "results", "evaluations.jsonl")
        )
    except Conflict:
        told = backend.stored_status(state.run) or {}
        return curve([(point[0], point[2]) for point in told.get("history") or ()])
    found = []
    for line in stored.splitlines():
        try:
            one = json.loads(line)
            if one["mode"] == mode:
                found.append((int(one["steps"]), float(one["mean"])))
        except (ValueError, KeyError, TypeError, RecursionError):  # the last may be half-written
            continue
    return curve(found)


def curve(points: Sequence[Point]) -> list[Point]:
    """Points in ascending order: one takes the place of an older one of as many steps, and of those of more, which a
    learner that went back to a generation has lost."""
    found: list[Point] = []
    for at, mean in points:
        while found and found[-1][0] >= at:
            found.pop()
        found.append((at, mean))
    return found


def grouped(runs: Sequence[Scored], steps: int | None) -> list[Group]:
    """Runs of equal settings together, in the order of their first; those without an evaluation are left out."""
    counted = [one for one in runs if one.at(steps) is not None]
    alike: dict[str, list[Scored]] = {}
    for one in counted:
        alike.setdefault(json.dumps(one.settings, sort_keys=True, default=str), []).append(one)
    firsts = [some[0] for some in alike.values()]
    names = _names(firsts)
    return [
        Group(name, some, [value for one in some if (value := one.at(steps)) is not None])
        for name, some in zip(names, alike.values(), strict=True)
    ]


def _names(firsts: Sequence[Scored]) -> list[str]:
    """Groups by what they differ in; by their first run where that does not tell them apart."""
    if len(firsts) < 2:
        return ["all" for _ in firsts]
    common = [path for path in firsts[0].settings if all(path in one.settings for one in firsts)]
    differing = [path for path in common if len({json.dumps(one.settings[path], default=str) for one in firsts}) > 1]
    named = differing[:_MOST_NAMED]
    found = [" ".join(f"{_short(path)}={_value(one.settings[path])}" for path in named) for one in firsts]
    alone = len(set(found)) == len(found) and len(differing) <= _MOST_NAMED and all(found)
    return found if alone else [f"{name} ({one.run})".strip() for name, one in zip(found, firsts, strict=True)]


def _short(path: str) -> str:
    return path.removeprefix("policies.main.")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def figures(groups: Sequence[Group]) -> list[Figures]:
    """The best first, each with the probability that the best improves on it.

    Raises:
        UsageError: numpy is not installed.
    """
    try:
        from rlctl.statistics import bootstrap, compared, improvement, iqm
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise UsageError("numpy is not installed here", hint='pip install "rlctl[sweep]"') from error
    ordered = sorted(groups, key=lambda group: iqm(group.values), reverse=True)
    found = []
    for group in ordered:
        interval = bootstrap(group.values, iqm) if len(group.values) > 1 else None
        below, spread, best = None, None, ordered[0]
        if group is not best and group.runs[0].env == best.runs[0].env:
            below = improvement(best.values, group.values)
            if min(len(best.values), len(group.values)) > 1:
                spread = compared(best.values, group.values, improvement)[1:]
        found.append(Figures(group, iqm(group.values), interval, below, spread))
    return found


def notes(runs: Sequence[Scored], groups: Sequence[Group], steps: int | None) -> list[str]:
    """What keeps the figures from being what they seem, in sentences."""
    told = []
    for one in runs:
        at = one.curve[-1][0] if one.curve else 0
        if one.at(steps) is None:
            early = f" of at most {steps:,} agent steps" if steps is not None and one.curve else ""
            told.append(f"{one.run} has no evaluation{early} and is left out ({one.phase})")
        elif steps is not None and at < steps and one.phase != "finished":
            told.append(
                f"{one.run} has not come to {steps:,} agent steps, and is {one.phase}: its evaluation at {at:,} counts"
            )
        elif steps is None and one.phase != "finished":
            of = f" of {one.wanted:,}" if one.wanted else ""
            told.append(f"{one.run} is {one.phase}: its evaluation at {at:,}{of} agent steps counts")
    seeds = {tuple(group.seeds) for group in groups}
    if len(seeds) > 1:
        told.append("seeds differ: " + "; ".join(f"{group.name} has {_listed(group.seeds)}" for group in groups))
    for group in groups:
        if len(set(group.seeds)) < len(group.seeds):
            told.append(f"{group.name} has a seed twice: {_listed(group.seeds)}; such runs are not independent")
    if len({json.dumps(group.runs[0].env, sort_keys=True, default=str) for group in groups}) > 1:
        told.append("environments differ: returns of different ones are not compared")
    if len({one.mode for group in groups for one in group.runs}) > 1:
        told.append("evaluation.mode differs: greedy and sampled returns stand side by side")
    ends = [one.curve[-1][0] for group in groups for one in group.runs]
    if steps is None and ends and max(ends) - min(ends) > _NEAR * max(ends):
        told.append(
            f"the last evaluations are of {min(ends):,} to {max(ends):,} agent steps; "
            "--steps N compares what was reached by then"
        )
    if any(len(group.values) == 1 for group in groups):
        told.append("a group of one run has no interval; --seeds of a sweep makes more")
    return told


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def rows(found: Sequence[Figures]) -> list[tuple[str, ...]]:
    """Cells of the table, with its heading."""
    head = ("SETTINGS", "RUNS", "IQM", "95 %", "LOWEST", "HIGHEST", "STEPS", "BEST IMPROVES ON IT", "95 %")
    body = []
    for one in found:
        ends = [run.curve[-1][0] for run in one.group.runs]
        reached = (
            count(min(ends)) if count(min(ends)) == count(max(ends)) else f"{count(min(ends))} to {count(max(ends))}"
        )
        values = one.group.values
        body.append(
            (
                one.group.name, str(len(values)), number(one.iqm), _span(one.interval), number(min(values)),
                number(max(values)), reached, "-" if one.below is None else f"{one.below:.2f}",
                _span(one.below_interval),
            )
        )  # fmt: skip
    return [head, *body]


def _span(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def as_plain(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """For `-o json`."""
    return [
        {
            "settings": one.group.name, "iqm": one.iqm, "interval": one.interval, "best_improves": one.below,
            "best_improves_interval": one.below_interval,
            "runs": [
                {"run": run.run, "seed": run.seed, "phase": run.phase, "value": value, "steps": run.curve[-1][0]}
                for run, value in zip(one.group.runs, one.group.values, strict=True)
            ],
        }
        for one in found
    ]  # fmt: skip
