"""Stored seeds of a row: raw CSV with a line per seed, its curve, and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.learning import claims
from benchmarks.learning.rows import Row
from benchmarks.learning.train import Point
from benchmarks.shared import store

SEEDS_CSV, CURVES_CSV, FAILURES_CSV = "seeds.csv", "evaluations.csv", "failures.csv"
"""Files in the folder of a row: a line per seed, one per evaluation, and one per attempt that failed."""


@dataclass
class Stored:
    """Seeds of one row that were measured."""

    folder: Path
    seeds: list[store.Row] = field(default_factory=list)
    curves: list[store.Row] = field(default_factory=list)
    failures: list[store.Row] = field(default_factory=list)

    @classmethod
    def read(cls, results: Path, row: Row) -> Stored:
        found = cls(results / row.name)
        found.reread()
        return found

    def reread(self) -> None:
        """Read the files anew: others may have added to them."""
        files = (self.folder / name for name in (SEEDS_CSV, CURVES_CSV, FAILURES_CSV))
        self.seeds, self.curves, self.failures = (store.read(one) if one.exists() else [] for one in files)

    def add(self, line: Mapping[str, Any], points: Sequence[Point]) -> None:
        """Put a seed in place of an earlier measurement of it, on disk as well.

        The curve is written first, and names the measurement that it is of: if that is all that is written, the seed is
        as it was.

        Raises:
            OSError: the disk is full, say; what was stored before is there.
        """
        with self._changing():
            keys = {"seed": line["seed"], "unix_time": line["unix_time"]}
            curves = [one for old in self.seeds for one in self.points(old)] + [keys | one for one in points]
            store.write(self.folder / CURVES_CSV, sorted(curves, key=_seed))
            kept = [one for one in self.seeds if one["seed"] != str(line["seed"])]
            store.write(self.folder / SEEDS_CSV, sorted([*kept, line], key=_seed))
            self.reread()
            store.write(
                self.folder / CURVES_CSV, sorted((one for new in self.seeds for one in self.points(new)), key=_seed)
            )

    def fail(self, line: Mapping[str, Any], row: Row) -> None:
        """Store the failure of a seed, beside failures with today's code.

        Raises:
            OSError: it could not be written.
        """
        with self._changing():
            store.write(self.folder / FAILURES_CSV, [*self.failed(row), line])

    def valid(self, row: Row, seed: int) -> bool:
        """Whether a seed was measured with today's resolved spec and code."""
        found = store.where(self.seeds, seed=seed)
        return bool(found) and found[0]["fingerprint"] == row.fingerprint(seed)

    def points(self, line: store.Row) -> list[store.Row]:
        return store.where(self.curves, seed=line["seed"], unix_time=line["unix_time"])

    def failed(self, row: Row) -> list[store.Row]:
        """Attempts that failed with today's resolved spec and code."""
        return [one for one in self.failures if one["fingerprint"] == row.fingerprint(int(one["seed"]))]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with claims.writing(self.folder.parent, self.folder.name):
            self.reread()
            yield
            self.reread()


def _seed(line: Mapping[str, Any]) -> int:
    return int(line["seed"])


def shown(row: Row, found: Stored) -> tuple[list[store.Row], str]:
    """Seeds that count, and their number in words.

    Those of today's code if there are any, else all. Attempts that failed are told, whatever came after them.
    """
    new = [line for line in found.seeds if found.valid(row, int(line["seed"]))]
    old, failed = len(found.seeds) - len(new), len(found.failed(row))
    told = f"{len(new)} of {row.seeds}" if new or not old else f"0 of {row.seeds}; figures are of {old} stale"
    told += f"; {old} stale" if new and old else ""
    told += f"; {failed} attempt{'s' if failed > 1 else ''} failed" if failed else ""
    return new or found.seeds, told


def steps(count: float) -> str:
    """Example: 150000 -> "150k", 1000000 -> "1M"."""
    return f"{count / 1e6:g}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
