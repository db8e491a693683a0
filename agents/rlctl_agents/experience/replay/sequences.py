"""Sequences of whole segments: the columns at which one may be drawn, and the arrays of the drawn ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import ReplaySettings, rescaled, unscaled
from rlctl_agents.experience.replay.ring import FIRST, FLAGS, TERMINATED, THERE, TRUNCATED, VALID, Placed, Ring
from rlctl_agents.experience.replay.windows import Changed
from rlctl_agents.types.experience import Arrays


class Sequences:
    """Sequences of `burn_in + sequence` rows over the columns of a ring, one from the beginning of each column.

    One may be drawn when its columns follow each other in a stream, the row after it is there, and so are the frames
    that its first row sees. It goes on across the ends of episodes, as its rows came: `first` marks where one begins.

    Raises:
        ValueError: burn_in or the sequence is no multiple of the length of the ring's segments.
    """

    def __init__(self, ring: Ring, settings: ReplaySettings) -> None:
        if settings.sequence < 1 or settings.sequence % ring.steps or settings.burn_in % ring.steps:
            raise ValueError(
                f"sequences of {settings.burn_in} + {settings.sequence} rows are not made of segments of {ring.steps}"
            )
        self._ring, self._settings = ring, settings
        self._rows = settings.burn_in + settings.sequence
        self._columns = self._rows // ring.steps
        self._history = max(max((field.frames for field in ring.fields.values()), default=0) - 1, 0)
        self._drawable = np.zeros(ring.columns, np.bool_)

    @property
    def count(self) -> int:
        """Number of units: the columns of the ring."""
        return self._ring.columns

    @property
    def nbytes(self) -> int:
        return self._drawable.nbytes

    @property
    def drawable(self) -> NDArray[np.uint8]:
        """[units] above 0 where one may be drawn, to be saved and restored."""
        return self._drawable.view(np.uint8)

    def columns(self, unit: NDArray[np.int64]) -> NDArray[np.int64]:
        """[B] the column of the first row of each."""
        return unit

    def update(self, placed: Placed) -> Changed:
        """Re-evaluate the columns that an insertion affects: those that it has filled, those before them, whose
        sequences may reach into them, and those that have lost their predecessor."""
        steps = self._ring.steps
        overwritten = placed.columns[self._drawable[placed.columns]]
        self._drawable[overwritten] = False
        # segments may be shorter than the frames a row sees: the columns after a cut one may have lost frames, too
        cut = self._ring.ahead(placed.cut * steps, max(self._history - 1, 0))[::steps].ravel()
        cut = cut[cut >= 0] // steps
        cut = cut[self._drawable[cut] & ~self._sees(cut)]
        self._drawable[cut] = False
        before = self._ring.behind(placed.columns * steps, self._columns * steps)[::steps].ravel()
        unit = np.unique(before[before >= 0]) // steps
        unit = unit[~self._drawable[unit]]
        whole = self._ring.ahead(unit * steps, self._rows)[::steps]
        made = unit[(whole >= 0).all(0) & self._sees(unit)]
        self._drawable[made] = True
        return Changed(made, np.concatenate((overwritten, cut)))

    def first_error(self, unit: NDArray[np.int64]) -> NDArray[np.float64]:
        """Errors [B] of sequences from the Q-values that their actors recorded: n-step errors of the rows behind the
        burn-in, of which the largest and the mean are combined as a learner does it.

        Source: Kapturowski et al. 2019, section 2.3.
        """
        settings = self._settings
        rows = self._ring.ahead(unit * self._ring.steps, self._rows)[settings.burn_in :]
        records = self._ring.records.take(rows, mode="wrap")
        q, q_max = records["q"].astype(np.float64), records["q_max"].astype(np.float64)
        reward = records["reward"].astype(np.float64) * settings.reward_scale
        if settings.reward_clip is not None:
            reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
        if settings.rescaled:
            q_max = unscaled(q_max)
        target, whole = n_step_returns(reward, q_max, records["flags"], settings)
        if settings.rescaled:
            target = rescaled(target)
        valid = whole & ((records["flags"][:-1] & VALID) != 0)
        error = np.where(valid, np.abs(target - q[:-1]), 0.0)
        mean = error.sum(0) / np.maximum(valid.sum(0), 1)
        found: NDArray[np.float64] = settings.priority_max * error.max(0) + (1 - settings.priority_max) * mean
        return found

    def gather(self, unit: NDArray[np.int64], out: Arrays) -> Arrays:
        """Gather the arrays of sequences of L rows.

        Args:
            unit: [B] units that may be drawn.
            out: arrays of an earlier call for as many units; the large ones are reused.

        Returns:
            Each `row+1` field and `first` [L + 1, B, ...], with the row after; fields with `frames` as a block has
            them, [L + frames, B, ...]; each `row` field and the other flags [L, B, ...]; each `segment` field [B, ...],
            that of the first segment; and `version` [L, B] int64.
        """
        ring, rows = self._ring, self._rows
        slots = ring.ahead(unit * ring.steps, rows)
        records = ring.records.take(slots)
        arrays: Arrays = {"version": np.ascontiguousarray(records["version"][:-1])}
        for name, bit in FLAGS.items():
            set_ = (records["flags"] & bit) != 0
            arrays[name] = set_ if name == "first" else set_[:-1]
        for name, field in ring.fields.items():
            if name in ring.large:
                at = slots if field.per == "row+1" else slots[:-1]
                if field.frames > 1:
                    older = ring.behind(slots[0], field.frames - 1)
                    begins = (ring.records["flags"][older[:-1]] & FIRST) != 0
                    older[1:][np.logical_or.accumulate(begins, 0)] = -1  # of another episode: zeros
                    at = np.concatenate((older[:0:-1], at))
                arrays[name] = ring.large[name].take(at, 0, out.get(name), "wrap")
            else:
                arrays[name] = np.ascontiguousarray(records[name][: rows + (field.per == "row+1")])
        for name, values in ring.segments.items():
            arrays[name] = values.take(unit, 0)
        return arrays

    def _sees(self, unit: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[B] True if the frames that the first row sees are stored: those back to the beginning of its episode."""
        if not self._history or not unit.size:
            return np.ones(unit.shape, np.bool_)
        rows = self._ring.behind(unit * self._ring.steps, self._history)
        flags = self._ring.records["flags"][rows]
        begun = np.logical_or.accumulate((flags & FIRST) != 0, 0)
        found: NDArray[np.bool_] = (begun | ((flags & THERE) != 0)).all(0)
        return found


def n_step_returns(
    reward: NDArray[np.float64], value: NDArray[np.float64], flags: NDArray[np.uint8], settings: ReplaySettings
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """n-step returns of consecutive rows, over fewer steps where an episode or the rows end: equal to the learner's
    `ops.n_step.sequence_returns`.

    Args:
        reward, value, flags: [L + 1, B], the last of them of the row after.

    Returns:
        Returns [L, B], and [L, B] True where they are whole: an episode that begins without an end before it cuts a
        return off.
    """
    length = len(reward) - 1
    target = np.zeros((length, reward.shape[1]))
    going, whole = np.ones(target.shape, np.bool_), np.ones(target.shape, np.bool_)
    for step in range(min(settings.n_step, length)):
        rows, count = slice(step, length), length - step
        rest, row, after = going[:count], flags[rows], flags[step + 1 :]
        target[:count] += settings.gamma**step * np.where(rest, reward[rows], 0.0)
        alive = (row & TERMINATED) == 0
        broken = rest & alive & ((after & FIRST) != 0)
        stops = (row & (TERMINATED | TRUNCATED)) != 0
        stops[count - 1 if step + 1 < settings.n_step else 0 :] = True
        target[:count] += settings.gamma ** (step + 1) * np.where(rest & stops & alive, value[step + 1 :], 0.0)
        whole[:count] &= ~broken
        rest &= ~stops & ~broken
    return target, whole
