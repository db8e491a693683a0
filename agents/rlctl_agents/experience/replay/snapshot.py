"""Snapshot of a shard at one instant, written while the shard serves, and restored bit for bit."""

from __future__ import annotations

import contextlib
from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.checkpoint.parts import Part, PartError, StateError
from rlctl_agents.checkpoint.streamed import StoredArrays, StreamedPart
from rlctl_agents.experience.replay.ring import as_bytes
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.types.experience import Arrays

PIECE_BYTES = 1 << 22
"""Bytes of a chunk of columns, which is copied at once."""
AT_ONCE_BYTES = 1 << 24
"""Bytes that are copied under one hold of the lock, while nothing is inserted or drawn: some milliseconds, one chunk in
any case. For each hold the writer waits until a draw is over, and draws of images follow each other closely."""
WAITING_BYTES = 1 << 27
"""Most bytes of chunks that wait for the disk, a third of the memory that a shard has beside its arrays."""


class ShardSnapshot:
    """State of a shard at the instant of construction, by the thread that holds the shard's lock.

    Small state is copied at once. The data of columns is copied in chunks, by `write`, and by an insertion before it
    overwrites them. The snapshot is abandoned when insertions overwrite more than the disk takes: they never wait.

    Args:
        lock: the shard's lock, held by the constructing thread.
    """

    def __init__(self, shard: Shard, lock: AbstractContextManager[Any]) -> None:
        assert shard.before_overwriting is None, "one snapshot at a time"
        self._shard, self._lock = shard, lock
        self._arrays, self._plain = shard.order()
        self._columns = {name: as_bytes(one) for name, one in shard.by_column.items()}
        self._filled = shard.filled // shard.schema.unroll_length
        column_bytes = sum(one.shape[1] for one in self._columns.values())
        self._piece = max(1, PIECE_BYTES // max(column_bytes, 1))
        piece_bytes = max(1, self._piece * column_bytes)
        self._at_once = max(1, AT_ONCE_BYTES // piece_bytes)
        self._most = max(1, WAITING_BYTES // piece_bytes)
        self._left = np.ones(-(-self._filled // self._piece), np.bool_)
        self._copied: deque[tuple[int, dict[str, bytes]]] = deque()
        self._given_up = False
        shard.before_overwriting = self._save

    def write(self, folder: Path, name: str) -> Part:
        """Write the snapshot; called by a thread of its own, without the lock.

        Raises:
            NoRoom: the disk has no room for it.
            PartError: the file system refuses otherwise, or is too slow.
        """
        part = None
        try:
            small = {one: as_bytes(array) for one, array in self._arrays.items()}
            sizes = {one: array.shape for one, array in small.items()}
            sizes |= {one: (self._filled, array.shape[1]) for one, array in self._columns.items()}
            part = StreamedPart(folder, name, sizes, self._plain)
            for one, array in small.items():
                part.put(one, 0, array.tobytes())
            for piece in range(0, self._left.size, self._at_once):
                with self._lock:
                    if self._given_up:
                        raise PartError(f"{name}: rows are overwritten faster than they can be written")
                    for each in range(piece, min(piece + self._at_once, self._left.size)):
                        self._copy(each)
                while self._copied:
                    first, found = self._copied.popleft()
                    for one, data in found.items():
                        part.put(one, first, data)
            return part.finish()
        except BaseException:
            if part is not None:
                part.abandon()
            raise
        finally:
            with self._lock:
                self._shard.before_overwriting = None

    def _save(self, columns: NDArray[np.int64]) -> None:
        for piece in np.unique(columns[columns < self._filled] // self._piece).tolist():
            if self._left[piece] and len(self._copied) >= self._most:
                self._given_up, self._shard.before_overwriting = True, None
                return
            self._copy(piece)

    def _copy(self, piece: int) -> None:
        if not self._left[piece]:
            return
        self._left[piece] = False
        first = piece * self._piece
        end = min(first + self._piece, self._filled)
        self._copied.append((first, {name: one[first:end].tobytes() for name, one in self._columns.items()}))


def restore(shard: Shard, folder: Path, file: str, sha256: str) -> None:
    """Restore a shard from a part: bit for bit if it is empty and of the same form, else by inserting the part's rows,
    the oldest first, only the newest where room is short.

    Raises:
        Corrupt: the part is damaged.
        PartError: the file system refuses.
        StateError: it is of other experience, or of no shard.
    """
    with contextlib.closing(StoredArrays(folder, file, sha256)) as stored:
        plain = stored.plain
        if plain.get("experience") != shard.experience:
            raise StateError(f"{file} holds experience of another kind: schema or sequences have changed")
        own = {name: as_bytes(one) for name, one in shard.by_column.items()}
        try:  # before anything is changed
            rows = {name: stored.rows(name) for name in own}
            filled = int(plain["filled"]) // shard.schema.unroll_length
            for name, one in rows.items():
                if one.shape != (filled, own[name].shape[1]) or filled > int(plain["columns"]):
                    raise StateError(f"{file} holds {name} of another form: {list(one.shape)}")
            arrays: Arrays = {
                name: stored.rows(name).all().view(dtype).reshape(stored.rows(name).shape[0])
                for name, dtype in ORDER.items()
            }
        except (TypeError, MemoryError) as error:
            raise StateError(f"{file} is of another form, or larger than this memory: {error}") from error
        if shard.is_like(plain) and not shard.filled:
            try:
                for name, array in own.items():
                    rows[name].read(0, array[:filled])
            except BaseException:  # a shard without an order is empty, and its columns are as when it was made
                for array in own.values():
                    array[:filled] = 0
                raise
            shard.take_order(arrays, plain)
        else:
            shard.insert_from(arrays, plain, {name: one.take for name, one in rows.items()})


ORDER = {
    "generation": np.uint32, "before": np.int64, "after": np.int64, "stream": np.int64, "row0": np.int64,
    "boot": np.int64, "mass": np.float32, "drawable": np.uint8,
}  # fmt: skip
"""Arrays of `Shard.order`, with their dtypes."""
