"""Shard of a replay: a ring of rows, and the windows or sequences that are drawn in proportion to their mass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.replay.priorities import RECORDED, ReplaySettings, masses, with_exponent
from rlctl_agents.experience.replay.ring import Ring, TakesRows, columns_for
from rlctl_agents.experience.replay.sequences import Sequences
from rlctl_agents.experience.replay.sum_tree import SumTree
from rlctl_agents.experience.replay.windows import Windows
from rlctl_agents.types.experience import Arrays, Schema, SegmentBlock

__all__ = ["DrawnRows", "ReplaySettings", "Shard", "ShardTotals"]


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Units that were drawn, with replacement: windows of single rows, or sequences."""

    count: int  # B; 0: nothing may be drawn
    fields: Arrays
    """Arrays of `Windows.gather` or `Sequences.gather`, and per unit `slot` int64 (of a sequence its column),
    `generation` uint32 and `mass` float32, all [B]."""
    total: float  # mass of all units: the probability of one was its mass / total


@dataclass(frozen=True, slots=True)
class ShardTotals:
    """Figures of a shard; counts are rows since its start, and restored ones."""

    mass: float  # sum over the units that may be drawn
    size: int  # units that may be drawn: rows, or sequences
    rows: int  # rows that are stored
    inserted: int
    steps: int  # of the inserted rows, agent steps: a row that only ends an episode is none
    sampled: int  # rows to be learned from
    nbytes: int
    highest: float  # largest mass so far: that of units without recorded values


class Shard:
    """Replay memory of one shard: rows, and the masses of their units. Not thread-safe.

    Args:
        schema: of the blocks.
        settings: of the algorithm.
        capacity: rows to keep, at least; rounded up to whole segments.
        seed: of the draws.

    Raises:
        ValueError: capacity, n_step or the length of sequences is not possible, or the schema lacks a field.
    """

    def __init__(self, schema: Schema, settings: ReplaySettings, *, capacity: int, seed: int) -> None:
        self.schema, self.settings = schema, settings
        self._ring = Ring(schema, capacity)
        self._units = (Sequences if settings.sequence else Windows)(self._ring, settings)
        self._tree = SumTree(self._units.count)
        self._rng = np.random.default_rng(seed)
        self._recorded = set(RECORDED) <= self._ring.fields.keys()
        self._size = self._inserted = self._steps = self._sampled = 0
        self._highest = 1.0

    @staticmethod
    def bytes_for(schema: Schema, settings: ReplaySettings, capacity: int) -> int:
        """Bytes of the arrays of a shard; see `nbytes` of its totals."""
        columns = columns_for(schema, capacity)
        units = columns * (1 if settings.sequence else schema.unroll_length)
        return Ring.bytes_for(schema, capacity) + SumTree.bytes_for(units) + (columns if settings.sequence else 0)

    @property
    def capacity(self) -> int:
        """Rows that it holds at most."""
        return self._ring.slots

    @property
    def filled(self) -> int:
        """Rows that are stored."""
        return self._ring.filled

    @property
    def totals(self) -> ShardTotals:
        return ShardTotals(
            mass=self._tree.total,
            size=self._size,
            rows=self._ring.filled,
            inserted=self._inserted,
            steps=self._steps,
            sampled=self._sampled,
            nbytes=self._ring.nbytes + self._units.nbytes + self._tree.nbytes,
            highest=self._highest,
        )

    def insert(self, block: SegmentBlock) -> int:
        """Store a block. Units that it completes may be drawn from now on, units that it overwrites no longer.

        Returns:
            Number of its rows.
        """
        placed = self._ring.insert(block)
        made, gone = self._units.update(placed)
        mass = np.zeros(gone.size + made.size, np.float64)
        mass[gone.size :] = self._first_mass(made)
        self._tree.set(np.concatenate((gone, made)), mass)
        self._size += made.size - gone.size
        self._inserted += block.rows
        self._steps += int(np.count_nonzero(block.fields["valid"]))
        return block.rows

    def draw(self, count: int, out: Arrays | None = None) -> DrawnRows:
        """Draw units with replacement, each with probability proportional to its mass.

        Args:
            count: number of units.
            out: arrays of an earlier draw of as many units, to be reused.
        """
        if not self._size or not count:
            return DrawnRows(0, {}, self._tree.total)
        # sorted points are found twice as fast; in that order, minibatches of the draw would be uneven
        slot = self._tree.draw(np.sort(self._rng.random(count)))
        self._rng.shuffle(slot)
        fields = self._units.gather(slot, out or {})
        fields["slot"], fields["generation"] = slot, self._ring.generation.take(self._units.columns(slot))
        fields["mass"] = self._tree.mass.take(slot)
        self._sampled += count * self.settings.unit_rows
        return DrawnRows(count, fields, self._tree.total)

    def update(self, slot: NDArray[np.int64], generation: NDArray[np.uint32], delta: NDArray[np.floating[Any]]) -> int:
        """Set the masses of units by their errors.

        Args:
            slot: [K] as drawn.
            generation: [K] as drawn.
            delta: [K] errors, of either sign; a unit with NaN keeps its mass; of duplicates the last one counts.

        Returns:
            Number of units with a new mass; the others were overwritten meanwhile, or may not be drawn any more.
        """
        if not self.settings.prioritized:
            return 0
        known = (slot >= 0) & (slot < self._units.count) & ~np.isnan(delta)
        slot = np.where(known, slot, 0)
        known &= self._ring.generation[self._units.columns(slot)] == generation
        known &= self._tree.mass[slot] > 0
        if not known.all():
            slot, delta = slot[known], delta[known]
        if slot.size:
            mass = masses(delta, self.settings)
            self._highest = max(self._highest, float(mass.max()))
            self._tree.set(slot, mass)
        return int(slot.size)

    @property
    def experience(self) -> str:
        """Key that is equal for shards that can restore each other's rows: fields, and rows of a unit."""
        told = [msgspec.to_builtins(self.schema), self.settings.sequence, self.settings.burn_in]
        return msgspec.json.encode(told).decode()

    @property
    def columns(self) -> int:
        """Segments that it holds at most."""
        return self._ring.columns

    @property
    def by_column(self) -> Arrays:
        """[columns, ...] stored data of each column, not a copy."""
        return self._ring.by_column

    @property
    def before_overwriting(self) -> Callable[[NDArray[np.int64]], None] | None:
        """Callback that is given columns before they are overwritten."""
        return self._ring.before_overwriting

    @before_overwriting.setter
    def before_overwriting(self, call: Callable[[NDArray[np.int64]], None] | None) -> None:
        self._ring.before_overwriting = call

    def order(self) -> tuple[Arrays, dict[str, Any]]:
        """Copy of the whole state except the stored data of columns: arrays, and plain data."""
        arrays, plain = self._ring.order()
        units = self._units_of(self._ring.filled)
        arrays |= {"mass": self._tree.mass[:units].copy(), "drawable": self._units.drawable[:units].copy()}
        plain |= {
            "size": self._size, "inserted": self._inserted, "steps": self._steps, "sampled": self._sampled,
            "highest": self._highest, "rng": self._rng.bit_generator.state, "experience": self.experience,
            "n_step": self.settings.n_step, "alpha": self.settings.alpha,
        }  # fmt: skip
        return arrays, plain

    def is_like(self, plain: Mapping[str, Any]) -> bool:
        """True if the state of a shard of the same experience can be restored as it is: it has as many columns, the
        same windows, and masses of the same exponent."""
        own = {"columns": self.columns, "n_step": self.settings.n_step, "alpha": self.settings.alpha}
        return all(plain[name] == value for name, value in own.items())

    def take_order(self, arrays: Arrays, plain: Mapping[str, Any]) -> None:
        """Restore the state from `order` of a shard with as many columns; the columns' data is in place already."""
        self._ring.take_order(arrays, plain)
        units = self._units_of(self._ring.filled)
        self._units.drawable[:units] = arrays["drawable"]
        self._tree.set(np.arange(units), arrays["mass"].astype(np.float32))
        self._tree.rebuild()
        self._inserted, self._sampled = int(plain["inserted"]), int(plain["sampled"])
        self._steps = _steps(plain)
        self._highest, self._size = float(plain["highest"]), int(plain["size"])
        self._rng.bit_generator.state = plain["rng"]

    def insert_from(self, arrays: Arrays, plain: Mapping[str, Any], rows: TakesRows) -> None:
        """Insert the rows of another shard beside the stored ones, only the newest where room is short. Windows are
        computed anew, masses are kept, counts are added.

        Args:
            arrays, plain: from `order` of a shard of the same experience.
            rows: as in `Ring.take_rows`.
        """
        other = Ring(self.schema, int(plain["columns"]) * self.schema.unroll_length)  # its rows are never touched
        other.take_order(arrays, plain)
        source = np.full(self._ring.columns, -1)  # column there of each column here; -1: our own
        try:
            for columns, to, placed in self._ring.take_rows(other, rows):
                source[to] = columns
                self._units.update(placed)
        finally:  # rows that came before a read error may be drawn as well
            self._take_masses(arrays, plain, source)
        self._inserted += int(plain["inserted"])
        self._steps += _steps(plain)
        self._sampled += int(plain["sampled"])

    def _take_masses(self, arrays: Arrays, plain: Mapping[str, Any], source: NDArray[np.int64]) -> None:
        """Set the masses of another shard's rows; `source` is the column there of each column here, -1: our own."""
        before, now = float(plain["alpha"]), self.settings.alpha
        highest = float(with_exponent(np.array([plain["highest"]]), before, now)[0])
        self._highest = max(self._highest, highest)
        theirs = with_exponent(arrays["mass"], before, now)
        unit = np.flatnonzero(self._units.drawable)
        self._size = unit.size
        each = self._units.count // self._ring.columns  # units per column
        column, place = unit // each, unit % each
        came = source[column] >= 0
        mass = np.zeros(self._units.count)
        mass[unit[~came]] = self._tree.mass[unit[~came]]
        mass[unit[came]] = theirs[source[column[came]] * each + place[came]]
        mass[unit[mass[unit] == 0]] = self._highest
        self._tree.set(np.arange(mass.size), mass)

    def _units_of(self, rows: int) -> int:
        return self._units.count * rows // self._ring.slots

    def _first_mass(self, slot: NDArray[np.int64]) -> NDArray[np.float64] | float:
        if not self.settings.prioritized or not slot.size:
            return 1.0
        if not self._recorded:
            return self._highest
        return masses(self._units.first_error(slot), self.settings)


def _steps(plain: Mapping[str, Any]) -> int:
    """Agent steps that a saved shard had inserted; for parts of older releases, which did not count them, the rows."""
    return int(plain.get("steps", plain["inserted"]))
