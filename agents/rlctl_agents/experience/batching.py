"""Batching: copies blocks of segments into preallocated batches, column by column."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.frame_stacking import rebuild
from rlctl_agents.types.experience import ModelRef, Schema, SegmentBlock
from rlctl_agents.wire.experience import Outcome

Allocate = Callable[[tuple[int, ...], str], NDArray[Any]]
ROWS_OF_ALL = "algorithm.batch_size must be roles.actor.replicas x envs x seats x unroll_length"
"""Condition of lock-step, in words."""


class Settled(NamedTuple):
    """Outcome of rows of a segment, for the receiver's account and credits."""

    segment: SegmentBlock
    outcome: Outcome
    rows: int


@dataclass
class BatchMemory:
    """Host memory of one batch, which is reused: B segments of T rows side by side."""

    fields: dict[str, NDArray[Any]]  # [T, B, ...], [T+1, B, ...] or [B, ...], as the schema says
    version: NDArray[np.int64]  # [T, B]
    used: int = 0  # columns filled
    parts: list[tuple[SegmentBlock, int, int]] = field(
        default_factory=list
    )  # source, first of its columns, their number
    stacked: frozenset[str] = frozenset()  # fields of which a segment holds each frame once
    segment_fields: frozenset[str] = frozenset()  # fields per segment: the first axis is that of the columns
    there: object | None = None  # the same batch on a device, where there is one; see `staging`

    def copy_in(self, segment: SegmentBlock, first: int, count: int, axes: dict[str, int]) -> None:
        """Append columns [first, first + count) of a segment."""
        to, source = slice(self.used, self.used + count), slice(first, first + count)
        for name, values in self.fields.items():
            if name in self.stacked:
                rebuild(values[:, to], segment.fields[name][:, source], segment.fields["first"][:, source])
            elif axes[name]:
                values[:, to] = segment.fields[name][:, source]
            else:
                values[to] = segment.fields[name][source]
        self.version[:, to] = segment.version[:, source]
        self.used += count
        if self.parts and self.parts[-1][0] is segment:
            self.parts[-1] = (segment, self.parts[-1][1], self.parts[-1][2] + count)
        else:
            self.parts.append((segment, first, count))

    def clear(self) -> list[Settled]:
        """Empty the memory; its rows have been learned from."""
        steps = self.version.shape[0]
        settled = [Settled(segment, "consumed", count * steps) for segment, _, count in self.parts]
        self.used, self.parts = 0, []
        return settled


class Assembler(Protocol):
    """Selection of segments, with which it fills batches. Not thread-safe: used by one thread."""

    def add(self, segment: SegmentBlock) -> None:
        """Queue a segment that has arrived."""

    def fill(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        """Fill up the batch with the segments that have arrived.

        Args:
            present: weights with which the batch will be learned.

        Returns:
            Rows that will not be learned from, each with its outcome.
        """

    def rejudge(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        """Remove rows that have become stale, by other learners' updates, from a partly filled batch.

        Args, returns: as `fill`.
        """

    def least_version(self, present: ModelRef) -> int:
        """Oldest version that a segment may begin with; 0: any.

        Args:
            present: the learner's current weights.
        """

    def missing(self) -> str:
        """Reason why the next batch is not full, in words; "" if it only lacks rows."""


class ArrivalOrder:
    """Batches in the order of arrival; stale segments are discarded. A block may continue in the next batch.

    Args:
        max_lag_versions: a segment is stale when the weights of its first row are older by more than this.
    """

    def __init__(self, schema: Schema, max_lag_versions: int) -> None:
        self._axes = column_axes(schema)
        self._max_lag_versions = max_lag_versions
        self._waiting: deque[SegmentBlock] = deque()
        self._taken = 0  # columns of the first waiting segment that are in a batch already

    def add(self, segment: SegmentBlock) -> None:
        self._waiting.append(segment)

    def fill(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        given_up: list[Settled] = []
        streams = batch.version.shape[1]
        while self._waiting and batch.used < streams:
            segment = self._waiting[0]
            left = segment.version.shape[1] - self._taken
            outcome = judge(segment, present, self._max_lag_versions)
            if outcome is None:
                count = min(left, streams - batch.used)
                batch.copy_in(segment, self._taken, count, self._axes)
            else:
                count = left
                given_up.append(Settled(segment, outcome, left * segment.version.shape[0]))
            self._taken += count
            if count == left:
                self._waiting.popleft()
                self._taken = 0
        return given_up

    def rejudge(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        parts, batch.parts, batch.used = batch.parts, [], 0
        given_up: list[Settled] = []
        for segment, first, count in parts:
            outcome = judge(segment, present, self._max_lag_versions)
            if outcome is None:
                batch.copy_in(segment, first, count, self._axes)
            else:
                given_up.append(Settled(segment, outcome, count * segment.version.shape[0]))
        return given_up

    def least_version(self, present: ModelRef) -> int:
        return max(0, present.version - self._max_lag_versions)

    def missing(self) -> str:
        return ""


class LockStep:
    """Batches of the next segment of every stream, in the order of the streams, not of their arrival.

    The set of streams is known once their number is that of a batch's columns.

    Raises:
        LockStepError: (from `add`) more streams than columns.
    """

    def __init__(self, schema: Schema, streams: int) -> None:
        self._axes = column_axes(schema)
        self._count = streams
        self._streams: dict[int, deque[tuple[SegmentBlock, int]]] = {}

    def add(self, segment: SegmentBlock) -> None:
        for column, stream in enumerate(segment.header.stream):
            self._streams.setdefault(stream, deque()).append((segment, column))
        if len(self._streams) > self._count:
            raise LockStepError(
                f"lock-step learns from {self._count} streams at once, but {len(self._streams)} arrive: {ROWS_OF_ALL}"
            )

    def fill(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        given_up: list[Settled] = []
        for queue in self._streams.values():
            while queue:
                segment, _ = queue[0]
                outcome = judge(segment, present, None)
                if outcome is None:
                    break
                given_up.append(Settled(segment, outcome, segment.version.shape[0]))
                queue.popleft()
        if batch.used == 0 and len(self._streams) == self._count and all(self._streams.values()):
            for stream in sorted(self._streams):
                segment, column = self._streams[stream].popleft()
                batch.copy_in(segment, column, 1, self._axes)
        return given_up

    def rejudge(self, batch: BatchMemory, present: ModelRef) -> list[Settled]:
        return []  # a batch is filled whole

    def least_version(self, present: ModelRef) -> int:
        return 0  # each segment has its required version

    def missing(self) -> str:
        streams = list(self._streams.items())  # at once: another thread adds to them
        unseen = self._count - len(streams)
        behind = sorted(stream for stream, queue in streams if not queue)
        do = f"; {ROWS_OF_ALL}" if unseen else ""
        return f"lock-step waits for {unseen} unseen streams, {behind[:8]}{do}"


class LockStepError(Exception):
    """Lock-step that cannot continue; the text gives the reason."""


def judge(segment: SegmentBlock, present: ModelRef, max_lag_versions: int | None) -> Outcome | None:
    """Reason not to learn from a segment with these weights; None if it may be learned from."""
    made = segment.header.model
    if made.policy != present.policy:
        return "invalid"
    if made.lineage != present.lineage:
        return "fenced"
    if made.version > present.version:
        return "invalid"  # weights that do not exist yet in this lineage
    # version of the first row: the oldest weights in the segment decide its lag
    if max_lag_versions is not None and present.version - int(segment.version[0].min()) > max_lag_versions:
        return "stale"
    return None


def allocate_memory(schema: Schema, streams: int, allocate: Allocate | None = None) -> BatchMemory:
    """Allocate host memory for a batch of `streams` columns.

    Args:
        allocate: makes an array of a shape and dtype, as in pinned memory for a GPU; None: of zeros.
    """
    make: Allocate = allocate or (lambda shape, dtype: np.zeros(shape, np.dtype(dtype)))
    fields = {f.name: make(schema.array_shape(f, streams), f.dtype) for f in schema.fields}
    stacked = frozenset(f.name for f in schema.fields if f.frames)
    version = np.zeros((schema.unroll_length, streams), np.int64)
    return BatchMemory(fields, version, stacked=stacked, segment_fields=segment_fields(schema))


def segment_fields(schema: Schema) -> frozenset[str]:
    """Names of the fields per segment."""
    return frozenset(field.name for field in schema.fields if field.per == "segment")


def column_axes(schema: Schema) -> dict[str, int]:
    """Name of each field -> its axis of streams."""
    return {f.name: 0 if f.per == "segment" else 1 for f in schema.fields}
