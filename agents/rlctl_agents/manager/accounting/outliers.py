"""Outlier detection: actors, nodes and images whose episodes, as reported, are far from those of all others."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.manager.accounting.residuals import MIN_EPISODES, Figures, Outlier, far_off, grouped, groups_off
from rlctl_agents.types.control import Origin
from rlctl_agents.types.figures import LENGTH, RETURN, Moments

SLICE_S = 30.0
"""Shortest slice of time; within one, all actors are taken to play with the same weights."""
SLICES = 20
PACED_ACTORS = 1000
"""Number of actors above which slices grow with it: a comparison costs the manager some 0.1 ms per actor."""
LONGEST_SLICE_S = 64 * SLICE_S
MIXED_S = 600.0
"""Seconds for which actors of several images are no problem: a roll-out replaces them one by one."""
MAX_TOLD = 5
MOST = 1e12
"""Bound of plausible counts and means; an actor that reports larger ones is not compared."""
_TOLD_FIGURES = 3
_PLAINLY = {RETURN: "returns", LENGTH: "episode lengths"}


class ActorEpisodes(NamedTuple):
    """A live actor, and the moments of its episodes since its boot, as it reports them."""

    boot: str
    name: str  # "actor/3"
    origin: Origin
    figures: Sequence[Moments]
    epsilon: float = 0.0  # probability of a random action, where actors explore differently by design


class OutlierReport(NamedTuple):
    """Problem in words, and a process that it is about."""

    text: str
    process: str


class _Slice(NamedTuple):
    rows: dict[str, int]  # boot -> its row
    values: NDArray[np.float32]  # [A, figures, 3] count, mean, m2 of the slice


class Outliers:
    """Comparison of actors over the last slices of time; a slice ends with the first call of `turn` after its time.

    An actor takes part in a slice if it had finished episodes before the slice began. Slices are merged into longer
    ones when episodes are so rare that few actors have enough of them.

    Args:
        clock: monotonic seconds.
    """

    found: list[OutlierReport]
    """Problems as of the end of the last slice, at most MAX_TOLD."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.found = []
        self._clock = clock
        self._slice_s = SLICE_S
        self._until = clock() + SLICE_S
        self._names: tuple[str, ...] = ()
        self._before: tuple[dict[str, int], NDArray[np.float64]] = ({}, np.zeros((0, 0, 3)))
        self._slices: deque[_Slice] = deque()
        self._mixed_since: float | None = None

    def turn(self, names: Sequence[str], actors: Callable[[], Sequence[ActorEpisodes]]) -> None:
        """Compare the actors if a slice is over; to be called often.

        Args:
            names: names of the figures, in their order; if they change, the comparison starts anew.
            actors: live actors.
        """
        now = self._clock()
        if tuple(names) != self._names:
            self._names = tuple(names)
            self._before = ({}, np.zeros((0, len(names), 3)))
            self._slices.clear()
            self._until = now  # the first totals are those of now
        if now < self._until or not names:
            return
        present = [one for one in actors() if _sound(one.figures, len(names))]
        self._close(present)
        self._until = now + self._slice_s * max(1.0, len(present) / PACED_ACTORS)
        self.found = [*self._mixed(present, now), *self._judge(present)][:MAX_TOLD]

    def _close(self, present: Sequence[ActorEpisodes]) -> None:
        rows = {one.boot: at for at, one in enumerate(present)}
        totals = np.array([[[f.count, f.mean, f.m2] for f in one.figures] for one in present], np.float64)
        totals = totals.reshape(len(present), len(self._names), 3)
        before_rows, before = self._before
        shared = [(at, before_rows[boot]) for boot, at in rows.items() if boot in before_rows]
        shared = [(at, was) for at, was in shared if before[was, 0, 0] > 0]
        self._before = (rows, totals)
        boots = [present[at].boot for at, _ in shared]
        new, old = totals[[at for at, _ in shared]], before[[was for _, was in shared]]
        self._slices.append(_Slice({boot: at for at, boot in enumerate(boots)}, _since(old, new)))
        if len(self._slices) < SLICES:
            return
        episodes = self._figures(self._rows(boots), 0).episodes.sum(1) if boots else np.zeros(1)
        if np.median(episodes) < MIN_EPISODES and self._slice_s < LONGEST_SLICE_S:
            halves = [_merged(*pair) for pair in zip(*[iter(self._slices)] * 2, strict=False)]
            self._slices = deque(halves)
            self._slice_s *= 2
        while len(self._slices) >= SLICES:
            self._slices.popleft()

    def _rows(self, boots: Sequence[str]) -> list[NDArray[np.int64]]:
        """Row of each of these actors in each slice; -1: it took no part."""
        return [np.array([one.rows.get(boot, -1) for boot in boots], np.int64) for one in self._slices]

    def _figures(self, rows: Sequence[NDArray[np.int64]], figure: int) -> Figures:
        """One figure of these actors over all slices."""
        values = np.zeros((3, len(rows[0]), len(rows)))
        for k, (row, one) in enumerate(zip(rows, self._slices, strict=True)):
            there = row >= 0
            values[:, there, k] = one.values[row[there], figure].T
        return Figures(*values)

    def _judge(self, present: Sequence[ActorEpisodes]) -> list[OutlierReport]:
        told: list[tuple[float, OutlierReport]] = []
        alike: dict[float | None, list[ActorEpisodes]] = {}  # actors that explore differently play differently
        for one in present:
            alike.setdefault(one.epsilon, []).append(one)
        for actors in alike.values():
            if len(actors) > 1:  # a ladder of epsilons has as many as actors
                told += self._judge_alike(actors)
        return [one for _, one in sorted(told, key=lambda pair: -pair[0])]

    def _judge_alike(self, actors: Sequence[ActorEpisodes]) -> list[tuple[float, OutlierReport]]:
        """Outliers among actors under the same conditions: all of an image, all of a node, then single ones."""
        kinds = [("image ", [one.origin.image for one in actors]), ("node ", [one.origin.node for one in actors])]
        kinds.append(("", [one.boot for one in actors]))
        rows, groups = self._rows([one.boot for one in actors]), [grouped(labels) for _, labels in kinds]
        found: dict[tuple[int, int], list[tuple[str, Outlier]]] = {}  # (kind, group) -> figures in which it is off
        for at, name in enumerate(self._names):
            figures, left, share = self._figures(rows, at), np.arange(len(actors)), at >= 2
            for kind, (_, group) in enumerate(groups):
                numbers, here = np.unique(group[left], return_inverse=True)
                if kinds[kind][0]:
                    offs = groups_off(figures.of(left), here, len(numbers), share=share)
                else:
                    offs = far_off(figures.of(left), share=share)
                for off in offs:
                    found.setdefault((kind, int(group[left][here == off.unit][0])), []).append((name, off))
                left = left[~np.isin(here, [off.unit for off in offs])]
        told = []
        for (kind, number), offs_of in found.items():
            names, group = groups[kind]
            inside = [one for at, one in enumerate(actors) if group[at] == number]
            what = kinds[kind][0] and kinds[kind][0] + names[number]
            told.append(_told(what, inside, len(actors), offs_of))
        return told

    def _mixed(self, present: Sequence[ActorEpisodes], now: float) -> list[OutlierReport]:
        """Report actors of another image than the rest, after longer than a roll-out takes."""
        names, image = grouped([one.origin.image for one in present])
        if len(names) < 2:
            self._mixed_since = None
            return []
        since = self._mixed_since = now if self._mixed_since is None else self._mixed_since
        if now - since < MIXED_S:
            return []
        most = int(np.bincount(image).argmax())
        others = [one for at, one in enumerate(present) if image[at] != most]
        text = (
            f"{len(others)} of {len(present)} actors have run another image than the rest for {now - since:.0f} s: "
            f"{_named(others)}; the rest: image {names[most] or 'not known'}"
        )
        return [OutlierReport(printable(text), others[0].name)]


def _told(
    what: str, inside: Sequence[ActorEpisodes], all_of_them: int, offs: Sequence[tuple[str, Outlier]]
) -> tuple[float, OutlierReport]:
    """Distance in sigma and the problem in words, with the farthest figure first."""
    ordered = sorted(offs, key=lambda pair: -pair[1].sigma)
    figures = "; ".join(_figure(name, off) for name, off in ordered[:_TOLD_FIGURES])
    others = all_of_them - len(inside)
    who = f"all {len(inside)} actors of {what}, such as {_named(inside[:1])}," if what else _named(inside)
    play = "play" if what else "plays"
    text = f"{who} {play} otherwise than {'the other one' if others == 1 else f'the {others} others'}: {figures}"
    if all_of_them == 2 or (what and 2 * len(inside) == all_of_them):
        text += "; which of the two is off cannot be told"
    return ordered[0][1].sigma, OutlierReport(printable(text), inside[0].name)


def _figure(name: str, off: Outlier) -> str:
    sigma = f"{off.sigma:.0f} sigma" if math.isfinite(off.sigma) else "where nothing varies"
    what = _PLAINLY.get(name, f"share of {name}")
    return f"{what} {off.here:.4g} instead of {off.others:.4g} ({sigma}, {off.episodes} episodes)"


def _named(actors: Sequence[ActorEpisodes]) -> str:
    shown = ", ".join(f"{one.name} ({one.origin})" for one in actors[:3])
    return f"{shown} and {len(actors) - 3} more" if len(actors) > 3 else shown


def printable(text: str) -> str:
    """Replace characters that are not printable by "?": a process may report any text."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _sound(figures: Iterable[Moments], count: int) -> bool:
    """True if these are `count` figures that can be calculated with: an actor may report any numbers."""
    found = list(figures)
    return len(found) == count and all(
        0 <= one.count < MOST and abs(one.mean) < MOST and 0 <= one.m2 < MOST * MOST for one in found
    )


def _since(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float32]:
    """Moments of the episodes between two totals; 0 where the count did not grow."""
    count = np.maximum(new[..., 0] - old[..., 0], 0.0)
    mean = (new[..., 0] * new[..., 1] - old[..., 0] * old[..., 1]) / np.maximum(count, 1.0)
    mean = np.where(count > 0, mean, 0.0).clip(-MOST, MOST)
    m2 = new[..., 2] - old[..., 2] - np.square(mean - old[..., 1]) * old[..., 0] * count / np.maximum(new[..., 0], 1.0)
    m2 = np.where(count > 0, m2, 0.0).clip(0.0, MOST * MOST)
    return np.stack([count, mean, m2], -1).astype(np.float32)


def _merged(one: _Slice, two: _Slice) -> _Slice:
    """Merge two consecutive slices, for the actors that took part in both."""
    boots = [boot for boot in two.rows if boot in one.rows]
    a = one.values[[one.rows[boot] for boot in boots]].astype(np.float64)
    b = two.values[[two.rows[boot] for boot in boots]].astype(np.float64)
    count = a[..., 0] + b[..., 0]
    shift = b[..., 1] - a[..., 1]
    mean = a[..., 1] + shift * b[..., 0] / np.maximum(count, 1.0)
    m2 = a[..., 2] + b[..., 2] + np.square(shift) * a[..., 0] * b[..., 0] / np.maximum(count, 1.0)
    values = np.stack([count, mean, m2], -1).astype(np.float32)
    return _Slice({boot: at for at, boot in enumerate(boots)}, values)
