"""Charts of a run for its status page, from its history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from rlctl_agents.manager.status.history import HistoryView, MarkKind, in_order
from rlctl_agents.manager.web.charts import Chart, ChartMark, ChartPoint, Line, XAxis, by_name, drawn
from rlctl_agents.manager.web.rendering import number
from rlctl_agents.runtime.gauges import MEMORY, STATE_GAUGES

STEPS_AXIS, TIME_AXIS = XAxis("agent steps learned from"), XAxis("running time", time=True)
MOST_LEARNING, MOST_TOLD = 12, 5
"""Charts of a section, at most; the others are named."""
NAMED: Mapping[str, tuple[str, str, float | None, float | None]] = {
    "loss/policy_loss": ("Policy loss", "loss", None, None),
    "loss/value_loss": ("Value loss", "loss", 0.0, None),
    "loss/entropy": ("Entropy of the policy", "nats", None, None),
    "loss/kl": ("KL divergence of an update", "nats", None, None),
    "loss/kl_actors": ("KL divergence from the actors", "nats", None, None),
    "loss/explained_variance": ("Explained variance of the value", "share, 1 is all", None, 1.0),
    "learner/grad_norm": ("Norm of the gradient", "norm", 0.0, None),
    "learner/lr": ("Learning rate", "per step", 0.0, None),
}
"""Curve -> title, unit, and bounds that the y axis includes; in the order in which they are shown. Others follow."""


class Section(NamedTuple):
    """Charts of one subject."""

    charts: Sequence[Markup]
    left_out: Sequence[str] = ()  # names of charts that are not drawn


class Panels(NamedTuple):
    """All charts of a page."""

    returns: Markup
    learning: Section
    speed: Section
    told: Section  # numbers that the environment reports


def of_history(view: HistoryView, mode: str) -> Panels:
    """Charts of a run.

    Args:
        mode: mode that counts; it is drawn first.
    """
    modes = sorted(view.evaluations, key=lambda one: (one != mode, one))
    return Panels(_returns(view, modes), _learning(view), _speed(view), _told(view, modes))


class PanelCache:
    """Cache of the newest history's charts, drawn at the first request after a change. Thread-safe."""

    def __init__(self) -> None:
        self._made: tuple[HistoryView, str, Panels] | None = None

    def of(self, view: HistoryView, mode: str) -> Panels:
        """Charts as of `of_history`."""
        made = self._made
        if made is None or made[0] is not view or made[1] != mode:
            made = self._made = (view, mode, of_history(view, mode))
        return made[2]


def _returns(view: HistoryView, modes: Sequence[str]) -> Markup:
    lines: list[Line] = []
    for mode in modes:
        points = [
            ChartPoint(one.steps, one.mean, one.mean - one.std, one.mean + one.std,
                  f"{number(one.mean)} ± {number(one.std)}, {number(one.min)} to {number(one.max)}")
            for one in in_order(view.evaluations[mode])
        ]  # fmt: skip
        lines.append(Line(f"evaluation, {mode}", points, dots=True, colour=len(lines) + 1))
    lines.append(Line("training", _over_steps(view, "return/train"), colour=3))
    marks = [ChartMark(mark.kind, mark.steps, mark.text) for mark in view.marks]
    return drawn(Chart("Return", "return of an episode", STEPS_AXIS, lines, marks), large=True)


def _learning(view: HistoryView) -> Section:
    names = [name for name in view.rows.values if name.startswith(("loss/", "learner/"))]
    names = [name for name in names if name.removeprefix("learner/") not in STATE_GAUGES]
    order = list(NAMED)
    names.sort(key=lambda name: (order.index(name) if name in NAMED else len(order), name))
    charts = []
    for name in names[:MOST_LEARNING]:
        title, unit, floor, ceiling = NAMED.get(name, (_plainly(name.partition("/")[2]), "value", None, None))
        line = Line(title, _over_steps(view, name))
        charts.append(Chart(title, unit, STEPS_AXIS, [line], _marks(view, STEPS_AXIS), floor, ceiling))
    return Section([*map(drawn, charts)], [_plainly(name.partition("/")[2]) for name in names[MOST_LEARNING:]])


def _speed(view: HistoryView) -> Section:
    def chart(title: str, unit: str, names: Mapping[str, str], scale: float = 1.0, most: float | None = None) -> Chart:
        lines = {said: _over_time(view, name, lambda value: scale * value) for name, said in names.items()}
        return Chart(title, unit, TIME_AXIS, by_name(lines), _marks(view, TIME_AXIS), 0.0, most)

    charts = [
        chart("Steps a second", "steps / s", {
            "throughput/env_steps_per_s": "environments", "throughput/consumed_steps_per_s": "learned from"}),
        chart("Updates a second", "updates / s", {"throughput/updates_per_s": "updates"}),
        chart("Lag of what is learned from", "versions", {"lag/mean": "mean", "lag/p95": "p95", "lag/max": "max"}),
        chart("Waiting", "% of the time", {
            "waits/learner_waits_data": "learner for data", "waits/actor_waits_credit": "actors for credit",
            "waits/actor_waits_model": "actors for models",
            "waits/learner_waits_draw": "learner for draws"}, 100.0, 100.0),
        chart("Rows of the replay", "rows", {"replay/rows": "stored", "replay/drawable": "can be drawn"}),
        chart("Replay a second", "rows / s", {
            "replay/sampled_per_s": "drawn", "replay/inserted_per_s": "inserted"}),
        chart("Samples per insert", "rows drawn for each", {"replay/samples_per_insert": "since the beginning"}),
        chart("Memory of the learner", "MiB", {f"learner/{MEMORY}": "resident"}, 2.0**-20),
    ]  # fmt: skip
    return Section([*map(drawn, charts)])


def _told(view: HistoryView, modes: Sequence[str]) -> Section:
    trained = {name.partition("/")[2].removesuffix("/train") for name in view.rows.values if name.startswith("info/")}
    names = sorted(trained | {name for mode in modes for one in view.evaluations[mode] for name in one.info})
    charts = []
    for name in names[:MOST_TOLD]:
        lines = [
            Line(f"evaluation, {mode}", [ChartPoint(one.steps, one.info[name])
                                         for one in in_order(view.evaluations[mode])
                                         if name in one.info], dots=True, colour=at + 1)
            for at, mode in enumerate(modes)
        ]  # fmt: skip
        lines.append(Line("training", _over_steps(view, f"info/{name}/train"), colour=3))
        charts.append(Chart(name, "mean at an episode's end", STEPS_AXIS, lines, _marks(view, STEPS_AXIS)))
    return Section([*map(drawn, charts)], names[MOST_TOLD:])


def _marks(view: HistoryView, axis: XAxis) -> list[ChartMark]:
    """Marks on all charts but that of returns: no generations, of which there are many."""
    shown: tuple[MarkKind, ...] = ("restart", "failure", "change")
    return [
        ChartMark(one.kind, one.running_s if axis.time else one.steps, one.text)
        for one in view.marks
        if one.kind in shown
    ]


def _over_steps(view: HistoryView, name: str) -> list[ChartPoint]:
    return _points(view.rows.steps, view.rows.values.get(name, ()))


def _over_time(view: HistoryView, name: str, value: Callable[[float], float]) -> list[ChartPoint]:
    return [one._replace(y=value(one.y)) for one in _points(view.rows.running_s, view.rows.values.get(name, ()))]


def _points(xs: Sequence[float], ys: Sequence[float | None]) -> list[ChartPoint]:
    return [ChartPoint(x, y) for x, y in zip(xs, ys, strict=False) if y is not None]


def _plainly(name: str) -> str:
    return name.replace("_", " ")
