"""Windows of n steps: the rows at which one may be drawn, and the arrays of the drawn ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.replay.ring import FIRST, TERMINATED, THERE, TRUNCATED, VALID, Placed, Ring
from rlctl_agents.types.experience import Arrays

MAX_STEPS = 255
"""Most steps of a window, whose length is stored as uint8."""


class Changed(NamedTuple):
    """Units that an insertion has made drawable, or undrawable: slots of windows, or columns of sequences."""

    made: NDArray[np.int64]  # [M]
    gone: NDArray[np.int64]  # [G] still there, or overwritten


class WindowEnds(NamedTuple):
    """Contents of windows, from their first row to the row after them."""

    rewards: NDArray[np.float32]  # [n, B], 0 after the end
    steps: NDArray[np.int64]  # [B]
    terminated: NDArray[np.bool_]  # [B] it ends in a terminal state
    ends: NDArray[np.void]  # [2, B] records of row t and of the row after the window: zeros where there is none yet
    after: NDArray[np.int64]  # [B] slot of the row after it, -1 for none


class Windows:
    """Windows of at most n steps over the rows of a ring.

    A window goes from row t to row t + k: k is n, or less where the episode ends within it. It may be drawn when row t
    is valid, all rows up to its end are there, so is the row after it (which a terminal end can do without), and the
    frames that row t sees are.

    Raises:
        ValueError: n is not from 1 to MAX_STEPS.
    """

    def __init__(self, ring: Ring, settings: ReplaySettings) -> None:
        if not 1 <= settings.n_step <= MAX_STEPS:
            raise ValueError(f"n_step must be from 1 to {MAX_STEPS}, got {settings.n_step}")
        self._ring, self._settings, self._n_step = ring, settings, settings.n_step
        self._history = max(max((field.frames for field in ring.fields.values()), default=0) - 1, 0)

    @property
    def count(self) -> int:
        """Number of units: the slots of the ring."""
        return self._ring.slots

    @property
    def nbytes(self) -> int:
        """Bytes of its own arrays: lengths are in the ring's records."""
        return 0

    @property
    def drawable(self) -> NDArray[np.uint8]:
        """[units] above 0 where one may be drawn, to be saved and restored."""
        return self.length

    def columns(self, slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """[B] the column of the first row of each."""
        return slot // self._ring.steps

    @property
    def length(self) -> NDArray[np.uint8]:
        """[slots] steps of the window from each row; 0: it cannot be drawn."""
        found: NDArray[np.uint8] = self._ring.records["length"][:-1]
        return found

    def update(self, placed: Placed) -> Changed:
        """Re-evaluate the rows that an insertion affects: those of its columns, those just before, whose windows end in
        them, and those that have lost frames."""
        steps, begin, length = self._ring.steps, placed.columns * self._ring.steps, self.length
        overwritten = (begin[:, None] + np.arange(steps)).ravel()
        overwritten = overwritten[length[overwritten] > 0]
        length[overwritten] = 0
        lost = self._lost_frames(placed.cut * steps)  # these may reach into the new columns, which are still empty
        lost = lost[length[lost] > 0]
        length[lost] = 0
        before = self._ring.behind(begin, self._n_step + self._history)[:0:-1]
        rows = np.concatenate((before, begin + np.arange(steps)[:, None]))
        found = window_lengths(self._ring.records["flags"][rows], self._n_step, self._history)
        new = (found > 0) & (length[rows] == 0)
        made = rows[new]
        length[made] = found[new]
        return Changed(made, np.concatenate((overwritten, lost)))

    def outcome(self, slot: NDArray[np.int64]) -> WindowEnds:
        """Rewards and ends of windows.

        Args:
            slot: [B] rows that may be drawn.
        """
        rows = self._ring.ahead(slot, self._n_step)
        records = self._ring.records.take(rows, mode="wrap").ravel()
        streams = slot.size
        steps = records[:streams]["length"].astype(np.int64)
        begin = np.arange(streams)
        end = begin + streams * steps
        reward = records["reward"].reshape(rows.shape)[:-1]
        return WindowEnds(
            rewards=np.where(np.arange(self._n_step)[:, None] < steps, reward, np.float32(0)),
            steps=steps,
            terminated=(records.take(end - streams)["flags"] & TERMINATED) != 0,
            ends=records.take(np.concatenate((begin, end))).reshape(2, streams),
            after=rows.ravel().take(end),
        )

    def first_error(self, slot: NDArray[np.int64]) -> NDArray[np.float64]:
        """n-step errors [B] of windows from the Q-values that their actor recorded, also across segments.

        sum_j gamma^j r_(t+j) + gamma^k q_max(t+k) - q(t), without the bootstrap where the window ends in a terminal
        state.

        Source: Horgan et al. 2018, arXiv:1803.00933, section 3: actors' own estimates are fresher than the largest so
        far.
        """
        settings, found = self._settings, self.outcome(slot)
        reward = found.rewards.astype(np.float64) * settings.reward_scale
        if settings.reward_clip is not None:
            reward = np.clip(reward, -settings.reward_clip, settings.reward_clip)
        bootstrap = np.where(found.terminated, 0.0, settings.gamma**found.steps * found.ends["q_max"][1])
        powers = settings.gamma ** np.arange(settings.n_step)
        error: NDArray[np.float64] = powers @ reward + bootstrap - found.ends["q"][0]
        return error

    def gather(self, slot: NDArray[np.int64], out: Arrays) -> Arrays:
        """Gather the arrays of windows.

        Args:
            slot: [B] rows that may be drawn.
            out: arrays of an earlier call for as many rows; the large ones are reused.

        Returns:
            Each `row+1` field [2, B, ...]: row t and the row after the window (zeros where there is none); each other
            `row` field [B, ...]: row t; `rewards` [n, B] float32, 0 after the end; `steps` [B] int64; `terminated` [B]
            bool; and `version` [B] int64.
        """
        found = self.outcome(slot)
        arrays: Arrays = {"rewards": found.rewards, "steps": found.steps, "terminated": found.terminated}
        arrays["version"] = found.ends["version"][0].copy()
        large, pair = self._ring.large, np.concatenate((slot, found.after)).reshape(2, slot.size)
        for name, field in self._ring.fields.items():
            if name == "reward":
                continue
            of = slice(2) if field.per == "row+1" else 0
            if name in large:
                rows = self._stack(pair, field.frames) if field.frames else pair[of]
                arrays[name] = large[name].take(rows, 0, out.get(name), "wrap")
            else:
                arrays[name] = found.ends[name][of].copy()
        return arrays

    def _stack(self, slot: NDArray[np.int64], frames: int) -> NDArray[np.int64]:
        """[2, B, frames] rows of the frames that a row sees, oldest first; -1 where its episode had not begun."""
        rows = self._ring.behind(slot.ravel(), frames - 1)
        begins = (self._ring.records["flags"][rows[:-1]] & FIRST) != 0
        rows[1:][np.logical_or.accumulate(begins, 0)] = -1
        return np.ascontiguousarray(rows[::-1].T).reshape(*slot.shape, frames)

    def _lost_frames(self, begin: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that have lost older frames, among the first rows of columns that have lost their predecessor.

        Args:
            begin: [A] slot of the first row of each such column.
        """
        if not self._history or not begin.size:
            return begin[:0]
        rows = self._ring.ahead(begin, self._history - 1)
        begins = (self._ring.records["flags"][rows] & FIRST) != 0
        lost: NDArray[np.int64] = rows[(rows >= 0) & ~np.logical_or.accumulate(begins, 0)]
        return lost


def window_lengths(flags: NDArray[np.uint8], n_step: int, history: int) -> NDArray[np.uint8]:
    """Number of steps of the window from each row, as far as these rows go.

    Args:
        flags: [P, B] of consecutive rows; before the first and after the last there is none.
        n_step: steps of a window in an episode that goes on.
        history: rows before a window's first that must be stored, unless the episode begins after them.

    Returns:
        [P, B], 0 where no window may be drawn.

    Example:
        n 2, three rows, row 1 truncated, so that row 2 is not valid: 2, 1, 0. Terminated, and row 2 not there: 2, 1.
    """
    count = len(flags)
    padded = np.zeros((history + count + n_step, flags.shape[1]), np.uint8)
    padded[history : history + count] = flags

    def at(offset: int) -> NDArray[np.uint8]:
        return padded[history + offset : history + offset + count]

    seen = (flags & FIRST) != 0
    unbroken = np.ones(flags.shape, np.bool_)
    for offset in range(1, history + 1):
        unbroken &= at(-offset) != 0
        seen |= unbroken & ((at(-offset) & FIRST) != 0)
    going = seen | unbroken
    length = np.zeros(flags.shape, np.uint8)
    wanted = THERE | VALID
    for offset in range(n_step):
        row, after = at(offset), at(offset + 1)
        # an episode that begins without an end before it is not part of this one
        going &= (row & (wanted | FIRST if offset else wanted)) == wanted
        ends = going if offset == n_step - 1 else going & ((row & (TERMINATED | TRUNCATED)) != 0)
        whole = ends & (((row & TERMINATED) != 0) | ((after & (THERE | FIRST)) == THERE))
        length[whole] = offset + 1
        going = going & ~ends
    return length
