"""Scores: evaluations of runs, runs of equal settings together, and the figures of these groups."""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rlctl.cli.context import ON_CLUSTERS, World, require
from rlctl.cli.experiments.axes import NO_SETTINGS
from rlctl.cli.experiments.record import flat
from rlctl.cli.models.listing import read_whole
from rlctl.cli.run.target import find
from rlctl.cli.text import count, number
from rlctl.errors import RlctlError
from rlctl.spec.layout import EVALUATIONS

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, RunState

_NO_CHANGE: Final = ("stop.", "evaluation.every", "evaluation.envs", "evaluation.video_every")
"""Prefixes of fields whose change during a run leaves its evaluations comparable."""
_MOST_NAMED: Final = 4
_WIDEST_NAME: Final = 60
_NEAR: Final = 0.05
MOST_STEPS: Final = 2**53
MOST_RETURN: Final = 1e100
"""Largest absolute return: above it, as in a file that another program wrote, means and spreads overflow."""
Point = tuple[int, float]
"""Agent steps, and mean return of an evaluation."""


class ScoredEvaluation(NamedTuple):
    """An evaluation as it was measured."""

    lineage: int  # of the model: each learner that goes on from a generation opens another
    steps: int
    mean: float


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """One run with its evaluations in the mode that counts."""

    run: str
    seed: int
    mode: str
    phase: str
    settings: Mapping[str, Any]  # resolved spec by dotted path, of what may change what is learned
    curve: Sequence[Point]  # ascending
    wanted: int | None  # stop.agent_steps
    goal: float | None = None  # stop.eval_return
    left_out: int = 0  # evaluations whose figures are no numbers
    changed: Sequence[str] = ()  # notes on settings that changed during the run

    @property
    def env(self) -> str:
        """Settings of the environment, as one key."""
        mine = {path: value for path, value in self.settings.items() if path.startswith("env.")}
        return json.dumps(mine, sort_keys=True, default=str)

    @property
    def reached_goal(self) -> bool:
        """Whether the last evaluation is the one that ended the run."""
        return (
            self.phase == "finished" and self.goal is not None and bool(self.curve) and self.curve[-1][1] >= self.goal
        )

    def at(self, steps: int | None) -> Point | None:
        """The newest evaluation at no more than so many agent steps; None: there is none."""
        return next((point for point in reversed(self.curve) if steps is None or point[0] <= steps), None)


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of equal settings."""

    name: str
    runs: Sequence[ScoredRun]
    points: Sequence[Point]  # one a run: the evaluation that counts

    @property
    def env(self) -> str:
        """Settings of the environment, as one key."""
        return self.runs[0].env

    @property
    def values(self) -> list[float]:
        """Mean returns, one a run."""
        return [mean for _, mean in self.points]

    @property
    def reached(self) -> tuple[int, int]:
        """Fewest and most agent steps of the evaluations that count."""
        return min(at for at, _ in self.points), max(at for at, _ in self.points)

    @property
    def seeds(self) -> list[int]:
        return sorted(one.seed for one in self.runs)


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of a group, as the table shows them. Intervals are of 95 %; None: of one run there is none."""

    group: Group
    iqm: float
    interval: tuple[float, float] | None
    below: float | None  # probability that the best group improves on it; None: the best, or another environment
    below_interval: tuple[float, float] | None


def scored(world: World, run: str, target: str | None) -> ScoredRun:
    """A run with its evaluations, read from its target.

    Raises:
        UsageError: there is no such run.
        RlctlError: its evaluations cannot be read.
    """
    backend, state = find(world, run, target)
    spec = dict(state.spec)
    mode = (spec.get("evaluation") or {}).get("mode", "greedy")
    stop = spec.get("stop") or {}
    told = _told(backend, state, mode)
    sound = [
        ScoredEvaluation(lineage, int(at), float(mean)) for lineage, at, mean in told
        if isinstance(lineage, int) and _sound(at, MOST_STEPS) and _sound(mean, MOST_RETURN)
    ]  # fmt: skip
    return ScoredRun(
        run, int(spec.get("seed", 0)), mode, state.phase, _settings(spec), curve(sound),
        stop.get("agent_steps"), stop.get("eval_return"), len(told) - len(sound), _changed(backend, state),
    )  # fmt: skip


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that may change what is learned, by dotted path."""
    return flat({key: value for key, value in _whole(spec).items() if key not in NO_SETTINGS})


def _changed(backend: Backend, state: RunState) -> list[str]:
    """Notes on settings that changed during a run, which is grouped by its last ones.

    A field that was changed and changed back counts: what was learned meanwhile stays.
    """
    if state.revision == 1:
        return []
    try:
        kept = backend.revisions(state.run)[::-1]
    except RlctlError as error:
        return [f"whether the settings of {state.run} changed while it ran is not known: {error.message}"]
    had = [*(_settings(one.spec) for one in kept), _settings(state.spec)]
    notes, fields = list[str](), list[str]()
    for path in dict.fromkeys(path for one in had for path in one if not path.startswith(_NO_CHANGE)):
        values = [value for value, _ in groupby([one.get(path) for one in had])]
        if len(values) > 1:
            fields.append(f"{_short(path)} ({', then '.join(map(_value, values))})")
    if fields:
        more = f" and {len(fields) - _MOST_NAMED} more" if len(fields) > _MOST_NAMED else ""
        named = ", ".join(fields[:_MOST_NAMED]) + more
        notes.append(f"{state.run} was trained with other settings before, its last ones count: {named}")
    if (gone := min((one.number for one in kept), default=state.revision) - 1) > 0:
        notes.append(f"the settings of {state.run} before revision {gone + 1} are not kept: they may have been others")
    return notes


def _whole(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec with all defaults, as `rlctl diff` compares it, so that another spelling is no other setting."""
    from rlctl.spec.fields import normal
    from rlctl.spec.schema import Spec

    try:
        return normal(Spec.model_validate(spec)).model_dump(mode="json")
    except (ValueError, KeyError):  # of another release
        return spec


def _sound(value: object, most: float) -> bool:
    """Whether a value is a usable number: JSON as Python reads it has NaN and Infinity, and numbers of any size."""
    return isinstance(value, int | float) and abs(value) <= most


def _told(backend: Backend, state: RunState, mode: str) -> list[tuple[Any, Any, Any]]:
    """Lineage, agent steps and mean of the evaluations of a run in one mode, from its file; of a run that is stopped
    on a cluster, from the last status of its manager, where that has them: no pod has to be started for it.
    """
    last_words = (backend.stored_status(state.run) or {}) if state.target in ON_CLUSTERS else {}
    if "history" in last_words:
        return _counted([(point[0], point[2]) for point in last_words["history"]])
    with backend.stored_files(state.run) as files:
        stored = b"" if EVALUATIONS not in files.sizes("results") else read_whole(files, "results", EVALUATIONS)
    found = []
    for line in stored.splitlines():
        try:
            one = json.loads(line)
            if one["mode"] == mode:
                found.append((one["ref"]["lineage"], one["steps"], one["mean"]))
        except (ValueError, KeyError, TypeError, RecursionError):  # the last may be half-written
            continue
    return found


def _counted(points: Sequence[tuple[Any, Any]]) -> list[tuple[int, Any, Any]]:
    """Points with an inferred lineage: a new one begins wherever the steps decrease."""
    found, lineage, before = list[tuple[int, Any, Any]](), 0, -1.0
    for at, mean in points:
        lineage += _sound(at, MOST_STEPS) and at < before
        before = at if _sound(at, MOST_STEPS) else before
        found.append((lineage, at, mean))
    return found


def curve(points: Sequence[ScoredEvaluation]) -> list[Point]:
    """Points in ascending order of steps, of which the last is the run's last evaluation.

    A point takes the place of an older one of as many steps: the same model on fresh seeds, which says more than the
    evaluation that it was chosen by. It also takes the place of those of more steps and an older lineage, which a
    learner that went back to a generation has lost. Within a lineage evaluators are done in any order.

    Args:
        points: in the order in which they were measured.
    """
    found: list[ScoredEvaluation] = []  # of lineages that never fall
    for one in points:
        if not found or (one.steps > found[-1].steps and one.lineage >= found[-1].lineage):
            found.append(one)
            continue
        if any(other.lineage > one.lineage and other.steps <= one.steps for other in found):
            continue  # measured late, and lost before
        found = [
            other for other in found
            if other.steps < one.steps or (other.steps > one.steps and other.lineage >= one.lineage)
        ]  # fmt: skip
        insort(found, one, key=attrgetter("steps"))
    return [(one.steps, one.mean) for one in found]


def grouped(runs: Sequence[ScoredRun], steps: int | None) -> list[Group]:
    """Runs of equal settings together, in the order of their first; those without an evaluation are left out."""
    counted = [one for one in runs if one.at(steps) is not None]
    alike: dict[str, list[ScoredRun]] = {}
    for one in counted:
        alike.setdefault(json.dumps(one.settings, sort_keys=True, default=str), []).append(one)
    firsts = [some[0] for some in alike.values()]
    names = _names(firsts)
    return [
        Group(name, some, [point for one in some if (point := one.at(steps)) is not None])
        for name, some in zip(names, alike.values(), strict=True)
    ]


def _names(firsts: Sequence[ScoredRun]) -> list[str]:
    """Names of groups, of the fields in which they differ.

    At most _MOST_NAMED fields, those first that tell groups apart; without those that are None where that suffices.
    The name of the first run is added where the fields are not enough.
    """
    if len(firsts) < 2:
        return ["all" for _ in firsts]
    paths = dict.fromkeys(path for one in firsts for path in one.settings)  # one that has it not has None
    differing = [path for path in paths if _kinds(firsts, [path]) > 1]
    telling: list[str] = []
    for path in differing:
        if _kinds(firsts, [*telling, path]) > _kinds(firsts, telling):
            telling.append(path)
    chosen = [*telling, *(path for path in differing if path not in telling)][:_MOST_NAMED]
    chosen.sort(key=differing.index)
    found = [_named(one, chosen) for one in firsts]
    plain = [
        _named(one, [path for path in chosen if one.settings.get(path) is not None]) or whole
        for one, whole in zip(firsts, found, strict=True)
    ]
    for names in (plain, found):
        if len(set(names)) == len(names) and all(names):
            return names
    return [f"{name} ({one.run})".strip() for name, one in zip(found, firsts, strict=True)]


def _named(one: ScoredRun, paths: Sequence[str]) -> str:
    return " ".join(f"{_short(path)}={_value(one.settings.get(path))}" for path in paths)


def _kinds(firsts: Sequence[ScoredRun], paths: Sequence[str]) -> int:
    """Number of groups that these fields tell apart."""
    return len({json.dumps([one.settings.get(path) for path in paths], default=str) for one in firsts})


def _short(path: str) -> str:
    return path.removeprefix("policies.main.")


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def figures(groups: Sequence[Group]) -> list[Figures]:
    """Statistics of groups, the best first, each with the probability that the best improves on it.

    Raises:
        UsageError: numpy is not installed.
    """
    require("sweep", "numpy")
    from rlctl.statistics import bootstrap, compared, improvement, iqm

    ordered = sorted(groups, key=lambda group: iqm(group.values), reverse=True)
    found = []
    for group in ordered:
        interval = bootstrap(group.values, iqm) if len(group.values) > 1 else None
        below, spread, best = None, None, ordered[0]
        if group is not best and group.env == best.env:
            below = improvement(best.values, group.values)
            if min(len(best.values), len(group.values)) > 1:
                spread = compared(best.values, group.values, improvement)[1:]
        found.append(Figures(group, iqm(group.values), interval, below, spread))
    return found


def notes(runs: Sequence[ScoredRun], groups: Sequence[Group], steps: int | None) -> list[str]:
    """Caveats about the figures, one sentence each."""
    told = [
        f"{one.run}: evaluations left out, of NaN, infinite or too large figures: {one.left_out}"
        for one in runs if one.left_out
    ]  # fmt: skip
    told += [note for one in runs for note in one.changed]
    told += [note for one in runs if (note := _unfinished(one, steps))]
    told += [*_seeds(groups), *_unlike(groups), *_apart(groups, steps)]
    if any(len(group.points) == 1 for group in groups):
        told.append("a group of one run has no interval; --seeds of a sweep makes more")
    return told


def _unfinished(one: ScoredRun, steps: int | None) -> str:
    """Caveat that the evaluation that counts is missing, or not at the steps asked for; "" if there is none."""
    point = one.at(steps)
    if point is None:
        early = f" of at most {steps:,} agent steps" if steps is not None and one.curve else ""
        return f"{one.run} has no evaluation{early} and is left out ({one.phase})"
    at, asked = point[0], one.wanted if steps is None else steps
    if steps is not None and one.curve[-1][0] >= steps:
        near = at >= (1 - _NEAR) * steps
        return "" if near else f"the newest evaluation of {one.run} of at most {steps:,} agent steps is at {at:,}"
    if asked is not None and at < asked and not one.reached_goal:
        return f"{one.run} has come to {at:,} of {asked:,} agent steps by its last evaluation ({one.phase})"
    if one.phase == "finished":
        return ""
    of = f" of {asked:,}" if asked else ""
    return f"{one.run} is {one.phase}: its evaluation at {at:,}{of} agent steps counts"


def _seeds(groups: Sequence[Group]) -> list[str]:
    """Caveats on seeds that make groups unequal, or their runs dependent."""
    told = []
    if len({tuple(group.seeds) for group in groups}) > 1:
        told.append("seeds differ: " + "; ".join(f"{group.name} has {_listed(group.seeds)}" for group in groups))
    for group in groups:
        if len(set(group.seeds)) < len(group.seeds):
            told.append(f"{group.name} has a seed twice: {_listed(group.seeds)}; such runs are not independent")
    return told


def _unlike(groups: Sequence[Group]) -> list[str]:
    """Caveats on groups whose returns are not comparable."""
    told = []
    if len({group.env for group in groups}) > 1:
        told.append("environments differ: returns of different ones are not compared")
    if len({one.mode for group in groups for one in group.runs}) > 1:
        told.append("evaluation.mode differs: greedy and sampled returns stand side by side")
    return told


def _apart(groups: Sequence[Group], steps: int | None) -> list[str]:
    """Caveat on evaluations that count at numbers of steps that differ by more than _NEAR of the most."""
    ends = sorted((point[0], one.run) for group in groups for one, point in zip(group.runs, group.points, strict=True))
    if not ends or ends[-1][0] - ends[0][0] <= _NEAR * ends[-1][0]:
        return []
    hint = "; --steps N compares what was reached by then" if steps is None else ""
    (low, behind), (high, ahead) = ends[0], ends[-1]
    return [f"the evaluations that count are of {low:,} ({behind}) to {high:,} ({ahead}) agent steps{hint}"]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def rows(found: Sequence[Figures]) -> list[tuple[str, ...]]:
    """Cells of the table, with its heading; a long name is cut where it stays unique."""
    cut = [_cut(one.group.name) for one in found]
    head = ("SETTINGS", "RUNS", "IQM", "95 %", "LOWEST", "HIGHEST", "STEPS", "BEST IMPROVES ON IT", "95 %")
    body = []
    for short, one in zip(cut, found, strict=True):
        name = short if cut.count(short) == 1 else one.group.name
        low, high = map(count, one.group.reached)
        values = one.group.values
        body.append(
            (
                name, str(len(values)), number(one.iqm), _span(one.interval), number(min(values)), number(max(values)),
                low if low == high else f"{low} to {high}", "-" if one.below is None else f"{one.below:.2f}",
                _span(one.below_interval),
            )
        )  # fmt: skip
    return [head, *body]


def _cut(name: str) -> str:
    return name if len(name) <= _WIDEST_NAME else f"{name[: _WIDEST_NAME - 1]}…"


def _span(interval: tuple[float, float] | None) -> str:
    return "-" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def as_plain(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """The groups as `-o json` has them."""
    return [
        {
            "settings": one.group.name, "iqm": one.iqm, "interval": one.interval, "best_improves": one.below,
            "best_improves_interval": one.below_interval,
            "runs": [
                {"run": run.run, "seed": run.seed, "phase": run.phase, "value": mean, "steps": at}
                for run, (at, mean) in zip(one.group.runs, one.group.points, strict=True)
            ],
        }
        for one in found
    ]  # fmt: skip
