"""One benchmark while it measures: rounds, cells, spins around them, and the CSV that grows with every cell."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from benchmarks.shared import host, spin, store
from benchmarks.shared.product import LeftOver

Form = Literal["tiny", "short", "full"]
"""tiny: does it work; short: `make bench`, minutes; full: the protocol."""
Value = TypeVar("Value")
SPIN_S: dict[Form, float] = {"tiny": 0.1, "short": 1.0, "full": 3.0}
ATTEMPTS, ATTEMPTS_STEADY = 3, 2
"""At a cell, until it is kept: at most so many; and when figures per CPU second count already."""


@dataclass
class Session:
    """Measurement of one benchmark, with the folder for its figures.

    Args:
        folder: of its results.
        form: how much is measured.
        say: told what goes on.
    """

    folder: Path
    form: Form
    say: Callable[[str], object] = lambda line: print(line, file=sys.stderr, flush=True)
    rows: list[dict[str, Any]] = field(default_factory=list)
    _card: dict[str, Any] | None = None
    _last: tuple[float, spin.Spin] | None = None

    def begin(self, card: Mapping[str, Any]) -> None:
        """Keep the host card, made before anything of ours loaded the machine, for the first row.

        Until then the folder holds cells and card of the measurement before: no cell stands beside another's card.
        """
        self._card = {**card, "form": self.form, "command": host.command_line()}

    def choose(self, tiny: Value, short: Value, full: Value) -> Value:
        """By the form."""
        return {"tiny": tiny, "short": short, "full": full}[self.form]

    def rounds(self, cells: Sequence[Value], count: int) -> Iterable[tuple[int, Value]]:
        """Every cell once per round, in another order each time: what drifts on the machine hits all alike."""
        for number in range(count):
            for at in np.random.default_rng(number).permutation(len(cells)):
                yield number, cells[at]

    def cell(
        self, keys: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]], *, repeat: bool = True
    ) -> dict[str, Any]:
        """Measure one cell between two spins; the spin after one cell is the one before the next.

        A cell during which the machine moved is measured again, and every row stays; the choice depends on the spins
        alone. A measurement that raises is stored with what it said, does not count, and is not repeated.
        LeftOver is not caught: a run that computes on would be in every figure after it.

        Args:
            keys: columns that name the row.
            measure: its figures.
            repeat: False for a cell that takes too long, or does not depend on the speed of the machine.

        Returns:
            The last row.
        """
        attempt = 1
        while True:
            row = self._measured(keys, measure)
            limit = ATTEMPTS_STEADY if row["kept_cpu"] else ATTEMPTS
            if not repeat or row["kept"] or "failed" in row or attempt >= limit:
                return row
            attempt += 1

    def plain(self, keys: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Measure one cell without spins: its figures count, whatever else the machine does.

        Args:
            keys: what the row is of; the figures go before keys of the same name.
            measure: its figures.
        """
        row = {**keys, **_tried(measure)}
        self.add(row)
        self.say("  ".join(f"{name} {store.as_text(value)}" for name, value in row.items()))
        return row

    def add(self, row: Mapping[str, Any]) -> None:
        """Store one more row."""
        self.rows.append(dict(row))
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._card is not None:
            (self.folder / store.CELLS).unlink(missing_ok=True)
            store.write_host(self.folder, self._card)
            self._card = None
        store.write(self.folder / store.CELLS, self.rows)

    def _measured(self, keys: Mapping[str, Any], measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        before = self._spin(fresh_s=SPIN_S[self.form])
        began = time.time()
        values = _tried(measure)
        after = self._spin(fresh_s=0.0)
        whole, steady = spin.keeps(before, after)
        row = {
            **keys,
            **values,
            "kept": whole and "failed" not in values,
            "kept_cpu": steady and "failed" not in values,
            "spin_per_s": after.per_s,
            "spin_per_cpu_s": after.per_cpu_s,
            "moved": spin.moved(before.per_s, after.per_s),
            "moved_cpu": spin.moved(before.per_cpu_s, after.per_cpu_s),
            "load": round(os.getloadavg()[0], 2),
            "unix_time": round(began, 1),
        }
        self.add(row)
        shown = "  ".join(f"{name} {store.as_text(value)}" for name, value in {**keys, **values}.items())
        self.say(f"{shown}  {'' if whole else 'DISCARDED' if not steady else 'kept per CPU second only'}")
        return row

    def _spin(self, *, fresh_s: float) -> spin.Spin:
        if self._last is not None and time.monotonic() - self._last[0] < fresh_s:
            return self._last[1]
        turned = spin.spin(SPIN_S[self.form])
        self._last = (time.monotonic(), turned)
        return turned


def _tried(measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return measure()
    except LeftOver:
        raise
    except Exception as error:  # the others are measured all the same
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
