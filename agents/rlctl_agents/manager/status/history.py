"""History of a run for its curves, in bounded space: samples of its status, evaluations, and marks of events.

Samples are stored as results/history.json. Evaluations and marks are read from evaluations.jsonl and events.jsonl,
which hold them anyway, so they survive a manager that was killed, whatever release began the run.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from rlctl.spec.layout import EVALUATIONS, EVENTS
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.runtime.storage import read_file

FORMAT = 1
FILE = "history.json"
FINEST_S = 5.0
"""Seconds over which a row of samples is the mean; doubled as often as a long run needs it."""
ROWS = 720
"""Rows at which pairs are merged: 360 to 720 rows, an hour at 5 s, a day at 160 s, a week at 20 minutes."""
NAMES = 96
"""Curves that are sampled, at most; 700 KB of JSON at the most, 150 KB as a rule."""
POINTS = 400
"""Evaluations of a mode, and marks of a kind, at most; beyond that, every second one is dropped."""
LONGEST_TEXT = 200
MOST_READ = 64 << 20
"""Bytes read of either file, at most: with thousands of actors that come and go for months, events.jsonl grows to
gigabytes."""

MarkKind = Literal["generation", "restart", "failure", "change"]
KINDS: Mapping[str, MarkKind] = {
    "checkpoint": "generation",
    "start": "restart", "resumed": "restart", "resume": "restart",
    "quarantined": "failure", "refused": "failure", "not_saved": "failure", "not_kept": "failure", "lost": "failure",
    "lock_step": "failure", "not_evaluated": "failure", "not_recorded": "failure", "unreadable": "failure",
    "reload": "change",
}  # fmt: skip
"""Kind of an event -> kind of its mark; `gone` is a failure unless the process had reported its end."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class CurveRows(msgspec.Struct):
    """Content of results/history.json: rows of samples, oldest first; all columns have the same length."""

    format: int = FORMAT
    every_s: float = FINEST_S  # seconds per row
    unix: list[float] = []  # Unix time at the end of each row
    running_s: list[float] = []  # the same, in seconds without the time in which no manager ran
    steps: list[int] = []  # agent steps that the weights were learned from, at the end of each row
    values: dict[str, list[float | None]] = {}  # curve -> its mean over each row; None: no value
    sums: dict[str, tuple[float, int]] = {}  # curve -> sum and count of its samples since the newest row
    ran_s: float = 0.0  # running_s of the newest sample

    def add(self, unix: float, running_s: float, steps: int, values: Mapping[str, float]) -> None:
        """Add a row; when there are ROWS, pairs are merged."""
        count = len(self.unix)
        self.unix.append(unix)
        self.running_s.append(running_s)
        self.steps.append(steps)
        for name, value in values.items():
            if name in self.values or len(self.values) < NAMES:
                self.values.setdefault(name, [None] * count).append(float(f"{value:.5g}"))
        for column in self.values.values():
            column += [None] * (count + 1 - len(column))
        if count + 1 >= ROWS:
            self.unix, self.running_s, self.steps = self.unix[1::2], self.running_s[1::2], self.steps[1::2]
            self.values = {name: _halved(column) for name, column in self.values.items()}
            self.every_s *= 2

    @property
    def sound(self) -> bool:
        """True if all columns have the same length, and rows and columns are within their bounds."""
        columns: list[Sequence[Any]] = [self.running_s, self.steps, *self.values.values()]
        few = len(self.unix) < ROWS and len(self.values) <= NAMES and self.every_s >= FINEST_S
        return few and all(len(column) == len(self.unix) for column in columns)


class EvaluationLine(msgspec.Struct, frozen=True):
    """Line of evaluations.jsonl, without its episodes."""

    mean: float
    std: float
    min: float
    max: float
    episodes: int
    mode: str
    steps: int
    time: float
    ref: dict[str, Any] = {}
    info: dict[str, float] = {}
    confirms: bool = False


def in_order(evaluations: Iterable[EvaluationLine]) -> list[EvaluationLine]:
    """Evaluations in the order in which the policy had the steps, not in that in which evaluators were done."""
    return sorted(evaluations, key=lambda one: (one.ref.get("lineage", 0), one.steps))


class RunMark(NamedTuple):
    """Event that a curve shows as a mark."""

    kind: MarkKind
    unix: float
    steps: int  # agent steps that the weights were learned from by then
    running_s: float
    text: str


class HistoryView(NamedTuple):
    """Immutable snapshot of the history, for readers in any thread."""

    rows: CurveRows
    evaluations: Mapping[str, Sequence[EvaluationLine]]  # by mode, oldest first
    marks: Sequence[RunMark]  # oldest first


EMPTY = HistoryView(CurveRows(), {}, ())


class _Event(msgspec.Struct, frozen=True):
    """Fields of a line of events.jsonl that a mark needs."""

    kind: str
    time: float
    text: str
    steps: int | None = None
    lost: bool = False  # of `gone`: the process had not reported its end
    term: int = 0

    @property
    def mark(self) -> MarkKind | None:
        if self.kind == "gone":
            return "failure" if self.lost else None
        return None if self.kind == "start" and self.term <= 1 else KINDS.get(self.kind)


class RunHistory:
    """History of a run, used by one thread.

    Args:
        folder: results/.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._rows = _load(self._file)
        self._evaluations, self._events = _Tail(folder / EVALUATIONS, EvaluationLine), _Tail(folder / EVENTS, _Event)
        self._measured: dict[str, list[EvaluationLine]] = {}
        self._marked: dict[MarkKind, list[_Event]] = {}
        self._ran_before_s = max(self._rows.ran_s, *self._rows.running_s[-1:], 0.0)
        """Running seconds before this life of the manager, as far as its samples were stored."""
        self._view: HistoryView | None = None
        self.look()

    def look(self) -> None:
        """Read the evaluations and events written since the last call."""
        for one in self._evaluations.new():
            _keep(self._measured.setdefault(one.mode, []), one)
            self._view = None
        for event in self._events.new():
            if (kind := event.mark) is not None:
                _keep(self._marked.setdefault(kind, []), event)
                self._view = None

    def sample(self, unix: float, life_s: float, steps: int, values: Mapping[str, float]) -> None:
        """Add a sample of the status; the mean of those of some seconds becomes a row.

        Args:
            life_s: seconds since this life of the manager began.
            values: finite numbers, by the name of their curve.
        """
        self.look()
        rows = self._rows
        for name, value in values.items():
            total, count = rows.sums.get(name, (0.0, 0))
            rows.sums[name] = total + value, count + 1
        rows.ran_s = running_s = self._ran_before_s + life_s
        if running_s - (rows.running_s[-1] if rows.running_s else 0.0) >= rows.every_s:
            rows.add(round(unix, 1), round(running_s, 1), steps, {name: t / n for name, (t, n) in rows.sums.items()})
            rows.sums, self._view = {}, None

    def store(self, state: StateStore) -> None:
        """Store the samples."""
        state.save(self._file, msgspec.json.encode(self._rows), durable=False)

    def view(self) -> HistoryView:
        """Snapshot of the history; the same object until something is added."""
        if self._view is None:
            rows = msgspec.structs.replace(
                self._rows, unix=[*self._rows.unix], running_s=[*self._rows.running_s], steps=[*self._rows.steps],
                values={name: [*column] for name, column in self._rows.values.items()},
            )  # fmt: skip
            self._view = HistoryView(rows, {mode: (*of,) for mode, of in self._measured.items()}, self._marks(rows))
        return self._view

    def _marks(self, rows: CurveRows) -> list[RunMark]:
        found = []
        sampled = rows.unix[0] if rows.unix else math.inf
        before = [(one.time, one.steps) for of in self._measured.values() for one in of if one.time < sampled]
        # an evaluation's steps are those of older weights: where there are samples, these are nearer
        known = [*sorted(before), *zip(rows.unix, rows.steps, strict=True)]
        times = [unix for unix, _ in known]
        for kind, events in self._marked.items():
            for one in events:
                at = bisect_right(times, one.time)
                steps = one.steps if one.steps is not None else known[at - 1][1] if at else 0
                found.append(RunMark(kind, one.time, steps, _running_s(rows, one.time), one.text[:LONGEST_TEXT]))
        return sorted(found, key=lambda mark: mark.unix)


def _running_s(rows: CurveRows, unix: float) -> float:
    """Running time in seconds at a Unix time, interpolated between two rows."""
    at = bisect_right(rows.unix, unix)
    if at == len(rows.unix):
        return rows.running_s[-1] if at else 0.0
    before = (rows.unix[at - 1], rows.running_s[at - 1]) if at else (rows.unix[0] - rows.running_s[0], 0.0)
    span = rows.unix[at] - before[0]
    share = min(max((unix - before[0]) / span, 0.0), 1.0) if span > 0 else 1.0
    return before[1] + share * (rows.running_s[at] - before[1])


class _Tail(Generic[T]):
    """New lines of a growing file, one JSON object each. Lines of another form are skipped, as are those that lie more
    than MOST_READ before its end at the first read."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path, self._read = path, 0
        with suppress(OSError):
            self._read = max(path.stat().st_size - MOST_READ, 0)
        self._within = self._read > 0  # perhaps within a line
        self._decoder = msgspec.json.Decoder(kind)

    def new(self) -> Iterator[T]:
        """Whole lines since the last call."""
        try:
            if self._path.stat().st_size <= self._read:
                return
            with self._path.open("rb") as file:
                file.seek(self._read)
                if self._within:
                    self._read += len(file.readline())
                    self._within = False
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._read += len(line)
                    try:
                        yield self._decoder.decode(line)
                    except (msgspec.MsgspecError, UnicodeDecodeError):
                        continue
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot read %s: %s", self._path, error)


def _load(path: Path) -> CurveRows:
    """Rows as the last manager stored them; none if they cannot be read: curves are no reason to end a run."""
    try:
        data = read_file(path)
        rows = CurveRows() if data is None else msgspec.json.decode(data, type=CurveRows)
        if rows.format != FORMAT or not rows.sound:
            raise ValueError(f"format {rows.format}, or columns of unequal length")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, curves of the status begin anew: %s", path, error)
        return CurveRows()
    return rows


def _keep(kept: list[T], one: T) -> None:
    """Append an item; beyond POINTS, every second one is dropped, but never the newest."""
    kept.append(one)
    if len(kept) > POINTS:
        del kept[-2::-2]


def _halved(column: Sequence[float | None]) -> list[float | None]:
    """Means of pairs of values, without missing ones."""
    pairs = zip(column[::2], column[1::2], strict=True)
    known = [[one for one in pair if one is not None] for pair in pairs]
    return [float(f"{sum(of) / len(of):.5g}") if of else None for of in known]
