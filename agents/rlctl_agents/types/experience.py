"""Decisions, segments and their schema.

Rows: row t belongs to the step taken from x_t. Episode ends follow Gymnasium's NEXT_STEP autoreset: the row after an
end holds the final observation and is not valid (its action is ignored, its reward is 0); the row after that is the
first of the next episode. So the value of the true successor is always the next row's, and no rows are shifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Arrays = dict[str, Array]  # dotted name -> array

PER = Literal["row", "row+1", "segment"]
MAX_FIELDS = 256
"""Most arrays of a segment."""
MAX_DIMS = 8
"""Most axes of an array in a batch: steps and streams, and those of one entry."""
DTYPES = frozenset(
    ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
)


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """One array of a segment. In a batch of B streams its shape is [T, B, *shape] for `row`, [T+1, B, *shape] for
    `row+1` and [B, *shape] for `segment`. In a block it is the same, unless the field has `frames`."""

    name: str
    dtype: str  # numpy name
    shape: tuple[int, ...]
    per: PER
    frames: int = 0
    """Above 0, for `row+1`: the first axis of `shape` is the last so many frames, zeros before an episode's first. A
    block carries each frame once: [T + frames, B, *shape[1:]], row t sees frames t to t + frames - 1."""


class Schema(msgspec.Struct, frozen=True):
    """Layout of a policy's segments, on which the actors and the learner agree."""

    unroll_length: int  # T
    fields: tuple[Field, ...]

    def array_shape(self, field: Field, streams: int) -> tuple[int, ...]:
        """Full shape of a field in a batch of `streams` streams."""
        rows = {"row": (self.unroll_length,), "row+1": (self.unroll_length + 1,), "segment": ()}[field.per]
        return (*rows, streams, *field.shape)

    def block_shape(self, field: Field, streams: int) -> tuple[int, ...]:
        """Full shape of a field in a block of `streams` streams."""
        if not field.frames:
            return self.array_shape(field, streams)
        return (self.unroll_length + field.frames, streams, *field.shape[1:])


class ModelRef(msgspec.Struct, frozen=True, order=True):
    """Weights by name. Versions are batches learned from and compare only within one lineage."""

    policy: str
    lineage: int  # counts restores and copies of the policy: whatever was made before one is fenced
    version: int


class Ledger(msgspec.Struct):
    """A sender's totals since its boot, in rows. Travels in every segment, so a receiver knows what it missed."""

    produced: int = 0  # rows of finished segments
    dropped: int = 0  # given up by the sender itself (no credit, queue full)
    sent: int = 0  # handed to this receiver boot, this segment included


class SegmentHeader(msgspec.Struct):
    """Origin of a block of segments. A block holds B streams over the same number of rows T, inferred by one
    policy; B = 1 is the paper's single trajectory."""

    run: str  # run uid
    term: int  # of the manager that leased the sender
    boot: str  # of the sender
    sequence: int  # from 0 per sender boot and receiver boot, without gaps
    receiver: str  # boot of the receiver that granted the credit
    model: ModelRef  # of the newest row
    stream: list[int]  # [B] unique in the run: (lease index, slot)
    row0: list[int]  # [B] number of the first row in its stream, from 0
    ledger: Ledger
    build: str = ""  # of the environment: 16 hex digits of its image's digest; "": not known


@dataclass(slots=True)
class SegmentBlock:
    """A block of B segments."""

    header: SegmentHeader
    version: NDArray[np.int64]  # [T, B] version of the weights that chose each row's action
    fields: Arrays  # as the schema says

    @property
    def rows(self) -> int:
        """T x B, autoreset rows included: what credits and the ledger count."""
        return int(self.version.size)


@dataclass(slots=True)
class Decisions:
    """K slots that wait for an action. A slot is one seat of one environment: `env * seats + seat`.

    An environment that ended appears once more with its final observation and terminated or truncated set; the
    action given to it is ignored, and its next decision is the first of a new episode.
    """

    slot: NDArray[np.int64]  # [K] ascending
    obs: Arrays  # leaf name -> [K, ...]
    reward: NDArray[np.float32]  # [K] since the slot's own last decision, raw
    terminated: NDArray[np.bool_]  # [K] the episode ended in a terminal state
    truncated: NDArray[np.bool_]  # [K] the episode was cut short
    first: NDArray[np.bool_]  # [K] first decision of an episode
    legal: NDArray[np.bool_] | None = None  # [K, n] where the spaces have masks, n the options of all choices
    info: dict[int, dict[str, float]] | None = None  # slot with an ended episode -> numbers reported by its environment
    life: NDArray[np.bool_] | None = None  # [K] what ended is a life: an episode to learners, not the game


def check_schema(schema: Schema) -> None:
    """Check that blocks of a schema can be sent.

    Raises:
        ValueError: they cannot; names the field, the reason, and what to do.
    """
    if schema.unroll_length < 1:
        raise ValueError(f"unroll_length must be at least 1, got {schema.unroll_length}")
    if len(schema.fields) > MAX_FIELDS:
        raise ValueError(
            f"a segment would have {len(schema.fields)} arrays, one for each leaf of observation and action and some "
            f"of ours, and can have {MAX_FIELDS}: join leaves into one Box"
        )
    seen = {"version"}
    for field in schema.fields:
        if field.name in seen:
            raise ValueError(f"{field.name}: a name that is taken")
        seen.add(field.name)
        if field.frames and (field.per != "row+1" or not field.shape or field.shape[0] != field.frames):
            raise ValueError(f"{field.name}: frames must be the first axis of a field per row+1, got {field.frames}")
        if field.dtype not in DTYPES:
            raise ValueError(f"{field.name}: dtype {field.dtype} is not one of {', '.join(sorted(DTYPES))}")
        if len(field.shape) + 2 > MAX_DIMS or any(side < 0 for side in field.shape):
            raise ValueError(
                f"{field.name}: shape {list(field.shape)} has more than {MAX_DIMS - 2} axes, or a negative side: "
                "reshape it to fewer axes"
            )


def schema_difference(one: Schema, other: Schema) -> str:
    """The difference of two schemas in words, the first one's part first; "" when they are equal."""
    if one.unroll_length != other.unroll_length:
        return f"segments of {one.unroll_length} steps instead of {other.unroll_length}"
    here, there = set(one.fields), set(other.fields)
    if here != there:
        return (
            f"segments with {sorted(map(short_json, here - there))} instead of {sorted(map(short_json, there - here))}"
        )
    return "" if one == other else "segments with their fields in another order"


def short_json(value: msgspec.Struct) -> str:
    """The value as JSON, cut to the length that fits a message."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else text[:300] + "..."
