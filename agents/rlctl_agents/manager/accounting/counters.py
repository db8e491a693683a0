"""Counters of all processes: totals over every boot, their growth and the lag of weights over the last seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec

from rlctl_agents.types.control import Histogram

T = TypeVar("T")

WINDOW_S = 10.0
MOST_COUNTERS, LONGEST_NAME, MOST_COUNT = 200, 100, 2.0**63
"""Limits of one process: its counters, the characters of a counter's name, and the value of a counter."""


class Cpu(NamedTuple):
    """CPU seconds of all threads since the beginning of the run, as the processes have reported them."""

    evaluators: float
    everything: float


class Boot(msgspec.Struct):
    """Newest counters of one process."""

    role: str
    counters: dict[str, float]


class StoredTotals(msgspec.Struct):
    """Totals, as stored for the next manager."""

    closed: dict[str, dict[str, float]] = {}  # role -> counters of boots that never come back
    boots: dict[str, Boot] = {}


def sound(counters: Mapping[str, float]) -> dict[str, float]:
    """Filter plausible counters, at most the first MOST_COUNTERS: a process with an actor's key may report any."""
    found = {
        name: value for name, value in counters.items() if 0.0 <= value <= MOST_COUNT and len(name) <= LONGEST_NAME
    }  # without NaN
    return dict(islice(found.items(), MOST_COUNTERS))


class Totals:
    """Sums that never fall: a boot's counters only grow, and a new boot starts from 0 beside the old one."""

    def __init__(self) -> None:
        self._stored = StoredTotals()

    def hear(self, role: str, boot: str, counters: Mapping[str, float]) -> None:
        """Take in counters since boot; an older report that arrives late changes nothing."""
        present = self._stored.boots.setdefault(boot, Boot(role, {})).counters
        for name, value in counters.items():
            if (value > present[name]) if name in present else len(present) < MOST_COUNTERS:
                present[name] = value

    def close(self, boot: str) -> None:
        """Add the counters of a boot that never comes back to the sums of its role."""
        ended = self._stored.boots.pop(boot, None)
        if ended is not None:
            sums = self._stored.closed.setdefault(ended.role, {})
            for name, value in ended.counters.items():
                if name in sums or len(sums) < MOST_COUNTERS:
                    sums[name] = sums.get(name, 0.0) + value

    def sum(self, role: str, name: str) -> float:
        """Sum of one counter over all boots of a role."""
        open_sum = sum(boot.counters.get(name, 0.0) for boot in self._stored.boots.values() if boot.role == role)
        return self._stored.closed.get(role, {}).get(name, 0.0) + open_sum

    def of(self, role: str) -> dict[str, float]:
        """Every counter of a role, summed over its boots."""
        found = dict(self._stored.closed.get(role, {}))
        for boot in self._stored.boots.values():
            if boot.role == role:
                for name, value in boot.counters.items():
                    found[name] = found.get(name, 0.0) + value
        return found

    def roles(self) -> list[str]:
        """Roles that have reported, in alphabetical order."""
        return sorted({*self._stored.closed, *(boot.role for boot in self._stored.boots.values())})

    def boots(self) -> set[str]:
        """Boots that are not closed."""
        return set(self._stored.boots)

    def store(self) -> StoredTotals:
        """The totals, for the next manager."""
        return self._stored

    def restore(self, stored: StoredTotals) -> None:
        """Resume the totals that another manager stored."""
        self._stored = stored


class _Sample(NamedTuple, Generic[T]):
    time: float
    value: T


class _Window(Generic[T]):
    """Sliding window of three samples per process: growth spans half a window to a whole one, whatever the number of
    processes and reports.

    Args:
        clock: monotonic seconds.
        window_s: length, in seconds; may be changed, and must hold several reports.
    """

    def __init__(self, clock: Callable[[], float], window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self.window_s = window_s
        self._samples: dict[str, tuple[_Sample[T], _Sample[T], _Sample[T]]] = {}  # oldest, middle, newest

    def forget(self, boot: str) -> None:
        """Drop the samples of a process that has ended."""
        self._samples.pop(boot, None)

    def _add(self, boot: str, value: T, first: T) -> None:
        """Add a sample; growth of a process without samples starts at `first`."""
        new = _Sample(self._clock(), value)
        oldest, middle, _ = self._samples.get(boot, (_Sample(new.time, first),) * 3)
        if new.time - middle.time >= self.window_s / 2:
            oldest, middle = middle, new
        self._samples[boot] = (oldest, middle, new)


class Rates(_Window[Mapping[str, float]]):
    """Growth of totals per second, over the last seconds."""

    def begin(self, boot: str) -> None:
        """Register a process that starts now, with nothing counted; otherwise its growth starts at its first report."""
        if boot not in self._samples:
            self._add(boot, {}, {})

    def hear(self, boot: str, values: Mapping[str, float]) -> None:
        """Take in totals since boot."""
        self._add(boot, dict(values), values)

    def of(self, boot: str, name: str) -> float:
        """Growth per second of one total; 0 without a report within the window."""
        return self.sums((boot,), (name,))[name]

    def sums(self, boots: Iterable[str], names: Sequence[str]) -> dict[str, float]:
        """Growth per second of several totals over several processes, reading each process once."""
        found, now = dict.fromkeys(names, 0.0), self._clock()
        for boot in boots:
            if boot not in self._samples:
                continue
            oldest, _, newest = self._samples[boot]
            span_s = newest.time - oldest.time
            if span_s <= 0 or now - newest.time >= self.window_s:
                continue
            for name in names:
                found[name] += max(newest.value.get(name, 0.0) - oldest.value.get(name, 0.0), 0.0) / span_s
        return found

    def sum(self, boots: Iterable[str], name: str) -> float:
        """Growth per second of one total, summed over several processes."""
        return self.sums(boots, (name,))[name]

    def mean(self, boots: Iterable[str], name: str) -> float:
        """Mean growth per second of one total; 0 without processes."""
        counted = list(boots)
        return self.sum(counted, name) / len(counted) if counted else 0.0


class Lag(NamedTuple):
    """Age of the weights behind consumed rows, in versions; p95 and max are the upper bounds of their buckets."""

    mean: float
    p95: float
    max: float


class LagWindow(_Window[Histogram]):
    """Lag of the rows that learners have consumed over the last seconds, from cumulative histograms."""

    def __init__(self, clock: Callable[[], float], window_s: float = WINDOW_S) -> None:
        super().__init__(clock, window_s)
        self._fresh: set[str] = set()

    def begin(self, boot: str) -> None:
        """Register a process that starts now, with nothing counted; otherwise its growth starts at its first report."""
        self._fresh.add(boot)

    def forget(self, boot: str) -> None:
        super().forget(boot)
        self._fresh.discard(boot)

    def hear(self, boot: str, histogram: Histogram) -> None:
        """Take in a histogram of counts since boot."""
        none = Histogram(histogram.bounds, [0] * len(histogram.counts))
        self._add(boot, histogram, none if boot in self._fresh else histogram)

    def value(self) -> Lag | None:
        """Lag over all learners; None if nothing was consumed within the window."""
        counts: dict[float, int] = {}
        total = 0.0
        since = self._clock() - self.window_s
        for (_, old), _, (heard, newest) in self._samples.values():
            if heard <= since:
                continue
            total += newest.total - old.total
            for bound, now, before in zip([*newest.bounds, math.inf], newest.counts, old.counts, strict=True):
                counts[bound] = counts.get(bound, 0) + now - before
        return _summary(counts, total)


def _summary(counts: Mapping[float, int], total: float) -> Lag | None:
    rows = sum(counts.values())
    if rows <= 0:
        return None
    below, p95, largest = 0, 0.0, 0.0
    finite = max((bound for bound in counts if math.isfinite(bound)), default=0.0)
    for bound in sorted(counts):
        if counts[bound] > 0:
            shown = bound if math.isfinite(bound) else 2 * finite  # the last bucket has no bound
            if below < 0.95 * rows:
                p95 = shown
            largest = shown
        below += counts[bound]
    return Lag(total / rows, p95, largest)
