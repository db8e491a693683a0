"""Metrics as text in Prometheus' exposition format, under names that follow its rules.

`env_steps` of an actor is `rlctl_actor_env_steps_total`; `wait_data_seconds` of a learner is
`rlctl_learner_wait_seconds_total{stage="data"}`; a gauge `loss.policy` is `rlctl_learner_loss{term="policy"}`. Other
labels are run and role: a thousand actors are aggregated by the manager.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlctl_agents.types.control import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STAGE = re.compile(r"wait_([a-z]+)_seconds")

HELP = {
    "env_steps": "Decisions of environments.",
    "frames": "Simulator frames: decisions times the frames that each lasts.",
    "agent_steps": "Decisions of agents: seats that acted.",
    "episodes": "Whole episodes.",
    "consumed_rows": "Rows that learners have learned from, also those whose weights died with them.",
    "unique_rows": "Rows learned from, each counted once.",
    "updates": "Batches learned from: each makes a version of the weights.",
    "optimizer_steps": "Optimizer steps, of which a batch may take several.",
    "cpu_seconds": "CPU time of the process.",
    "wait_seconds": "Time that the process waited, by what for.",
    "nonfinite": "Updates skipped because loss or gradient was not finite.",
    "lag_versions": "Versions between the weights that chose a row's action and those that learn from it.",
    "rejected": "Messages and models refused, by reason.",
}


@dataclass
class Family:
    """All samples of one metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)  # suffix, labels, value


def family_of(
    role: str,
    counters: Mapping[str, float],
    gauges: Mapping[str, float],
    histograms: Mapping[str, Histogram],
    labels: Mapping[str, str],
) -> dict[str, Family]:
    """The metrics of one role by full name.

    Args:
        labels: of every sample.
    """
    found: dict[str, Family] = {}

    def family(name: str, kind: Literal["counter", "gauge", "histogram"]) -> tuple[Family, dict[str, str]]:
        stem, _, term = name.partition(".")
        own = {"reason" if stem.startswith("rejected") else "term": term} if term else {}
        if waited := _STAGE.fullmatch(stem):
            stem, own = "wait_seconds", {"stage": waited[1]}
        full = f"rlctl_{role}_{re.sub('[^a-zA-Z0-9_]', '_', stem)}" + ("_total" if kind == "counter" else "")
        return found.setdefault(full, Family(full, kind, HELP.get(stem, stem.replace("_", " ")))), {**labels, **own}

    for name, value in counters.items():
        one, own = family(name, "counter")
        one.samples.append(("", own, value))
    for name, value in gauges.items():
        one, own = family(name, "gauge")
        one.samples.append(("", own, value))
    for name, histogram in histograms.items():
        one, own = family(name, "histogram")
        below = 0
        for bound, count in zip([*histogram.bounds, math.inf], histogram.counts, strict=True):
            below += count
            one.samples.append(("_bucket", {**own, "le": _number(bound)}, below))
        one.samples.append(("_sum", own, histogram.total))
        one.samples.append(("_count", own, below))
    return found


def text(families: Iterable[Family]) -> str:
    """The page that Prometheus reads."""
    lines: list[str] = []
    for one in sorted(families, key=lambda one: one.name):
        lines += [f"# HELP {one.name} {_escape(one.help)}", f"# TYPE {one.name} {one.kind}"]
        for suffix, labels, value in one.samples:
            inside = ",".join(f'{key}="{_escape(str(labels[key]), quote=True)}"' for key in sorted(labels))
            lines.append(f"{one.name}{suffix}{{{inside}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escape(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text
