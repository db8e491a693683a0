"""How fast a process's totals grow, over the last seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

WINDOW_S = 10.0


class _Sample(NamedTuple):
    time: float
    values: Mapping[str, float]


_NEVER = _Sample(0.0, {})


class Rates:
    """Three samples of each process, so that a rate spans between half a window and a whole one, whatever the number of
    processes and reports.

    Args:
        clock: monotonic seconds.
        window_s: older growth is forgotten; may be changed, and must hold several reports.
    """

    def __init__(self, clock: Callable[[], float], window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self.window_s = window_s
        self._samples: dict[str, tuple[_Sample, _Sample, _Sample]] = {}  # oldest, middle, newest

    def begin(self, boot: str) -> None:
        """A process that starts now, with nothing counted; without this its first report is where its growth begins."""
        zero = _Sample(self._clock(), {})
        self._samples.setdefault(boot, (zero, zero, zero))

    def hear(self, boot: str, values: Mapping[str, float]) -> None:
        """Totals since boot."""
        new = _Sample(self._clock(), dict(values))
        if boot not in self._samples:
            self._samples[boot] = (new, new, new)
            return
        oldest, middle, _ = self._samples[boot]
        if new.time - middle.time >= self.window_s / 2:
            oldest, middle = middle, new
        self._samples[boot] = (oldest, middle, new)

    def forget(self, boot: str) -> None:
        """It has ended."""
        self._samples.pop(boot, None)

    def of(self, boot: str, name: str) -> float:
        """Growth per second of one total; 0 when nothing was heard within the window."""
        return self.sums((boot,), (name,))[name]

    def sums(self, boots: Iterable[str], names: Sequence[str]) -> dict[str, float]:
        """Growth per second of several totals over several processes, looking at each of these once."""
        found, now = dict.fromkeys(names, 0.0), self._clock()
        for boot in boots:
            oldest, _, newest = self._samples.get(boot, (_NEVER, _NEVER, _NEVER))
            span_s = newest.time - oldest.time
            if span_s <= 0 or now - newest.time >= self.window_s:
                continue
            for name in names:
                found[name] += max(newest.values.get(name, 0.0) - oldest.values.get(name, 0.0), 0.0) / span_s
        return found

    def sum(self, boots: Iterable[str], name: str) -> float:
        """Growth per second over several processes."""
        return self.sums(boots, (name,))[name]

    def mean(self, boots: Iterable[str], name: str) -> float:
        """Mean growth per second; 0 for nobody."""
        counted = list(boots)
        return self.sum(counted, name) / len(counted) if counted else 0.0
