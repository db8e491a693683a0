"""A shard as it was at one instant, written while it goes on, and read back bit for bit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.checkpoint.parts import Part
from rlctl_agents.checkpoint.state import StateError
from rlctl_agents.checkpoint.streamed import StoredArrays, StreamedPart
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.types.experience import Arrays

PIECE_BYTES = 1 << 22
"""Of columns that are copied at once, while nothing is inserted or drawn."""


class Snapshot:
    """State of a shard at the instant at which it is made, by the thread that holds the shard's lock.

    What is small is copied at once. What is stored of columns is copied piece by piece, by `write`, and by an insertion
    before it overwrites them.

    Args:
        lock: of the shard, held by whoever makes this.
        plain: of the owner's own, to be saved with it.
    """

    def __init__(self, shard: Shard, lock: threading.Lock, plain: Mapping[str, Any] | None = None) -> None:
        self._shard, self._lock = shard, lock
        self._arrays, self._plain = shard.order()
        self._plain |= plain or {}
        self._columns = {name: _bytes(one) for name, one in shard.by_column.items()}
        self._filled = shard.filled // shard.schema.unroll_length
        column_bytes = sum(one.shape[1] for one in self._columns.values())
        self._piece = max(1, PIECE_BYTES // max(column_bytes, 1))
        self._left = np.ones(-(-self._filled // self._piece), np.bool_)
        self._copied: deque[tuple[int, dict[str, bytes]]] = deque()
        shard.before_overwriting = self._save

    def write(self, folder: Path, name: str) -> Part:
        """Write it; called by a thread of its own, without the lock.

        Raises:
            NoRoom: the disk has no room for it.
            PartError: the file system refuses otherwise.
        """
        try:
            small = {one: _bytes(array) for one, array in self._arrays.items()}
            sizes = {one: array.shape for one, array in small.items()}
            sizes |= {one: (self._filled, array.shape[1]) for one, array in self._columns.items()}
            part = StreamedPart(folder, name, sizes, self._plain)
            for one, array in small.items():
                part.put(one, 0, array.tobytes())
            for piece in range(self._left.size):
                with self._lock:
                    self._copy(piece)
                while self._copied:
                    first, found = self._copied.popleft()
                    for one, data in found.items():
                        part.put(one, first, data)
            return part.finish()
        finally:
            with self._lock:
                self._shard.before_overwriting = None

    def _save(self, columns: NDArray[np.int64]) -> None:
        for piece in np.unique(columns[columns < self._filled] // self._piece).tolist():
            self._copy(piece)

    def _copy(self, piece: int) -> None:
        if not self._left[piece]:
            return
        self._left[piece] = False
        first = piece * self._piece
        end = min(first + self._piece, self._filled)
        self._copied.append((first, {name: one[first:end].tobytes() for name, one in self._columns.items()}))


def restore(shard: Shard, folder: Path, file: str, sha256: str) -> dict[str, Any]:
    """Bring a shard to the state that was written: bit for bit where it is empty and has as many columns, else by
    storing its rows anew, the oldest first, as many as there is room for.

    Returns:
        What the owner saved with it.

    Raises:
        Corrupt: the part is damaged.
        PartError: the file system refuses.
        StateError: it is of other experience, or of no shard.
    """
    stored = StoredArrays(folder, file, sha256)
    plain = stored.plain
    if plain.get("experience") != shard.experience:
        raise StateError(f"{file} holds experience of another kind: schema or sequences have changed")
    if int(plain["columns"]) == shard.columns and not shard.filled:
        _fill(shard, stored)
        return dict(plain)
    whole = Shard(shard.schema, shard.settings, capacity=int(plain["columns"]) * shard.schema.unroll_length, seed=0)
    _fill(whole, stored)
    shard.insert_from(whole)
    return dict(plain)


def _fill(shard: Shard, stored: StoredArrays) -> None:
    for name, one in shard.by_column.items():
        rows = stored.rows(name)
        _bytes(one)[: len(rows)] = rows
    arrays: Arrays = {}
    for name, dtype in ORDER.items():
        rows = stored.rows(name)
        arrays[name] = np.ascontiguousarray(rows).view(dtype).reshape(len(rows))
    shard.take_order(arrays, stored.plain)


ORDER = {
    "generation": np.uint32, "before": np.int64, "after": np.int64, "stream": np.int64, "row0": np.int64,
    "boot": np.int64, "mass": np.float32, "drawable": np.uint8,
}  # fmt: skip
"""Arrays of `Shard.order`."""


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """[rows, bytes of each], a view."""
    rows = len(array)
    return array.reshape(rows, -1).view(np.uint8).reshape(rows, -1) if rows else np.zeros((0, 0), np.uint8)
