"""Prometheus metrics of the service; labels have small fixed sets of values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, SummaryMetricFamily

from rlctl import __version__
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import ACTIVE, STATES, TERMINAL, WAITING

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
PHASES: Final = {"queued": "queue", "fetching": "fetch", "building": "build", "pushing": "push", "deploying": "deploy",
                 "verifying": "verify"}  # fmt: skip

disable_created_metrics()  # type: ignore[no-untyped-call]  # series with the start times of other series


class ServiceMetrics:
    """Metrics of the service: counted in memory, or read from the store when they are asked for.

    Args:
        service: read at every scrape.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._answers = Counter(
            "rlctl_ci_hooks", "Answers to hooks since the start.", ["status"], registry=self._registry
        )
        self._seconds = Histogram(
            "rlctl_ci_hook_seconds", "How long an answer to a hook took.", buckets=BOUNDS, registry=self._registry
        )
        self._registry.register(self)

    def hook(self, status: int, took_s: float) -> None:
        """Count the answer to a hook."""
        self._answers.labels(str(status)).inc()
        self._seconds.observe(took_s)

    def page(self) -> bytes:
        """Body of /metrics, in the format that prometheus_client calls CONTENT_TYPE_PLAIN_0_0_4."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Metrics from the store."""
        reading = self._service.reading
        build = InfoMetricFamily("rlctl_build", "Which release this is.")
        build.add_metric([], {"version": __version__})
        yield build
        counts, ended = reading.counts(), reading.ended()
        assert set(counts) <= set(STATES)
        builds = CounterMetricFamily("rlctl_ci_builds", "Builds that have ended.", labels=["result"])
        unfinished = GaugeMetricFamily("rlctl_ci_builds_unfinished", "Builds that have not ended.", labels=["state"])
        for state in sorted(TERMINAL):
            builds.add_metric([state], ended.get(state, 0))
        for state in (*WAITING, *ACTIVE):
            unfinished.add_metric([state], counts.get(state, 0))
        yield from (builds, unfinished, self._phases(reading.durations()))
        when = "When all branches of a project were last looked at; 0: never."
        looks = GaugeMetricFamily("rlctl_ci_last_look_timestamp_seconds", when, labels=["project"])
        for name, (at, _) in self._service.looks.items():
            looks.add_metric([name], at)
        yield looks
        pinned = "Branches that wait for a newer commit after a rollback."
        yield GaugeMetricFamily("rlctl_ci_pinned_branches", pinned, len(reading.pins()))

    def _phases(self, durations: Iterable[tuple[str, float]]) -> Metric:
        took: dict[str, list[float]] = defaultdict(list)
        for state, took_s in durations:
            took[state].append(took_s)
        of_last = "Time in each phase, of the last thousand steps."
        seconds = SummaryMetricFamily("rlctl_ci_build_seconds", of_last, labels=["phase"])
        for state, phase in PHASES.items():
            seconds.add_metric([phase], len(took[state]), sum(took[state]))
        return seconds
