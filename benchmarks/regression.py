"""A small cell for CI: CPU of the parts and of the wire, as a multiple of the calibration loop's.

The figures have no unit of time in them, so they compare between machines of one kind; they are stored and printed
beside those of the repository, and none of them fails anything; a cell that cannot be measured does, if no other can.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import limit
from benchmarks.shared import plots, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.spin import spin
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Regression cell"
PARTS = ("simulator", "inference", "learner", "transport")
STORED = REPOSITORY / "benchmarks" / "results" / "regression"
LOOP = 1000.0
"""Iterations of the calibration loop that a figure is in."""


def measure(session: Session) -> None:
    seconds = session.choose(0.5, 2.0, 4.0)
    for number, part in session.rounds(PARTS, session.choose(1, 3, 5)):
        session.cell({"part": part, "round": number}, partial(normalised, part, seconds), repeat=False)
    for line in table(store.read(session.folder / store.CELLS)):
        session.say(line)


def normalised(part: str, seconds: float) -> dict[str, Any]:
    """Iterations of the calibration loop, in thousands, that one agent step costs."""
    found = limit.alone(part, "cartpole", seconds)
    loops_per_cpu_s = spin(0.5, cores=1).per_cpu_s
    return {"loops_cpu_per_step": loops_per_cpu_s / LOOP / found["steps_per_cpu_s"]}


def table(rows: list[Row]) -> list[str]:
    try:
        before = store.read(STORED / store.CELLS)
    except OSError:
        before = []
    body = []
    for part in PARTS:
        now = [
            float(row["loops_cpu_per_step"]) for row in store.where(rows, part=part) if row.get("loops_cpu_per_step")
        ]
        then = [
            float(row["loops_cpu_per_step"]) for row in store.where(before, part=part) if row.get("loops_cpu_per_step")
        ]
        ratio = f"{spread(now).median / spread(then).median:.2f}x" if now and then else ""
        body.append([part, tables.number(spread(now).median) if now else "-", ratio])
    return tables.table(["CartPole, one agent step", "thousand loops of the calibration", "of those stored"], body)


def plot(rows: list[Row], path: Path) -> None:
    made, (axes,) = plots.figure(1)
    values = {
        part: [
            float(row["loops_cpu_per_step"]) for row in store.where(rows, part=part) if row.get("loops_cpu_per_step")
        ]
        for part in PARTS
    }
    shown = {part: spread(some) for part, some in values.items() if some}
    plots.bars(axes, shown, title="CartPole, one agent step", unit="thousand loops of the calibration")
    plots.save(made, path)
