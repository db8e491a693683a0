"""Totals, gauges and histograms of one process, from which its reports and its /metrics page are made.

In a loop a metric is an addition to a number; the families that Prometheus reads are made when it asks.
"""

from __future__ import annotations

import math
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rlctl_agents.types.control import Average, Histogram

VERSIONS = (0.0, *(2.0**power for power in (*range(11), 12, 14, 16, 18, 20)))
"""Bounds of a histogram of policy lag, in versions: a bucket holds the values up to its bound. Rows of a replay may be
hundreds of thousands of versions old."""


WINDOW_S = 10.0
"""Longest window of a gauge that is a moving average; it covers half of it at least."""

INFO = "info."
"""Prefix of the gauges of numbers that environments report at the end of an episode."""
HELP = {
    "env_steps": "Decisions of environments.",
    "frames": "Simulator frames: decisions times the frames that each lasts.",
    "agent_steps": "Decisions of agents: seats that acted.",
    "episodes": "Whole episodes.",
    "info": "Numbers that environments tell in info at the end of an episode: mean of the newest 100.",
    "epsilon": "Mean probability of a random action, of an actor that explores at rates of its own.",
    "consumed_steps": "Agent steps that learners have learned from, once each, of weights that died with them too.",
    "learned_steps": "Agent steps behind optimizer steps, each as often as it was in one; rank 0 counts for all.",
    "updates": "Batches learned from: each makes a version of the weights.",
    "optimizer_steps": "Optimizer steps, of which a batch may take several.",
    "cpu_seconds": "CPU time of the process.",
    "memory_bytes": "Resident memory of the process.",
    "wait_seconds": "Time that the process waited, by what for.",
    "nonfinite": "Updates skipped because loss or gradient was not finite.",
    "inserted": "Rows that the replay has taken in.",
    "sampled": "Rows that learners have drawn from the replay.",
    "rows": "Rows that a shard of the replay holds.",
    "drawable": "Of these, rows that may be drawn.",
    "capacity": "Rows that a shard of the replay holds at most.",
    "array_bytes": "Memory of a shard's arrays, whether rows are in it yet or not.",
    "mass": "Sum of the masses of a shard, in proportion to which rows are drawn.",
    "learning_starts": "replay.learning_starts.",
    "samples_per_insert": "replay.samples_per_insert; 0: no limit.",
    "priorities": "Priorities of rows that were set.",
    "stale_priorities": "Priorities that came for rows overwritten meanwhile.",
    "restored": "Rows that a shard of the replay has taken over from generations.",
    "checkpoint_seconds": "Time that parts of generations took.",
    "checkpoint_bytes": "Bytes of the newest part of a generation.",
    "shards": "Shards of the replay that answer this learner.",
    "sampled_per_insert": "Rows drawn from the replay for each inserted one after those that fill it, by all learners.",
    "lag_versions": "Versions between the weights that chose a row's action and those that learn from it.",
    "rejected": "Messages and models refused, by reason.",
}
_STAGE = re.compile(r"wait_([a-z]+)_seconds")
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


class _Mark(NamedTuple):
    time: float
    total: float
    values: int


class _Averaged:
    """Sum and count since boot, and as they were a while ago."""

    def __init__(self, now: float) -> None:
        self.total, self.count = 0.0, 0
        self._older = self._newer = _Mark(now, 0.0, 0)

    def recent(self, now: float) -> float:
        """Mean of the last seconds in which there were values."""
        if now - self._newer.time >= WINDOW_S / 2 and self.count > self._newer.values:
            self._older, self._newer = self._newer, _Mark(now, self.total, self.count)
        return (self.total - self._older.total) / (self.count - self._older.values)


class Values(NamedTuple):
    """All metrics at one moment; the reader's own copy."""

    counters: dict[str, float]
    gauges: dict[str, float]
    histograms: dict[str, Histogram]


class Metrics:
    """Metrics of a process. Names carry no prefix and no `_total`; a part after a dot becomes a label: `loss.policy`.

    Thread-safe; an addition costs about half a microsecond, so add per batch and not per row.

    Args:
        cpu_clock: CPU seconds of this process; the counter `cpu_seconds` in all values.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, cpu_clock: Callable[[], float] = time.process_time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpu_clock = cpu_clock
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}
        self._averaged: dict[str, _Averaged] = {}
        self._sampled: dict[str, Callable[[], float]] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Add to a counter; an amount of 0 makes it appear."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0.0) + float(amount)  # NumPy's scalars cannot be encoded

    def set(self, name: str, value: float) -> None:
        """Set a gauge."""
        with self._lock:
            self._gauges[name] = float(value)

    def average(self, name: str, value: float) -> None:
        """Add one of many values, as of hundreds of updates between two reads; the gauge is their mean.

        Values that are not finite are left out: one would hide all others.
        """
        if math.isfinite(value):
            with self._lock:
                one = self._averaged.get(name)
                if one is None:
                    one = self._averaged[name] = _Averaged(self._clock())
                one.total += value
                one.count += 1

    def averages(self) -> dict[str, Average]:
        """Sum and count since boot of every gauge that is a mean."""
        with self._lock:
            return {name: Average(one.total, one.count) for name, one in self._averaged.items()}

    def sample(self, name: str, value: Callable[[], float]) -> None:
        """Declare a gauge; `value` is called whenever the metrics are read, in the reader's thread."""
        with self._lock:
            self._sampled[name] = value

    def declare(self, name: str, bounds: Sequence[float]) -> None:
        """Declare a histogram with these upper bounds, ascending, and one more bucket; again: without effect."""
        with self._lock:
            if name not in self._histograms:
                self._histograms[name] = Histogram(list(bounds), [0] * (len(bounds) + 1))

    def observe(self, name: str, value: float, count: int = 1) -> None:
        """Add `count` equal values to a histogram.

        Raises:
            KeyError: it was not declared.
        """
        with self._lock:
            histogram = self._histograms[name]
            histogram.counts[bisect_left(histogram.bounds, value)] += count
            histogram.total += value * count

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the wall seconds of a block to a counter, also when it raises."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - start)

    def values(self) -> Values:
        """All metrics, as of one moment."""
        with self._lock:
            now = self._clock()
            means = {name: one.recent(now) for name, one in self._averaged.items()}
            return Values(
                {**self._counters, "cpu_seconds": self._cpu_clock()},
                {**self._gauges, **means, **{name: value() for name, value in self._sampled.items()}},
                {
                    name: Histogram(list(one.bounds), list(one.counts), one.total)
                    for name, one in self._histograms.items()
                },
            )


@dataclass(frozen=True)
class _Exposed:
    """Collector of families that have been made for one response."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return sorted(self.families, key=lambda family: family.name)


def exposition(families: Iterable[Metric]) -> bytes:
    """The page /metrics, in the format that CONTENT_TYPE_PLAIN_0_0_4 of prometheus_client names."""
    return generate_latest(_Exposed(families))


def families_of(role: str, values: Values, labels: Mapping[str, str]) -> list[Metric]:
    """The metrics of one role under names that follow Prometheus' rules.

    `env_steps` of an actor is `rlctl_actor_env_steps_total`; `wait_data_seconds` of a learner is
    `rlctl_learner_wait_seconds_total{stage="data"}`; a gauge `loss.policy` is `rlctl_learner_loss{term="policy"}`.

    Args:
        labels: of every sample: run and role. A thousand actors are aggregated by the manager.
    """
    found: dict[tuple[type[Metric], str], Any] = {}

    def family(kind: type[Any], name: str) -> tuple[Any, list[str]]:
        """The family of a metric, and the values of its labels."""
        stem, _, term = name.partition(".")
        own = {"reason" if stem.startswith("rejected") else "term": term} if term else {}
        if waited := _STAGE.fullmatch(stem):
            stem, own = "wait_seconds", {"stage": waited[1]}
        full = f"rlctl_{role}_{_UNFIT.sub('_', stem)}"
        if (kind, full) not in found:
            found[kind, full] = kind(full, HELP.get(stem, stem.replace("_", " ")), labels=[*labels, *own])
        return found[kind, full], [*labels.values(), *own.values()]

    for kind, metrics in ((CounterMetricFamily, values.counters), (GaugeMetricFamily, values.gauges)):
        for name, value in metrics.items():
            one, own = family(kind, name)
            one.add_metric(own, value)
    for name, histogram in values.histograms.items():
        one, own = family(HistogramMetricFamily, name)
        below = zip(
            [*(str(float(bound)) for bound in histogram.bounds), "+Inf"], accumulate(histogram.counts), strict=True
        )
        one.add_metric(own, list(below), histogram.total)
    return list(found.values())
