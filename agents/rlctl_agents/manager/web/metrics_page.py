"""The manager's /metrics: all roles of a run on one page, so that Prometheus scrapes one process, not thousands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

from rlctl import __version__
from rlctl_agents.manager.status.view import RunView
from rlctl_agents.runtime.metrics import Values, families_of
from rlctl_agents.types.control import Histogram


def families(view: RunView, now: Mapping[str, Any]) -> list[Metric]:
    """Metrics of all roles: counters summed over every boot, gauges as means over live boots, histograms of learners
    summed over live ones.

    Args:
        now: the newest status.
    """
    return [*_of_roles(view), *_of_the_run(view, now)]


def _of_roles(view: RunView) -> Iterator[Metric]:
    totals = view.members.totals
    for role in totals.roles():
        members = view.members.heard(role)
        known: dict[str, list[float]] = {}
        for member in members:
            for name, value in member.gauges.items():
                known.setdefault(name, []).append(value)
        # not fmean, which raises where one is inf and one is -inf
        gauges = {name: sum(told) / len(told) for name, told in known.items()}
        histograms = _summed(member.histograms for member in members) if role == "learner" else {}
        values = Values(totals.of(role), gauges, histograms)
        yield from families_of(role, values, {"run": view.life.run, "role": role})


def _summed(told: Iterable[Mapping[str, Histogram]]) -> dict[str, Histogram]:
    """Sum the histograms of several processes by name; one with other bounds than the first is left out."""
    sums: dict[str, Histogram] = {}
    for name, one in ((name, one) for histograms in told for name, one in histograms.items()):
        known = sums.setdefault(name, Histogram(one.bounds, [0] * len(one.counts)))
        if known.bounds == one.bounds:
            known.counts = [a + b for a, b in zip(known.counts, one.counts, strict=True)]
            known.total += one.total
    return sums


def _of_the_run(view: RunView, now: Mapping[str, Any]) -> Iterator[Metric]:
    def gauge(name: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"rlctl_{name}", name.replace("_", " "), labels=["run", *labels])

    build = InfoMetricFamily("rlctl_build", "Which release this is.", labels=["run"])
    build.add_metric([view.life.run], {"version": __version__})
    yield build
    live, silent = gauge("manager_members", "of"), gauge("manager_members_silent", "of")
    for role, members in now["members"].items():
        live.add_metric([view.life.run, role], members["live"])
        silent.add_metric([view.life.run, role], members["silent"])
    rows, balanced = gauge("ledger_rows", "policy", "outcome"), gauge("ledger_balanced", "policy")
    for policy, one in now["policies"].items():
        balanced.add_metric([view.life.run, policy], one["ledger"]["balanced"])
        for outcome, count in one["ledger"].items():
            if outcome != "balanced":
                rows.add_metric([view.life.run, policy, outcome], count)
    yield from (live, silent, rows, balanced)
    returns, told = gauge("evaluation_return", "mode"), gauge("evaluation_info", "mode", "term")
    for mode, evaluation in now["evaluations"].items():
        returns.add_metric([view.life.run, mode], evaluation["mean"])
        for name, mean in evaluation["info"].items():
            told.add_metric([view.life.run, mode, name], mean)
    yield from (family for family in (returns, told) if family.samples)
    checkpoint, cadence = now["checkpoint"], now["cadence"]
    numbers = {
        "manager_term": view.life.term,
        "manager_wall_seconds": view.state.wall_s,
        "evaluation_interval_seconds": cadence["every_s"],
        "evaluation_cpu_share": cadence["cpu_share"],
        "checkpoint_age_seconds": checkpoint and checkpoint["age_s"],
        "checkpoint_absent_parts": checkpoint and len(checkpoint["absent"]),
    }
    for name, number in numbers.items():
        if number is not None:
            family = gauge(name)
            family.add_metric([view.life.run], number)
            yield family
