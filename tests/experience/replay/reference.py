"""Replay by definition: all rows in lists, every window looked for anew. And the streams that fill it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.types.experience import Arrays, Field, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader

BIG = 70
"""Numbers of a field that is too large for a record."""


def schema(steps: int, *, frames: int = 0, recorded: bool = False, legal: bool = False, last: bool = False) -> Schema:
    """As an algorithm would have it, with one field of every kind."""
    stacked = [Field("obs.frames", "int32", (frames, 2), "row+1", frames=frames)] if frames else []
    values = [Field("q", "float32", (), "row"), Field("q_max", "float32", (), "row")] if recorded else []
    return Schema(
        steps,
        (
            *stacked,
            Field("obs.small", "float32", (3,), "row+1"),
            Field("obs.big", "float32", (BIG,), "row+1"),
            *([Field("legal", "bool", (2,), "row+1")] if legal else []),
            Field("first", "bool", (), "row+1"),
            Field("action", "int64", (), "row"),
            Field("reward", "float32", (), "row"),
            *(Field(name, "bool", (), "row") for name in ("terminated", "truncated", "valid")),
            *values,
            *([Field("last", "float32", (BIG,), "row")] if last else []),
            Field("core.h", "float32", (2,), "segment"),
        ),
    )


@dataclass
class Row:
    """A step as its actor saw it."""

    number: int  # different for each
    first: bool
    valid: bool
    terminated: bool = False
    truncated: bool = False
    frames: list[int] = field(default_factory=list)  # numbers of the rows that it sees, oldest first; 0: none

    def value(self, name: str) -> Any:
        """Of a field, by the row's number."""
        number = self.number
        match name:
            case "obs.frames":
                return np.repeat(np.array(self.frames)[:, None], 2, 1)
            case "obs.small":
                return np.arange(3) + 10 * number
            case "obs.big":
                return np.arange(BIG) + number
            case "last":
                return np.arange(BIG) - number
            case "legal":
                return [number % 2 == 0, number % 3 == 0]
            case "action" | "version":
                return number
            case "reward":
                return 0.0 if not self.valid else (number % 17 - 8) / 4
            case "q":
                return number % 7 - 3
            case "q_max":
                return number % 11 - 4
            case "core.h":  # of a segment that begins with this row
                return [number, -number]
            case _:
                return getattr(self, name)


class Stream:
    """An actor's seat: endless episodes of 1 to `longest` steps, half of them cut short."""

    def __init__(
        self, id: int, boot: str, rng: np.random.Generator, stack: int = 0, longest: int = 7,
        numbers: Iterator[int] | None = None,
    ) -> None:  # fmt: skip
        self.id, self.boot = id, boot
        self._numbers = numbers or count(1)
        self._rng, self._stack, self._longest = rng, stack, longest
        self._rows: list[Row] = []
        self.row0 = 0

    def segment(self, steps: int) -> Column:
        """The next rows, and the one after them."""
        while len(self._rows) < self.row0 + steps + 1:
            self._episode()
        rows = self._rows[self.row0 : self.row0 + steps + 1]
        self.row0 += steps
        return Column(self.boot, self.id, self.row0 - steps, rows)

    def _episode(self) -> None:
        length = int(self._rng.integers(1, self._longest + 1))
        seen = [0] * self._stack
        for step in range(length + 1):
            number = next(self._numbers)
            seen = [*seen, number][1:] if seen else []
            self._rows.append(Row(number, step == 0, step < length, frames=seen))
        end = "terminated" if self._rng.random() < 0.5 else "truncated"
        setattr(self._rows[-2], end, True)


class Column(NamedTuple):
    """A segment of one stream, with the row after it."""

    boot: str
    stream: int
    row0: int
    rows: list[Row]


def block(agreed: Schema, columns: Sequence[Column]) -> SegmentBlock:
    """Segments of one boot, side by side, as they arrive."""
    fields: Arrays = {}
    for one in agreed.fields:
        made = np.zeros(agreed.block_shape(one, len(columns)), one.dtype)
        for at, column in enumerate(columns):
            if one.frames:
                seen = [*column.rows[0].frames[:-1], *(row.frames[-1] for row in column.rows)]
                made[:, at] = np.array(seen)[:, None]
            elif one.per == "segment":
                made[at] = column.rows[0].value(one.name)
            else:
                made[:, at] = [row.value(one.name) for row in column.rows[: made.shape[0]]]
        made.setflags(write=False)
        fields[one.name] = made
    header = SegmentHeader(
        run="r", term=1, boot=columns[0].boot, sequence=0, receiver="s", model=ModelRef("main", 0, 0),
        stream=[one.stream for one in columns], row0=[one.row0 for one in columns], ledger=Ledger(),
    )  # fmt: skip
    version = np.array([[row.number for row in one.rows[:-1]] for one in columns], np.int64).T
    return SegmentBlock(header, version, fields)


class Window(NamedTuple):
    """A window that may be drawn."""

    rows: list[Row]
    after: Row | None

    def arrays(self, agreed: Schema, n_step: int) -> dict[str, Any]:
        """As `Shard.draw` has it."""
        start, made = self.rows[0], dict[str, Any]()
        for one in agreed.fields:
            if one.frames:
                made[one.name] = [
                    np.zeros((one.frames, 2)) if row is None else row.value(one.name) for row in (start, self.after)
                ]
            elif one.per == "row+1" and one.name != "first":
                nothing = np.zeros(one.shape)
                made[one.name] = [start.value(one.name), nothing if self.after is None else self.after.value(one.name)]
            elif one.per == "row" and one.name not in ("reward", "valid", "terminated", "truncated"):
                made[one.name] = start.value(one.name)
        rewards = [row.value("reward") for row in self.rows]
        return made | {
            "rewards": rewards + [0.0] * (n_step - len(rewards)), "steps": len(self.rows), "version": start.number,
            "terminated": self.rows[-1].terminated,
        }  # fmt: skip

    def error(self, settings: ReplaySettings) -> float:
        """Of the recorded values."""
        total, gamma = 0.0, settings.gamma
        for at, row in enumerate(self.rows):
            reward = row.value("reward") * settings.reward_scale
            if settings.reward_clip is not None:
                reward = max(-settings.reward_clip, min(settings.reward_clip, reward))
            total += gamma**at * reward
        if not self.rows[-1].terminated:
            assert self.after is not None
            total += gamma ** len(self.rows) * self.after.value("q_max")
        return float(total - self.rows[0].value("q"))


class Reference:
    """The newest columns, and all windows and sequences over them."""

    def __init__(self, agreed: Schema, columns: int, n_step: int) -> None:
        self._schema, self._n_step, self._columns = agreed, n_step, columns
        self._frames = max([one.frames for one in agreed.fields], default=0)
        self._all: list[Column] = []
        self._before: dict[int, int] = {}
        self._after: dict[int, int] = {}

    def insert(self, columns: Sequence[Column]) -> None:
        for column in columns[-self._columns :]:
            number = len(self._all)
            theirs = (at for at, one in enumerate(self._all) if (one.boot, one.stream) == (column.boot, column.stream))
            newest = max(theirs, default=-1)
            self._all.append(column)
            if newest >= 0:
                one = self._all[newest]
                if (one.boot, one.row0 + self._schema.unroll_length) == (column.boot, column.row0):
                    self._before[number], self._after[newest] = newest, number

    def windows(self) -> dict[int, Window]:
        """Slot -> its window."""
        steps, found = self._schema.unroll_length, {}
        for number in range(max(0, len(self._all) - self._columns), len(self._all)):
            for row in range(steps):
                window = self._window(number, row)
                if window is not None:
                    found[number % self._columns * steps + row] = window
        return found

    def sequences(self, length: int) -> dict[int, list[Row]]:
        """Column -> the rows of the sequence from its first on, and the one after."""
        found = {}
        for number in range(max(0, len(self._all) - self._columns), len(self._all)):
            rows = [row for at in range(length + 1) if (row := self._row(number, at)) is not None]
            if len(rows) > length and self._sees(number, 0):
                found[number % self._columns] = rows
        return found

    def _sees(self, number: int, start: int) -> bool:
        """Whether every frame that a row sees belongs to a row that is here."""
        row = self._row(number, start)
        here = {one.number for back in range(self._frames) if (one := self._row(number, start - back)) is not None}
        return row is not None and {seen for seen in row.frames if seen} <= here

    def _row(self, number: int, row: int) -> Row | None:
        """A row, counted from a column's first one; None where it is not here."""
        steps = self._schema.unroll_length
        while row < 0 or row >= steps:
            there = (self._before if row < 0 else self._after).get(number)
            if there is None:
                return None
            number, row = there, row + steps if row < 0 else row - steps
        return self._all[number].rows[row] if number >= len(self._all) - self._columns else None

    def _window(self, number: int, start: int) -> Window | None:
        rows: list[Row] = []
        for at in range(start, start + self._n_step):
            row = self._row(number, at)
            if row is None or not row.valid:
                return None
            rows.append(row)
            if row.terminated or row.truncated:
                break
        after = self._row(number, start + len(rows))
        if after is None and not rows[-1].terminated:
            return None
        return Window(rows, after) if self._sees(number, start) else None
