"""Outlier statistics: units whose episodes differ from those of all others. Knows neither processes nor clocks.

Every figure (returns, lengths, shares of actions) of every unit (an actor, or all actors of a node or an image) is
compared with that of all other units over the same slices of time, so that the progress of the whole fleet cancels
out. Per slice k, a unit has n episodes with mean m and variance; the rest of the fleet has mean r:

    D     = sum n (m - r) / sum n                                     difference from the rest, over all slices
    V     = sum n^2 s^2 (1/n + 1/n_rest) / (sum n)^2                  variance of D; s^2 the larger one of both
    sigma = sqrt(V + tau^2)                                           tau: the spread of D among the others

tau is robust (median absolute deviation): it covers honest differences between actors, such as the age of their
weights, but not the unit in question. Units are tested one after the other, the farthest first, and an outlier is
removed from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAR_SIGMA = 6.0
MIN_EPISODES = 30
"""Episodes that a unit, and all others together, must have before the unit is tested."""
LEAST_SLICES = 3
"""Slices with episodes needed before any unit is tested: fewer do not show how fast the whole fleet changes."""
MIN_DEVIATIONS = 0.25
"""Smallest difference that counts, in standard deviations of single episodes, however significant it is."""
MIN_RATIO = 0.05
"""Smallest difference that counts, relative to the others' mean: where all episodes are alike, any is significant."""
MIN_SHARE = 0.05
"""Smallest difference of a share of actions that counts, absolute."""
MAD_TO_SIGMA = 1.4826  # of normally distributed values


class Figures(NamedTuple):
    """One figure of A units over K slices."""

    episodes: Floats  # [A, K]
    mean: Floats  # [A, K]; arbitrary where there are no episodes
    m2: Floats  # [A, K] sum of squared deviations from that mean

    def of(self, units: Sequence[int] | NDArray[np.int64]) -> Figures:
        return Figures(self.episodes[units], self.mean[units], self.m2[units])

    def together(self, group: NDArray[np.int64], groups: int) -> Figures:
        """Merge the units of each group into one; `group` [A] holds group numbers from 0."""
        count, total, squares = (np.zeros((groups, self.episodes.shape[1])) for _ in range(3))
        np.add.at(count, group, self.episodes)
        np.add.at(total, group, self.episodes * self.mean)
        mean = total / np.maximum(count, 1.0)
        np.add.at(squares, group, self.m2 + self.episodes * np.square(self.mean - mean[group]))
        return Figures(count, mean, squares)


class Outlier(NamedTuple):
    """Outlier: a unit that is far off in one figure."""

    unit: int
    sigma: float  # distance; infinite where nothing varies
    here: float  # mean of its episodes
    others: float  # mean of all others, over the same slices
    episodes: int


class _Rest(NamedTuple):
    """Every unit against all others, [A] each."""

    episodes: Floats
    difference: Floats  # D
    variance: Floats  # V
    deviation: Floats  # s, standard deviation of single episodes
    mean: Floats  # of the unit's episodes
    drift: Floats  # change of the whole fleet's mean to a neighbouring slice, the larger one


def far_off(figures: Figures, *, share: bool = False, spread: Floats | None = None) -> list[Outlier]:
    """Outliers, the farthest first; at most half of all units.

    Args:
        share: the figure is a share, from 0 to 1.
        spread: [A] variance of D from another source, added to V; for groups, that among their members.
    """
    present = np.arange(len(figures.episodes))
    off: list[Outlier] = []
    if np.count_nonzero(figures.episodes.sum(0)) < LEAST_SLICES:
        return off
    while True:
        judged = _rest(figures.of(present))
        enough = (judged.episodes >= MIN_EPISODES) & (judged.episodes.sum() - judged.episodes >= MIN_EPISODES)
        if enough.sum() < 2 or 2 * (len(off) + 1) > len(figures.episodes):
            return off
        extra = np.zeros(len(present)) if spread is None else spread[present]
        at, sigma = _farthest(judged, enough, extra, share=share)
        if sigma < FAR_SIGMA:
            return off
        here = float(judged.mean[at])
        off.append(
            Outlier(int(present[at]), sigma, here, here - float(judged.difference[at]), int(judged.episodes[at]))
        )
        present = np.delete(present, at)


def differences(figures: Figures) -> Floats:
    """D of every unit, [A]."""
    return _rest(figures).difference


def _farthest(judged: _Rest, enough: NDArray[np.bool_], extra: Floats, *, share: bool) -> tuple[int, float]:
    """The unit farthest from the median, and its distance from all others in sigma; 0 if too near to count."""
    candidates = np.flatnonzero(enough)
    difference = judged.difference[candidates]
    noise = np.sqrt(judged.variance[candidates] + extra[candidates])
    distance = np.abs(difference - np.median(difference))
    smallest = 1e-12 * (1.0 + np.abs(judged.mean[candidates]).max())
    order = distance / np.maximum(noise, smallest)
    top = int(order.argmax())
    if len(candidates) == 2:  # both are equally far from each other: the one with fewer episodes stands out
        top = int(judged.episodes[candidates].argmin())
    others = np.delete(difference, top)
    tau = MAD_TO_SIGMA * float(np.median(np.abs(others - np.median(others))))
    far, at = float(abs(difference[top])), int(candidates[top])
    others_mean = float(judged.mean[at] - judged.difference[at])
    least = max(MIN_DEVIATIONS * float(judged.deviation[at]), float(judged.drift[at]), smallest)
    least = max(least, MIN_SHARE if share else MIN_RATIO * abs(others_mean))
    if far < least:
        return at, 0.0
    sigma = math.hypot(float(noise[top]), tau)
    return at, far / sigma if sigma > smallest else math.inf


def _rest(figures: Figures) -> _Rest:
    filled = figures.episodes.sum(0) > 0
    n, m, q = figures.episodes[:, filled], figures.mean[:, filled], figures.m2[:, filled]
    total = n.sum(0)
    grand = (n * m).sum(0) / np.maximum(total, 1.0)
    others = total - n
    both = (n > 0) & (others > 0)
    w = np.where(both, n, 0.0)  # slices in which no other unit had episodes tell nothing
    episodes = w.sum(1)
    per = np.maximum(episodes, 1.0)
    d = np.where(both, (m - grand) * total / np.maximum(others, 1.0), 0.0)
    difference = (w * d).sum(1) / per

    own = (np.where(both, q, 0.0) + w * np.square(d - difference[:, None])).sum(1) / np.maximum(episodes - 1.0, 1.0)
    around = np.where(n > 0, q + n * np.square(m - grand), 0.0)
    without = around.sum(0) - around - n * np.square(m - grand) * n / np.maximum(others, 1.0)
    dof = np.maximum(others - 1.0, 0.0)
    rest = np.where(both, without, 0.0).sum(1) / np.maximum(np.where(both, dof, 0.0).sum(1), 1.0)
    s2 = np.maximum(np.maximum(own, rest), 0.0)
    variance = s2 * (w + np.where(both, n * n / np.maximum(others, 1.0), 0.0)).sum(1) / (per * per)

    moved = np.abs(np.diff(grand, prepend=grand[:1], append=grand[-1:]))
    moved = np.maximum(moved[:-1], moved[1:])  # to the slice before, and to the one after
    return _Rest(episodes, difference, variance, np.sqrt(s2), (w * m).sum(1) / per, (w * moved).sum(1) / per)


def grouped(labels: Sequence[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Distinct labels in the order of their first member, and the number of each member's label."""
    names = list(dict.fromkeys(labels))
    number = {name: at for at, name in enumerate(names)}
    return names, np.array([number[one] for one in labels], np.int64)


def groups_off(figures: Figures, group: NDArray[np.int64], groups: int, *, share: bool = False) -> list[Outlier]:
    """Groups that are outliers as a whole; `unit` is the group's number.

    One member that is far off does not make its group one: most members must differ from all others outside, in the
    same direction and by at least half as much.
    """
    size = np.bincount(group, minlength=groups)
    if groups < 2:
        return []
    members = differences(figures)
    middle = np.array([np.median(members[group == one]) for one in range(groups)])
    within = members - middle[group]
    spread = np.square(MAD_TO_SIGMA * np.median(np.abs(within))) * (1.0 / size + 1.0 / np.maximum(size.sum() - size, 1))
    found = []
    for off in far_off(figures.together(group, groups), share=share, spread=spread):
        inside = group == off.unit
        if inside.sum() < 2:
            continue  # tested as a unit
        outside = figures.of(np.flatnonzero(~inside)).together(np.zeros((~inside).sum(), np.int64), 1)
        each = [float(differences(_with(figures.of([int(at)]), outside))[0]) for at in np.flatnonzero(inside)]
        shift = off.here - off.others
        towards = np.sort(np.array(each) * math.copysign(1.0, shift))
        if towards[(len(each) - 1) // 2] >= abs(shift) / 2:
            found.append(off)
    return found


def _with(one: Figures, rest: Figures) -> Figures:
    return Figures(*(np.concatenate(both) for both in zip(one, rest, strict=True)))
