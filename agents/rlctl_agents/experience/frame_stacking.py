"""Stacked frames, each sent once: the encoding of a field with `frames` in a block, and its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_frames(values: NDArray[Any], cursor: NDArray[np.int64], slot: NDArray[np.int64], obs: NDArray[Any]) -> None:
    """Write the newest frame of every slot into a block, and the older ones too where a segment begins.

    Args:
        values: [T + k, slots, ...] frames of the block; row t of a slot sees t to t + k - 1, oldest first.
        cursor: [K] row of each slot.
        slot: [K] numbers of the slots.
        obs: [K, k, ...] stacked observations of these slots.
    """
    stack = obs.shape[1]
    if slot.size == values.shape[1] and (cursor == cursor[0]).all():  # slots ascend: all of them, side by side
        row = int(cursor[0])
        for frame in range(0 if row == 0 else stack - 1, stack):
            values[row + frame] = obs[:, frame]
        return
    values[cursor + stack - 1, slot] = obs[:, -1]
    begins = cursor == 0
    for frame in range(stack - 1):
        values[frame, slot[begins]] = obs[begins, frame]


def rebuild(out: NDArray[Any], frames: NDArray[Any], first: NDArray[Any]) -> None:
    """Rebuild the stacked observation of each row from frames that are stored once.

    Args:
        out: [T+1, B, k, ...] output.
        frames: [T + k, B, ...].
        first: [T+1, B] bool, an episode begins: it sees zeros in place of the frames before.
    """
    rows, _, stack = out.shape[:3]
    for frame in range(stack):
        out[:, :, frame] = frames[frame : frame + rows]
    for row, stream in zip(*np.nonzero(first), strict=True):
        for later in range(min(stack - 1, rows - int(row))):
            out[row + later, stream, : stack - 1 - later] = 0
