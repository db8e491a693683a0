"""Messages between a learner and a replay shard, and the arrays that travel with them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.types.experience import Arrays, Field, Schema
from rlctl_agents.wire.rpc.client import MAX_BUFFERS

MAX_UNITS = 1 << 20
"""Most units of one draw, and most priority updates sent with one. A unit is a row with its window, or a sequence."""
INDEX: tuple[tuple[str, str], ...] = (
    ("version", "int64"), ("slot", "int64"), ("generation", "uint32"), ("mass", "float32"),
)  # fmt: skip
"""Arrays of a draw besides its fields, one entry a unit (a sequence has a version for each row): version of the weights
that acted, slot, number of times that its column was filled, and the mass with which it was drawn."""
CHANGES: tuple[tuple[str, str], ...] = (("slot", "int64"), ("generation", "uint32"), ("delta", "float32"))
"""Arrays of a priority update: slot and generation of each unit as it was drawn, and its error."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_UNITS)]
PIECE_BYTES = 1 << 20
"""Bytes of one frame: images of a draw are more than a frame may hold. More where there would be too many frames."""


class ShardState(msgspec.Struct, frozen=True):
    """State of a shard, and the replay limits of its run; counts are rows since its start, and restored ones."""

    mass: float  # sum over the units that may be drawn
    size: int  # units that may be drawn
    rows: int  # rows that are stored
    inserted: int
    steps: int  # of the inserted rows, agent steps: a row that only ends an episode is none
    sampled: int  # rows to be learned from
    starts: int  # replay.learning_starts, over all shards
    ratio: float  # replay.samples_per_insert; 0: no limit
    counted: int = 0  # of the agent steps, those that a learner has counted
    began_inserted: int = 0  # of the inserted rows, those restored from an earlier boot
    began_steps: int = 0  # of the agent steps, likewise
    began_sampled: int = 0  # of the sampled rows, likewise


class Draw(msgspec.Struct, frozen=True):
    """learner -> shard: request for units; arrays of a priority update follow."""

    count: Count
    boot: str = ""
    """Boot of the shard to which all but `count` applies; a shard that has restarted since ignores the rest."""
    may_insert: int = -1
    """Limit of the rows inserted since the shard's start; -1: as before."""
    counted: int = -1
    """Agent steps since the shard's start that the learner has counted; -1: as before."""
    changes: Count = 0


class Drawn(msgspec.Struct, frozen=True):
    """shard -> learner: reply to `Draw`; the arrays of the units follow."""

    boot: str  # of the shard; a new one after each restart
    count: Count  # 0: there is nothing to draw
    standing: ShardState


def drawn_schema(schema: Schema, settings: ReplaySettings) -> Schema:
    """Schema of a learner's batch: the drawn units, and the importance weight of each.

    Windows: one decision and its n-step outcome, side by side; row 0 of `obs` and `legal` belongs to the decision, row
    1 to the decision at which the outcome ends. Sequences: the fields of segments, of burn_in + sequence rows.
    """
    weight = Field("weight", "float32", (), "segment")
    if settings.sequence:
        return Schema(settings.burn_in + settings.sequence, (*schema.fields, weight))
    left_out = ("first", "reward", "truncated")
    made = [
        Field(one.name, one.dtype, one.shape, one.per)
        for one in schema.fields
        if one.name not in left_out and one.per != "segment"
    ]
    outcome = (Field("rewards", "float32", (settings.n_step,), "segment"), Field("steps", "int64", (), "segment"))
    return Schema(1, (*made, *outcome, weight))


Layout = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""Dtype and shape of arrays, in the order in which they travel."""


def layout(schema: Schema, settings: ReplaySettings, count: int) -> Layout:
    """Dtype and shape of each array of a draw of `count` units, in the order in which they travel."""
    drawn, found = drawn_schema(schema, settings), Layout()
    for one in drawn.fields:
        if one.name == "weight" or (one.name == "valid" and not settings.sequence):
            continue
        if settings.sequence:
            shape = drawn.block_shape(one, count)
        else:
            axes = {"row+1": (2, count), "row": (count,), "segment": (count,)}[one.per]
            shape = (settings.n_step, count) if one.name == "rewards" else (*axes, *one.shape)
        found[one.name] = np.dtype(one.dtype), shape
    index: Layout = {name: (np.dtype(dtype), (count,)) for name, dtype in INDEX}
    if settings.sequence:
        index["version"] = index["version"][0], (drawn.unroll_length, count)
    return found | index


def unit_bytes(schema: Schema, settings: ReplaySettings) -> int:
    """Bytes of one drawn unit in a message."""
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in layout(schema, settings, 1).values())


def to_buffers(arrays: Mapping[str, NDArray[Any]], names: Sequence[str]) -> list[memoryview]:
    """Encode arrays as frames, a large one as several, without a copy where they are contiguous."""
    flat = [np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data for name in names]
    most = max(1, MAX_BUFFERS - len(flat))  # each array may end in a frame that is not full
    piece = max(PIECE_BYTES, -(-sum(one.nbytes for one in flat) // most))
    return [one[at : at + piece] for one in flat for at in range(0, max(one.nbytes, 1), piece)]


def from_buffers(buffers: Sequence[memoryview], shapes: Layout) -> Arrays:
    """Decode frames to read-only arrays: views, except for arrays of several frames, which are copied.

    Raises:
        ValueError: the frames do not have the bytes of these arrays.
    """
    found: Arrays = {}
    left = deque(buffers)
    for name, (dtype, shape) in shapes.items():
        if not left:
            raise ValueError(f"{len(found)} arrays instead of {len(shapes)}")
        wanted, pieces = dtype.itemsize * math.prod(shape), list[memoryview]()
        while left and (not pieces or sum(one.nbytes for one in pieces) < wanted):
            pieces.append(left.popleft())
        data = pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
        if data.nbytes != wanted:
            raise ValueError(f"{name}: {data.nbytes} bytes instead of {dtype} {list(shape)}")
        found[name] = np.frombuffer(data, dtype).reshape(shape)
    if left:
        raise ValueError(f"{len(buffers)} frames instead of the {len(buffers) - len(left)} of {len(shapes)} arrays")
    return found


def changes(count: int) -> Layout:
    """Dtype and shape of each array of a priority update of `count` units."""
    return {name: (np.dtype(dtype), (count,)) for name, dtype in CHANGES}
