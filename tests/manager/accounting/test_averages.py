"""Figures of updates, drawn and shown: means over all of them, not the newest of hundreds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from rlctl_agents.manager.accounting.averages import LearnerAverages
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.loop import ManagerContext, RunningLoop
from rlctl_agents.manager.trackers.curves import Curves
from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.runtime.process import Refusals
from rlctl_agents.types.control import Report
from tests.manager.world import LEARNER, Run, Time, boot, everybody
from tests.support.fakes import Manager, process_of


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def metrics(time: Time) -> Metrics:
    return Metrics(clock=time)


def updates(metrics: Metrics, *losses: float) -> None:
    for loss in losses:
        metrics.average("loss.total", loss)


def report(metrics: Metrics, number: int = 1, **gauges: float) -> Report:
    """As a learner reports."""
    seen = metrics.values()
    return Report(
        "learner", boot(number), 1, gauges={**seen.gauges, **gauges}, averages=metrics.averages()
    )  # fmt: skip


def test_a_gauge_of_updates_is_their_mean_over_the_last_seconds(metrics: Metrics, time: Time) -> None:
    updates(metrics, 1.0, 2.0, 6.0)
    assert metrics.values().gauges["loss.total"] == 3
    for _ in range(20):
        time.now += 1
        updates(metrics, *range(100))
        metrics.values()
    assert metrics.values().gauges["loss.total"] == pytest.approx(49.5), "nothing of the first three is left"


def test_a_gauge_of_updates_stays_when_there_are_no_more(metrics: Metrics, time: Time) -> None:
    updates(metrics, 1.0, 3.0)
    for _ in range(60):
        time.now += 1
        assert metrics.values().gauges["loss.total"] == 2


def test_an_update_that_is_not_finite_does_not_hide_the_others(metrics: Metrics) -> None:
    updates(metrics, 1.0, math.nan, math.inf, -math.inf, 3.0)
    assert metrics.values().gauges["loss.total"] == 2
    only = Metrics()
    updates(only, math.nan)
    assert "loss.total" not in only.values().gauges


def test_a_curve_has_every_update_in_one_point_and_none_in_two(metrics: Metrics, time: Time) -> None:
    looks, drawn = LearnerAverages(), list[float]()
    updates(metrics, 9.0)
    assert looks.look([report(metrics)])["loss.total"] == 9
    for point in range(5):
        for second in range(5):
            time.now += 1
            updates(metrics, *[10.0 * point + second] * 90)
            report(metrics)  # most reports are never drawn, and some never arrive
        drawn.append(looks.look([report(metrics)])["loss.total"])
    assert drawn == pytest.approx([2, 12, 22, 32, 42])
    assert "loss.total" not in looks.look([report(metrics)]), "there was no update since"


def test_a_manager_that_meets_a_running_learner_draws_its_last_seconds_and_not_its_life(
    metrics: Metrics, time: Time
) -> None:
    updates(metrics, *[100.0] * 1000)
    metrics.values()
    for _ in range(20):
        time.now += 1
        updates(metrics, 1.0, 3.0)
        metrics.values()
    assert LearnerAverages().look([report(metrics)])["loss.total"] == 2


def test_of_several_ranks_the_one_that_leads_is_drawn_and_a_new_one_begins_anew(metrics: Metrics, time: Time) -> None:
    other, looks = Metrics(clock=time), LearnerAverages()
    updates(metrics, 1.0)
    updates(other, 5.0)
    assert looks.look([report(other, 2, rank=1.0), report(metrics, 1, rank=0.0)])["loss.total"] == 1
    updates(other, 7.0)
    assert looks.look([report(other, 2, rank=0.0)])["loss.total"] == 6
    updates(other, 8.0)
    assert looks.look([report(other, 2, rank=0.0)])["loss.total"] == 8
    assert looks.look([report(other, 2, rank=-1.0)]) == {}


def test_what_is_no_average_is_drawn_as_it_is_now(metrics: Metrics) -> None:
    looks = LearnerAverages()
    metrics.set("lr", 1e-3)
    looks.look([report(metrics)])
    metrics.set("lr", 5e-4)
    assert looks.look([report(metrics)])["lr"] == 5e-4


def test_the_manager_keeps_the_averages_of_a_report(run: Run, metrics: Metrics) -> None:
    everybody(run)
    updates(metrics, 1.0, 2.0)
    run.learn(LEARNER, steps=100, version=1, averages=metrics.averages())
    (kept,) = run.manager.members.reports("learner")
    assert kept is not None
    assert kept.averages["loss.total"].count == 2


class Drawn(Curves):
    """Remembers what is drawn."""

    def __init__(self, folder: Path) -> None:
        super().__init__(CurveWriter(folder, 1))
        self.drawn: list[float] = []

    def add(self, rows: int, values: Mapping[str, float]) -> None:
        super().add(rows, values)
        self.drawn += [values[name] for name in ("loss/total",) if name in values]


def test_the_manager_draws_the_mean_of_all_updates_between_two_points(run: Run, metrics: Metrics, short: Path) -> None:
    everybody(run)
    process = process_of("manager", Manager(short), run.settings, volume=run.layout.root)
    lines, curves = run.manager.members.lines, Drawn(run.layout.results / "tensorboard")
    control = ControlApi(
        f"unix:{short}/control",
        LogQueries(run.layout.logs, lines, None, "").answer,
        StoredFiles(run.layout).answer,
        InitialPolicy(run.layout).answer,
    )
    context = ManagerContext(process, lines, None, Refusals(process.metrics), control)
    loop = RunningLoop(context, run.manager, curves)
    with curves, closing(control):
        for second in range(16):
            updates(metrics, *[float(second)] * 90)
            seen = metrics.values()
            run.learn(LEARNER, steps=100, version=1 + second, gauges=seen.gauges, averages=metrics.averages())
            loop.turn()
            run.time.now += 1
    assert curves.drawn == pytest.approx([0, 3, 8, 13])
