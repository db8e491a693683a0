"""What a run has reached, as it outlives the manager."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from rlctl_agents.roles import leases, ledger, totals
from rlctl_agents.roles.files import read_file, replace_file
from rlctl_agents.roles.matches import TRAINING, Evaluation

FORMAT = 1
HISTORY = 2000
"""Points of the learning curve that are kept; every second one goes when there are more."""
LINEAGES = 64
"""Learner boots whose lineage is remembered."""

log = logging.getLogger(__name__)


class Resumed(msgspec.Struct, frozen=True):
    """From which generation the newest learner went on."""

    number: int
    rows: int
    text: str


class Progress(msgspec.Struct):
    """results/progress.json. Times over all ups are without the pauses between them."""

    format: int = FORMAT
    wall_s: float = 0.0
    started: bool = False  # the learner has learned something
    rows: dict[str, int] = {}  # policy -> rows that its weights were learned from
    lineages: dict[str, int] = {}  # policy -> newest
    lineage_of: dict[str, int] = {}  # learner boot -> lineage that it opened
    issued: int = 0  # newest number of a generation, ordered or committed
    match: int = TRAINING
    evaluation: Evaluation | None = None
    history: list[tuple[int, float, float]] = []  # rows, wall_s, mean of the evaluation
    resumed: Resumed | None = None
    met: str | None = None

    def open_lineage(self, policy: str, boot: str) -> int:
        """The lineage of a learner boot: another one for every boot, the same one however often it asks."""
        if boot not in self.lineage_of:
            self.lineages[policy] = self.lineages.get(policy, 0) + 1
            self.lineage_of[boot] = self.lineages[policy]
            while len(self.lineage_of) > LINEAGES:
                del self.lineage_of[next(iter(self.lineage_of))]
        return self.lineage_of[boot]

    def measured(self, evaluation: Evaluation) -> None:
        """Another point of the curve."""
        self.evaluation = evaluation
        self.history.append((evaluation.rows, round(evaluation.wall_s, 3), evaluation.mean))
        if len(self.history) > HISTORY:
            self.history = self.history[:-1:2] + self.history[-1:]


class Books(msgspec.Struct):
    """results/ledger.json: what every boot has said of itself."""

    format: int = FORMAT
    leases: leases.Stored = msgspec.field(default_factory=leases.Stored)
    ledger: ledger.Stored = msgspec.field(default_factory=ledger.Stored)
    totals: totals.Stored = msgspec.field(default_factory=totals.Stored)


class Damaged(Exception):
    """A file that the manager must not overwrite and cannot read."""


def load_progress(folder: Path) -> Progress:
    """As the last manager left it; a fresh one when there was none.

    Raises:
        Damaged: it is there and cannot be read: going on would count from nothing.
    """
    path = folder / "progress.json"
    data = read_file(path)
    if data is None:
        return Progress()
    try:
        progress = msgspec.json.decode(data, type=Progress)
    except msgspec.MsgspecError as error:
        raise Damaged(f"{path}: {error}") from error
    if progress.format != FORMAT:
        raise Damaged(f"{path}: format {progress.format}, this release reads {FORMAT}")
    return progress


def load_books(folder: Path) -> Books:
    """As the last manager left them; empty when they cannot be read, for everybody alive says its totals again."""
    path = folder / "ledger.json"
    try:
        data = read_file(path)
        books = Books() if data is None else msgspec.json.decode(data, type=Books)
        if books.format != FORMAT:
            raise ValueError(f"format {books.format}")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.error("%s cannot be read, the ledger begins anew: %s", path, error)
        return Books()
    return books


class Shelf:
    """Where the manager keeps what outlives it. A full disk costs what is stored, never the run.

    Args:
        folder: results/.

    Raises:
        Damaged: progress.json is there and cannot be read.
        OSError: the volume refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.progress = load_progress(folder)
        self.failure = ""
        """Why the newest was not stored."""

    def save_progress(self, *, durable: bool) -> bool:
        """Store the progress; says whether it could.

        Args:
            durable: somebody will act on it, so it must survive a power cut.
        """
        return self._save("progress.json", self.progress, durable=durable)

    def save_books(self, books: Books) -> bool:
        """Store the books; says whether it could."""
        return self._save("ledger.json", books, durable=False)

    def _save(self, name: str, value: msgspec.Struct, *, durable: bool) -> bool:
        try:
            replace_file(self._folder / name, msgspec.json.encode(value), durable=durable)
        except OSError as error:
            self.failure = f"cannot store {self._folder / name}: {error.strerror}"
            return False
        self.failure = ""
        return True


def next_term(folder: Path, at_least: int) -> int:
    """Count this start of a manager, durably.

    Args:
        folder: run/.
        at_least: the newest term that generations speak of.

    Raises:
        Damaged: the counter is there and is none.
        OSError: the volume refuses.
    """
    term = max(read_term(folder), at_least) + 1
    replace_file(folder / "term", f"{term}\n".encode(), durable=True)
    return term


def read_term(folder: Path) -> int:
    """The newest term; 0 before the first.

    Raises:
        Damaged: the counter is there and is none.
        OSError: the volume refuses.
    """
    data = read_file(folder / "term")
    if data is None:
        return 0
    if not data.strip().isdigit():
        raise Damaged(f"{folder / 'term'} holds no number: {data[:40]!r}")
    return int(data)
