"""IMPALA with batches that are stacked from a list of segments: `benchmarks.envs.listed:Listed`.

For benchmarks/ablation.py. Making one changes how the learner of this process assembles batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.algorithms.impala import Impala
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.experience.frame_stacking import rebuild
from rlctl_agents.types.experience import SegmentBlock

Streams = list[dict[str, NDArray[Any]]]
_waiting: dict[int, Streams] = {}  # of a batch, until it is full

_in_place = BatchMemory.copy_in


class Listed(Impala):
    """IMPALA with equal results; only the batches are made otherwise."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        BatchMemory.copy_in = copy_in  # type: ignore[method-assign]


def copy_in(self: BatchMemory, segment: SegmentBlock, first: int, count: int, axes: dict[str, int]) -> None:
    """Keep a copy of every stream; the last one of a batch stacks them all, into memory that is new each time."""
    streams = _waiting.setdefault(id(self), [])
    for column in range(first, first + count):
        streams.append({name: _copy(self, name, segment, column, axes[name]) for name in self.fields})
    kept, self.fields = self.fields, {}  # the rest of the work: versions, and the segments of the columns
    _in_place(self, segment, first, count, axes)
    self.fields = kept
    if self.used == self.version.shape[1]:
        for name, values in self.fields.items():
            values[...] = np.stack([stream[name] for stream in streams], axis=axes[name])
        streams.clear()


def _copy(batch: BatchMemory, name: str, segment: SegmentBlock, column: int, axis: int) -> NDArray[Any]:
    source = segment.fields[name]
    if name in batch.stacked:
        rows = batch.fields[name][:, :1]
        out = np.empty(rows.shape, rows.dtype)
        rebuild(out, source[:, column : column + 1], segment.fields["first"][:, column : column + 1])
        return out[:, 0]
    return source[:, column].copy() if axis else source[column].copy()
