"""Writing of segments, row by row, from decisions and chosen actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.frame_stacking import write_frames
from rlctl_agents.types.experience import Arrays, Decisions, Field, Schema

DECIDED = ("first", "legal")
"""Fields that come with the decision besides the leaves of `obs`; all are `row+1`."""
OUTCOME = ("reward", "terminated", "truncated")
"""Fields of row t that come with the slot's next decision."""


@dataclass(slots=True)
class FinishedBlock:
    """Segments of B slots that were completed by the same decision. Its arrays belong to the recipient."""

    slot: NDArray[np.int64]  # [B] ascending
    row0: NDArray[np.int64]  # [B] number of the first row in the slot's stream
    version: NDArray[np.int64]  # [T, B]
    fields: Arrays  # as the schema says, B streams


class SegmentWriter:
    """Writer of rows, per slot, into arrays of the schema's shapes, which hands over full segments.

    Every slot has its own cursor, so seats that act in turn fill their segments at their own pace. While all slots
    have moved together so far (every environment with one seat does), rows are written whole and the arrays
    themselves are handed over without a copy; new ones take their place, so the wire may read the old ones for as
    long as it needs.

    One step of the caller is `observe`, then `record`:

    - a decision completes the slot's row before (its reward, whether the episode ended);
    - the row after an end holds the final observation and is not valid; its reward is 0;
    - the decision after row T-1 completes the segment as its row T and is row 0 of the next one too.

    Args:
        schema: fields named `obs*`, `first`, `legal` are `row+1`; `core.*` are `segment`; the others are `row`.
        slots: number of slots; decisions name them from 0 to slots - 1.

    Raises:
        ValueError: slots is not positive.
    """

    def __init__(self, schema: Schema, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self._schema = schema
        self._slots = slots
        self._steps = schema.unroll_length
        self._together = True
        self._all = np.arange(slots, dtype=np.int64)
        self._slot = self._all  # [K] observed last
        self._cursor = np.zeros(slots, np.int64)  # row of the slot's segment that its next decision fills
        self._row0 = np.zeros(slots, np.int64)
        obs = [f for f in schema.fields if f.name == "obs" or f.name.startswith("obs.")]
        self._obs = [f.name for f in obs if not f.frames]
        self._stacked = [f.name for f in obs if f.frames]
        self._seen: Arrays = {}  # observations of the decisions observed last, which live until the next step
        self._decided = [f.name for f in schema.fields if f.name in DECIDED]
        self._core = [f.name for f in schema.fields if f.per == "segment"]
        self._per_bootstrap = [*self._obs, *self._decided]
        known = {*self._per_bootstrap, *self._stacked, *self._core, *OUTCOME, "valid"}
        self._chosen = [f.name for f in schema.fields if f.name not in known]
        self._allocate()

    def observe(self, decisions: Decisions, state: Mapping[str, Any]) -> FinishedBlock | None:
        """Complete the rows before, and begin the rows of these decisions.

        Args:
            decisions: decisions of K slots.
            state: recurrent state before these decisions, [K, ...] per `core.*` field.

        Returns:
            The segments that are now full, or None.
        """
        slot = decisions.slot
        if self._together and slot.size != self._slots:
            self._together = False
        cursor = self._cursor[slot]
        self._complete_rows(decisions, cursor)
        at = self._index(cursor, slot)
        self._write_decision(at, decisions)
        self._seen = decisions.obs
        self._write_stacked(slot)
        block = None
        if self._together:
            if cursor[0] == self._steps:
                block = self._hand_over()
                at = 0
                self._write_decision(at, decisions)
                self._write_stacked(slot)
        else:
            full = slot[cursor == self._steps]
            if full.size:
                block = self._copy_out(full)
                at = self._index(self._cursor[slot], slot)
                self._write_stacked(slot)
        self._fields["valid"][at] = ~(decisions.terminated | decisions.truncated)
        self._slot = slot
        self._begin_segments(state)
        return block

    def record(self, chosen: Mapping[str, Any], version: int) -> None:
        """Finish the rows of the decisions observed last.

        Args:
            chosen: [K, ...] per `action*` field and per field of the algorithm's own.
            version: version of the weights that chose the actions.
        """
        slot = self._slot
        at = self._index(self._cursor[slot], slot)
        for name in self._chosen:
            self._fields[name][at] = chosen[name]
        self._version[at] = version
        self._cursor[slot] += 1

    def restart(self, state: Mapping[str, Any]) -> None:
        """Begin new segments in all slots; rows of unfinished segments are discarded.

        Called between `observe` and `record`; the decisions observed last become row 0.

        Args:
            state: as for `observe`.
        """
        slot, cursor = self._slot, self._cursor[self._slot]
        for name in self._per_bootstrap:
            values = self._fields[name]
            values[0, slot] = values[cursor, slot]
        self._fields["valid"][0, slot] = self._fields["valid"][cursor, slot]
        self._row0 += self._cursor
        self._cursor[:] = 0
        self._write_stacked(slot)
        self._begin_segments(state)

    @property
    def together(self) -> bool:
        """True if all slots have acted in every step so far."""
        return self._together

    @property
    def observed(self) -> NDArray[np.int64]:
        """[K] slots of the decisions observed last."""
        return self._slot

    def _allocate(self) -> None:
        self._fields: dict[str, NDArray[Any]] = {f.name: self._empty(f) for f in self._schema.fields}
        self._version = np.empty((self._steps, self._slots), np.int64)

    def _empty(self, field: Field) -> NDArray[Any]:
        return np.empty(self._schema.block_shape(field, self._slots), np.dtype(field.dtype))

    def _index(self, cursor: NDArray[np.int64], slot: NDArray[np.int64]) -> Any:
        return int(cursor[0]) if self._together else (cursor, slot)

    def _write_decision(self, at: Any, decisions: Decisions) -> None:
        for name in self._obs:
            self._fields[name][at] = decisions.obs[name]
        for name in self._decided:
            self._fields[name][at] = getattr(decisions, name)

    def _write_stacked(self, slot: NDArray[np.int64]) -> None:
        """Write the frames of the decisions observed last at the current cursors."""
        for name in self._stacked:
            write_frames(self._fields[name], self._cursor[slot], slot, self._seen[name])

    def _complete_rows(self, decisions: Decisions, cursor: NDArray[np.int64]) -> None:
        """Write reward and end of the rows before; an invalid row has neither."""
        outcome = {name: getattr(decisions, name) for name in OUTCOME}
        if self._together:
            before: Any = int(cursor[0]) - 1
            if before < 0:
                return
        else:
            begun = cursor > 0
            before = (cursor[begun] - 1, decisions.slot[begun])
            outcome = {name: values[begun] for name, values in outcome.items()}
        valid = self._fields["valid"][before]
        for name, values in outcome.items():
            self._fields[name][before] = values * valid if name == "reward" else values & valid

    def _hand_over(self) -> FinishedBlock:
        block = FinishedBlock(self._all.copy(), self._row0.copy(), self._version, dict(self._fields))
        self._allocate()
        self._row0 += self._steps
        self._cursor[:] = 0
        return block

    def _copy_out(self, full: NDArray[np.int64]) -> FinishedBlock:
        axis = {f.name: 0 if f.per == "segment" else 1 for f in self._schema.fields}
        fields = {name: np.take(values, full, axis[name]) for name, values in self._fields.items()}
        block = FinishedBlock(full, self._row0[full], np.take(self._version, full, 1), dict(fields))
        for name in self._per_bootstrap:
            self._fields[name][0, full] = self._fields[name][self._steps, full]
        self._row0[full] += self._steps
        self._cursor[full] = 0
        return block

    def _begin_segments(self, state: Mapping[str, Any]) -> None:
        if not self._core:
            return
        begins = self._cursor[self._slot] == 0
        if begins.any():
            for name in self._core:
                self._fields[name][self._slot[begins]] = np.asarray(state[name])[begins]
