"""Uniform random numbers that depend on seed, stream and row alone: not on the actor, the batch or the order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIER = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10
AT_ONCE = 8192
"""Numbers made at once, roughly, where a segment needs fewer: fewer would cost as much."""


def philox4x32(counter: list[NDArray[np.uint64]], key: tuple[int, int]) -> list[NDArray[np.uint64]]:
    """Four random 32-bit words for every counter.

    Args:
        counter: four arrays of one shape, entries below 2**32; the first is the least significant.
        key: two words below 2**32.

    Returns:
        Four arrays of that shape, entries below 2**32.

    Example:
        Counter 0 and key 0 give 6627e8d5 e169c58d bc57ac4c 9b00dbd8.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x32-10.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0 = (second >> _HALF) ^ c1 ^ np.uint64(k0)
        c2 = (first >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = second & _LOW, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def uniforms(seed: int, stream: NDArray[np.int64], row: NDArray[np.int64], width: int) -> NDArray[np.float32]:
    """Uniform random numbers of rows of streams.

    Args:
        seed: key, below 2**64.
        stream: any shape, from 0.
        row: number of the row in its stream, broadcast with `stream`; below 2**48.
        width: numbers per row, at most 262,144.

    Returns:
        [*shape, width] strictly between 0 and 1, multiples of 2**-24.
    """
    stream64, row64 = np.broadcast_arrays(stream.astype(np.uint64), row.astype(np.uint64))
    blocks = -(-width // 4)
    out = np.empty((*row64.shape, blocks, 4), np.float32)
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    high = (row64 >> _HALF) << np.uint64(16)
    for block in range(blocks):
        counter = [row64 & _LOW, high | np.uint64(block), stream64 & _LOW, stream64 >> _HALF]
        for word, values in enumerate(philox4x32(counter, key)):
            # 23 bits and a half: the largest is 1 - 2**-24, the largest float32 below 1
            out[..., block, word] = ((values >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0**-23
    return out.reshape(*row64.shape, 4 * blocks)[..., :width]


def environment_seeds(seed: int, stream: NDArray[np.int64]) -> list[int]:
    """A seed for the environment of each stream, from 0 to 2**31 - 1; independent of the number of streams."""
    stream64 = stream.astype(np.uint64)
    beyond_rows = np.full(stream.size, 0xFFFFFFFF, np.uint64)  # noise never reaches this counter
    counter = [beyond_rows, beyond_rows, stream64 & _LOW, stream64 >> _HALF]
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[0]
    return [int(word) >> 1 for word in words]


class Noise:
    """Noise for the decisions of some slots, made for whole segments at a time.

    Every slot's next decision takes the numbers of its next row, whichever other slots act beside it.

    Args:
        seed: of the run.
        stream: [slots] id of each slot's stream.
        width: numbers per decision; 0 for a deterministic policy.
        rows: rows made at once; more where there are few slots.
    """

    def __init__(self, seed: int, stream: NDArray[np.int64], width: int, rows: int) -> None:
        self._seed = seed
        self._stream = stream
        self._width = width
        self._rows = rows = max(rows, AT_ONCE // max(1, stream.size * width))
        self._row0 = np.zeros(stream.size, np.int64)
        self._cursor = np.full(stream.size, rows, np.int64)
        self._even = rows
        """Common cursor of all slots while they have all decided together; -1 once they have not."""
        self._made = np.empty((rows, stream.size, width), np.float32)

    def take(self, slot: NDArray[np.int64]) -> NDArray[np.float32]:
        """Take the next row of each of these slots, [K, width]; each is named once. Valid until the next call."""
        if self._width == 0:
            return self._made[0, : slot.size]
        if self._even >= 0:
            if slot.size == self._stream.size:
                return self._take_all()
            self._cursor[:], self._even = self._even, -1
        cursor = self._cursor[slot]
        spent = slot[cursor == self._rows]
        if spent.size:
            self._make(spent)
            self._cursor[spent] = 0
            cursor = self._cursor[slot]
        self._cursor[slot] += 1
        taken: NDArray[np.float32] = self._made[cursor, slot]
        return taken

    def _take_all(self) -> NDArray[np.float32]:
        if self._even == self._rows:
            self._make(np.arange(self._stream.size))
            self._even = 0
        self._even += 1
        taken: NDArray[np.float32] = self._made[self._even - 1]
        return taken

    def _make(self, slot: NDArray[np.int64]) -> None:
        """Make the next rows of these slots."""
        row = self._row0[slot] + np.arange(self._rows, dtype=np.int64)[:, None]
        self._made[:, slot] = uniforms(self._seed, self._stream[slot], row, self._width)
        self._row0[slot] += self._rows
