"""Ring buffer of rows: segments of many streams, each row and each frame stored once, the oldest overwritten first."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Field, Schema, SegmentBlock

FIRST, VALID, TERMINATED, TRUNCATED, THERE = 1, 2, 4, 8, 16
"""Bits of a row's flags. Without THERE nothing is stored at its place."""
FLAGS = {"first": FIRST, "valid": VALID, "terminated": TERMINATED, "truncated": TRUNCATED}
"""Fields that are kept as one bit each."""
OWN = {"version": "int64", "flags": "uint8", "length": "uint8"}
"""Fields of a record besides those of the schema: name -> dtype."""
PACKED_BYTES = 256
"""Most bytes per row of a field in the row's record, where fields lie side by side, so that a row drawn at random costs
one or two reads from memory; larger fields have arrays of their own."""


TakesRows = Mapping[str, Callable[[NDArray[np.int64]], NDArray[np.uint8]]]
"""Readers of stored data by name: columns [B] -> [B, bytes of each]."""


class Placed(NamedTuple):
    """Columns that an insertion has changed."""

    columns: NDArray[np.int64]  # [B] filled anew
    cut: NDArray[np.int64]  # [A] columns that remain and have lost their predecessor


class Ring:
    """Columns of T rows of one stream each: slot = column * T + row.

    Of `row+1` fields the first T rows are stored: the row after belongs to the stream's next column. Of fields with
    `frames` the newest frame of each row is stored: the older ones are those of the rows before. Columns that follow
    each other in a stream are linked. A column that does not begin where the stream's newest one ended, or comes from
    another boot of its sender, is not linked: no window reaches across.

    Args:
        schema: of the blocks.
        capacity: rows to keep, at least; rounded up to whole columns.

    Raises:
        ValueError: capacity is not positive, or the schema lacks one of FLAGS or `reward`.
    """

    def __init__(self, schema: Schema, capacity: int) -> None:
        if lacking := sorted({*FLAGS, "reward"} - {field.name for field in schema.fields}):
            raise ValueError(f"a replay needs fields that the schema lacks: {', '.join(lacking)}")
        self.steps, self.columns = schema.unroll_length, columns_for(schema, capacity)
        packed, large = layout(schema)
        self.fields = {
            field.name: field for field in schema.fields if field.per != "segment" and field.name not in FLAGS
        }
        # one row more than there are slots, of zeros, which is never written: slot -1 is no row
        self.records = np.zeros(self.slots + 1, packed)
        """[slots + 1] packed fields, `version`, `flags`, and `length`, of the window from a row: `Windows` sets it."""
        self.large: dict[str, NDArray[Any]] = {
            name: np.zeros((self.slots + 1, *shape), dtype) for name, (dtype, shape) in large.items()
        }
        """Large field -> [slots + 1, ...]."""
        self.segments: dict[str, NDArray[Any]] = {
            field.name: np.zeros((self.columns, *field.shape), field.dtype)
            for field in schema.fields
            if field.per == "segment"
        }
        """`segment` field -> [columns, ...]."""
        self.generation = np.zeros(self.columns, np.uint32)
        """[columns] times that a column was filled; 0: never."""
        # previous and next column in the stream, -1: none; the last entry is that of column -1
        self._before = np.full(self.columns + 1, -1, np.int64)
        self._after = np.full(self.columns + 1, -1, np.int64)
        self._stream = np.zeros(self.columns, np.int64)
        self._row0 = np.zeros(self.columns, np.int64)
        self._boot = np.zeros(self.columns, np.int64)
        self._newest: dict[tuple[int, int], int] = {}  # boot and stream -> its newest column, while that is here
        self._head = 0
        self.filled = 0
        """Rows that are stored."""
        self.before_overwriting: Callable[[NDArray[np.int64]], None] | None = None
        """Callback that is given columns before they are overwritten."""

    @staticmethod
    def bytes_for(schema: Schema, capacity: int) -> int:
        """Bytes of the arrays of a ring."""
        columns = columns_for(schema, capacity)
        packed, large = layout(schema)
        row = packed.itemsize + sum(dtype.itemsize * math.prod(shape) for dtype, shape in large.values())
        segment = sum(segment_bytes(field) for field in schema.fields if field.per == "segment")
        return (columns * schema.unroll_length + 1) * row + columns * (44 + segment) + 16

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays: list[NDArray[Any]] = [self.records, self.generation, self._before, self._after]
        arrays += [self._stream, self._row0, self._boot, *self.large.values(), *self.segments.values()]
        return sum(array.nbytes for array in arrays)

    @property
    def slots(self) -> int:
        """Rows that it holds at most."""
        return self.steps * self.columns

    def insert(self, block: SegmentBlock) -> Placed:
        """Store a block over the oldest columns; of one that is larger than the ring, its last columns."""
        count = min(block.version.shape[1], self.columns)
        columns = (self._head + np.arange(count)) % self.columns
        if self.before_overwriting is not None:
            self.before_overwriting(columns)
        cut = self._forget(columns)
        skip = block.version.shape[1] - count
        # the block's columns lie side by side, or in two runs where the ring wraps around
        until_end = min(count, self.columns - self._head)
        for first, end in ((0, until_end), (until_end, count)):
            if end > first:
                self._write(block, slice(skip + first, skip + end), int(columns[first]))
        self.generation[columns] += 1
        self.filled = min(self.filled + count * self.steps, self.slots)
        self._head = int((self._head + count) % self.columns)
        self._link(block.header.stream[skip:], block.header.row0[skip:], _number_of(block.header.boot), columns)
        return Placed(columns, cut)

    @property
    def oldest_first(self) -> NDArray[np.int64]:
        """Columns that are filled, in the order in which they came."""
        filled = self.filled // self.steps
        begin = self._head if filled == self.columns else 0
        return (begin + np.arange(filled)) % self.columns

    @property
    def by_column(self) -> dict[str, NDArray[Any]]:
        """[columns, ...] views of the stored data of each column, no copies; `length` of records is derived."""
        end = self.slots
        views = {name: one[:end].reshape(self.columns, -1) for name, one in self.large.items()}
        return {**self.segments, **views, "records": self.records[:end].reshape(self.columns, self.steps)}

    def order(self) -> tuple[Arrays, dict[str, Any]]:
        """A copy of the order and links of its columns: arrays [columns filled], and plain data."""
        filled = self.filled // self.steps
        arrays: Arrays = {
            name: array[:filled].copy()
            for name, array in (
                ("generation", self.generation), ("before", self._before), ("after", self._after),
                ("stream", self._stream), ("row0", self._row0), ("boot", self._boot),
            )
        }  # fmt: skip
        newest = [[stream, column] for (_, stream), column in self._newest.items()]
        return arrays, {"columns": self.columns, "head": self._head, "filled": self.filled, "newest": newest}

    def take_order(self, arrays: Arrays, plain: Mapping[str, Any]) -> None:
        """Restore the order of a ring with as many columns; the columns' data is in place already."""
        filled = int(plain["filled"]) // self.steps
        for name, array in (
            ("generation", self.generation), ("before", self._before), ("after", self._after),
            ("stream", self._stream), ("row0", self._row0), ("boot", self._boot),
        ):  # fmt: skip
            array[:filled] = arrays[name]
        self._newest = {(int(self._boot[column]), int(stream)): int(column) for stream, column in plain["newest"]}
        self._head, self.filled = int(plain["head"]), int(plain["filled"])

    def take_rows(self, other: Ring, rows: TakesRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], Placed]]:
        """Store the columns of another ring of the same schema, the oldest first; of more than there is room for, the
        newest.

        Args:
            other: gives the order of its columns; its stored data is not read.
            rows: gives the stored data, by the names of `by_column`.

        Yields:
            Columns of the other, their columns here, and the places that have changed.
        """
        mine = {name: as_bytes(one) for name, one in self.by_column.items()}
        for columns in other.side_by_side(self.columns):
            read = {name: rows[name](columns) for name in mine}  # all of it, before anything is overwritten
            to = (self._head + np.arange(columns.size)) % self.columns
            cut = self._forget(to)
            for name, values in mine.items():
                values[to] = read[name]
            self.records[:-1].reshape(self.columns, self.steps)["length"][to] = 0
            self.generation[to] += 1
            self.filled = min(self.filled + columns.size * self.steps, self.slots)
            self._head = int((self._head + columns.size) % self.columns)
            streams, row0 = other._stream[columns].tolist(), other._row0[columns].tolist()
            self._link(streams, row0, int(other._boot[columns[0]]), to)
            yield columns, to, Placed(to, cut)

    def side_by_side(self, most: int) -> Iterator[NDArray[np.int64]]:
        """The newest columns, oldest first, in groups that one insert can take: at most one column per stream, all of
        one boot.

        Args:
            most: most columns of all groups together.
        """
        part, streams, boot = list[int](), set[int](), 0
        for column in self.oldest_first[-most:].tolist():
            stream, of = int(self._stream[column]), int(self._boot[column])
            if part and (stream in streams or of != boot):
                yield np.array(part)
                part, streams = [], set()
            boot = of
            part.append(column)
            streams.add(stream)
        if part:
            yield np.array(part)

    def ahead(self, slot: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """[count + 1, B] slots of a row and of those after it in its stream, -1 where there is none."""
        return self._walk(slot, count, 1, self._after)

    def behind(self, slot: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """[count + 1, B] slots of a row and of those before it in its stream, -1 where there is none."""
        return self._walk(slot, count, -1, self._before)

    def _walk(self, slot: NDArray[np.int64], count: int, way: int, links: NDArray[np.int64]) -> NDArray[np.int64]:
        column = slot // self.steps
        row = slot - column * self.steps + way * np.arange(count + 1)[:, None]
        found: NDArray[np.int64] = column * self.steps + row
        for hop in range(1, (self.steps - 1 + count) // self.steps + 1):
            column = links[column]
            beyond = row >= hop * self.steps if way > 0 else row < (1 - hop) * self.steps
            np.copyto(found, (column - way * hop) * self.steps + row, where=beyond)
        return np.maximum(found, -1)

    def _forget(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unlink columns that are about to be overwritten; returns [A] columns that lose their predecessor."""
        after = self._after[columns]
        cut = after[(after >= 0) & ((after - self._head) % self.columns >= columns.size)]
        self._before[cut] = -1
        boots, streams = self._boot[columns].tolist(), self._stream[columns].tolist()
        for column, key in zip(columns.tolist(), zip(boots, streams, strict=True), strict=True):
            if self._newest.get(key) == column:
                del self._newest[key]
        self._before[columns] = self._after[columns] = -1
        return cut

    def _write(self, block: SegmentBlock, of: slice, column: int) -> None:
        """Write columns of a block, from one column of the ring on."""
        count, steps = of.stop - of.start, self.steps
        to = slice(column * steps, (column + count) * steps)
        records = self.records[to].reshape(count, steps)
        for name, field in self.fields.items():
            values = block.fields[name][max(field.frames - 1, 0) :][:steps, of].swapaxes(0, 1)
            if name in self.large:
                self.large[name][to].reshape(values.shape)[...] = values
            else:
                records[name] = values
        for name, stored in self.segments.items():
            stored[column : column + count] = block.fields[name][of]
        records["version"] = block.version[:, of].T
        flags = np.full((steps, count), THERE, np.uint8)
        for name, bit in FLAGS.items():
            flags |= np.where(block.fields[name][:steps, of], np.uint8(bit), np.uint8(0))
        records["flags"] = flags.T

    def _link(self, streams: list[int], row0: list[int], boot: int, columns: NDArray[np.int64]) -> None:
        keys = [(boot, stream) for stream in streams]
        newest = np.array([self._newest.get(key, -1) for key in keys], np.int64)
        begins = np.array(row0, np.int64)
        known = newest >= 0
        follows = known & (self._row0[newest] + self.steps == begins)
        self._stream[columns], self._row0[columns], self._boot[columns] = streams, begins, boot
        self._after[newest[follows]] = columns[follows]
        follows &= self._after[newest] == columns  # else a stream comes twice in this block: the last one has it
        self._before[columns[follows]] = newest[follows]
        self._newest.update(zip(keys, columns.tolist(), strict=True))


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View of contiguous rows as bytes: [rows, bytes of each]."""
    rows = len(array)
    return array.reshape(rows, -1).view(np.uint8).reshape(rows, -1) if rows else np.zeros((0, 0), np.uint8)


def layout(schema: Schema) -> tuple[np.dtype[np.void], dict[str, tuple[np.dtype[Any], tuple[int, ...]]]]:
    """Dtype of a row's record, and dtype and shape of the fields of a row in arrays of their own."""
    packed: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = [(name, np.dtype(one), ()) for name, one in OWN.items()]
    large = {}
    for field in schema.fields:
        dtype, shape = np.dtype(field.dtype), field.shape[1:] if field.frames else field.shape
        if field.per == "segment" or field.name in FLAGS:
            continue
        if field.frames or dtype.itemsize * math.prod(shape) > PACKED_BYTES:
            large[field.name] = dtype, shape
        else:
            packed.append((field.name, dtype, shape))
    packed.sort(key=lambda one: -one[1].itemsize)  # nothing between them to align them
    return np.dtype(packed, align=True), large


def segment_bytes(field: Field) -> int:
    """Bytes of a `segment` field in one segment."""
    return np.dtype(field.dtype).itemsize * math.prod(field.shape)


def _number_of(boot: str) -> int:
    """Number of a boot, the same in every process: a restored shard links the further segments of its senders."""
    return int.from_bytes(hashlib.blake2b(boot.encode(), digest_size=8).digest(), "little", signed=True)


def columns_for(schema: Schema, capacity: int) -> int:
    """Columns of a ring for `capacity` rows.

    Raises:
        ValueError: capacity is not positive.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1, got {capacity}")
    return -(-capacity // schema.unroll_length)
