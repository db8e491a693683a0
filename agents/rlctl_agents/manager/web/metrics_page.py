"""The manager's /metrics: all roles of a run on one page, so that Prometheus need not ask thousands of processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlctl import __version__
from rlctl_agents.manager.status.view import RunView
from rlctl_agents.runtime import prometheus


def text(view: RunView, now: Mapping[str, Any]) -> str:
    """Metrics of all roles: counters summed over every boot, gauges as means over who lives, histograms of learners."""
    run = {"run": view.run}
    families: dict[str, prometheus.Family] = {}
    totals = view.members.totals
    for role in totals.roles():
        members = [report for report in view.members.reports(role) if report is not None]
        names = {name for member in members for name in member.gauges}
        gauges = {}
        for name in names:
            values = [member.gauges[name] for member in members if name in member.gauges]
            gauges[name] = sum(values) / len(values)
        histograms = members[0].histograms if role == "learner" and len(members) == 1 else {}
        families |= prometheus.family_of(role, totals.of(role), gauges, histograms, {**run, "role": role})
    own: dict[str, list[tuple[dict[str, str], float]]] = {
        "build_info": [({"version": __version__}, 1.0)],
        "manager_term": [({}, float(view.term))],
        "manager_wall_seconds": [({}, view.wall_s)],
        "manager_members": [({"of": role}, float(members["live"])) for role, members in now["members"].items()],
        "manager_members_silent": [({"of": role}, float(one["silent"])) for role, one in now["members"].items()],
        "ledger_rows": [
            ({"policy": policy, "outcome": outcome}, float(rows))
            for policy, one in now["policies"].items()
            for outcome, rows in one["ledger"].items()
            if outcome != "balanced"
        ],
        "ledger_balanced": [
            ({"policy": policy}, float(one["ledger"]["balanced"])) for policy, one in now["policies"].items()
        ],
    }
    if now["evaluation"] is not None:
        own["evaluation_return"] = [({}, now["evaluation"]["mean"])]
    for name, key in (("evaluation_interval_seconds", "every_s"), ("evaluation_cpu_share", "cpu_share")):
        if (value := now["cadence"][key]) is not None:
            own[name] = [({}, value)]
    if now["checkpoint"] is not None:
        own["checkpoint_age_seconds"] = [({}, now["checkpoint"]["age_s"])]
    for name, samples in own.items():
        family = prometheus.Family(f"rlctl_{name}", "gauge", name.replace("_", " "))
        family.samples += [("", {**run, **labels}, value) for labels, value in samples]
        families[family.name] = family
    return prometheus.text(families.values())
