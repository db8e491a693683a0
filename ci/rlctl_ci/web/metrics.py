"""Numbers for Prometheus, in its text format; labels are of small fixed sets."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from rlctl import __version__
from rlctl_ci.core.service import Service
from rlctl_ci.core.states import ACTIVE, STATES, TERMINAL, WAITING

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
PHASES = {"queued": "queue", "fetching": "fetch", "building": "build", "pushing": "push", "deploying": "deploy",
          "verifying": "verify"}  # fmt: skip


class Seen:
    """What is counted in memory: answers to hooks, and how long they took."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.answers: Counter[int] = Counter()
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.sum_s = 0.0

    def hook(self, status: int, took_s: float) -> None:
        with self._guard:
            self.answers[status] += 1
            self.sum_s += took_s
            for at, bound in enumerate(BOUNDS):
                if took_s <= bound:
                    self.buckets[at] += 1
            self.buckets[-1] += 1


def page(service: Service, seen: Seen) -> str:
    """The whole answer."""
    return "\n".join(_lines(service, seen)) + "\n"


def _lines(service: Service, seen: Seen) -> Iterator[str]:
    counts = service.reading.counts()
    yield from _head("rlctl_build_info", "gauge", "Which release this is.")
    yield f'rlctl_build_info{{version="{__version__}"}} 1'
    yield from _head("rlctl_ci_builds_total", "counter", "Builds that have ended.")
    ended = service.reading.ended()
    for state in sorted(TERMINAL):
        yield f'rlctl_ci_builds_total{{result="{state}"}} {ended.get(state, 0)}'
    yield from _head("rlctl_ci_builds", "gauge", "Builds that have not ended.")
    for state in (*WAITING, *ACTIVE):
        yield f'rlctl_ci_builds{{state="{state}"}} {counts.get(state, 0)}'
    assert set(counts) <= set(STATES)
    totals: dict[str, float] = dict.fromkeys(PHASES.values(), 0.0)
    numbers: Counter[str] = Counter()
    for phase, took_s in service.reading.durations():
        if phase in PHASES:
            totals[PHASES[phase]] += took_s
            numbers[PHASES[phase]] += 1
    yield from _head("rlctl_ci_build_seconds", "summary", "Time in each phase, of the last thousand steps.")
    for name in PHASES.values():
        yield f'rlctl_ci_build_seconds_sum{{phase="{name}"}} {totals[name]:.6f}'
        yield f'rlctl_ci_build_seconds_count{{phase="{name}"}} {numbers[name]}'
    yield from _head("rlctl_ci_hooks_total", "counter", "Answers to hooks since the start.")
    for status, count in sorted(seen.answers.items()):
        yield f'rlctl_ci_hooks_total{{status="{status}"}} {count}'
    yield from _head("rlctl_ci_hook_seconds", "histogram", "How long an answer to a hook took.")
    for bound, count in zip((*BOUNDS, "+Inf"), seen.buckets, strict=True):
        yield f'rlctl_ci_hook_seconds_bucket{{le="{bound}"}} {count}'
    yield f"rlctl_ci_hook_seconds_sum {seen.sum_s:.6f}"
    yield f"rlctl_ci_hook_seconds_count {seen.buckets[-1]}"
    yield from _head("rlctl_ci_pinned_branches", "gauge", "Branches that wait for a newer commit after a rollback.")
    yield f"rlctl_ci_pinned_branches {len(service.reading.pins())}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
