"""Throughput over the number of actors, latency and CPU of a step, beside three baselines; a real learner throughout.

naive: one process, one environment, step, act and learn in turn. single: the same process with many environments that
are stepped as one batch, the best of several counts. rlctl: every actor one environment and one process; "light" ones
act without torch, so that 128 fit into memory. Latency is slept, CPU is burnt.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.peers.window import child, window
from benchmarks.scaling.fleet import fleet, until_all_act
from benchmarks.scaling.report import PLOTTED, table
from benchmarks.scaling.settings import BEST_OF, CPUS_MS, LATENCIES_MS, run_spec
from benchmarks.scaling.shares import at_update, figures
from benchmarks.scaling.soak import Soak, soak
from benchmarks.shared import plots, processes, product, store
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "How it scales, and with what"
__all__ = ["TITLE", "measure", "plot", "table"]


class Cell(NamedTuple):
    """One measurement of the grid."""

    who: str  # naive, single, torch, light
    actors: int  # processes that act; of a single process: environments
    latency_ms: float
    cpu_ms: float


def cells(session: Session) -> list[Cell]:
    """The grid of the form."""
    light = session.choose((1, 4), (1, 16, 100), (1, 4, 16, 64, 128))
    torch = session.choose((), (), (1, 4))
    best = session.choose((8,), (32,), BEST_OF)
    steps = [
        (latency_ms, cpu_ms)
        for latency_ms in session.choose((10.0,), LATENCIES_MS, LATENCIES_MS)
        for cpu_ms in session.choose((0.1,), (0.1,), CPUS_MS)
    ]
    who = [("naive", (1,)), ("single", best), ("torch", torch), ("light", light)]
    return [Cell(name, count, *step) for step in steps for name, counts in who for count in counts]


def measure(session: Session) -> None:
    """Measure the soak first, so that rounds that end early (Ctrl-C) leave everything measured at least once."""
    form = session.choose(Soak(4, 1, 8.0, 2.0, 4.0), Soak(100, 2, 20.0, 4.0, 10.0), Soak(120, 4, 600.0, 10.0, 60.0))
    session.cell({"who": "soak", **form._asdict()}, partial(soak, form), repeat=False)
    for number, cell in session.rounds(cells(session), session.choose(1, 1, 3)):
        session.cell({**cell._asdict(), "round": number}, partial(one, session, cell))


def one(session: Session, cell: Cell) -> dict[str, Any]:
    """One cell."""
    warm_s, window_s = session.choose((0.5, 2.0), (2.0, 4.0), (2.0, 7.0))
    match cell.who:
        case "naive" | "single":
            return alone(cell, warm_s, window_s)
        case "torch":
            return with_torch(cell, warm_s, window_s)
        case _:
            return without_torch(cell, warm_s, window_s)


def alone(cell: Cell, warm_s: float, window_s: float) -> dict[str, Any]:
    """A baseline in one process."""
    words = [str(cell.actors), str(cell.latency_ms), str(cell.cpu_ms)]
    path = os.pathsep.join(word for word in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if word)
    with child([sys.executable, "-m", "benchmarks.scaling.alone", *words], {"PYTHONPATH": path}) as running:
        return product.rates(*window(running, warm_s=warm_s, window_s=window_s))


def with_torch(cell: Cell, warm_s: float, window_s: float) -> dict[str, Any]:
    """rlctl as it is."""
    with product.running(run_spec(cell.actors, cell.latency_ms, cell.cpu_ms)) as run:
        product.wait_for_steps(run, 1, 60 + 20 * cell.actors)
        deadline = time.monotonic() + 60 + 20 * cell.actors
        while run.stored().get("totals", {}).get("env_steps", 0) == 0 or len(run.pids("actor")) < cell.actors:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(run.pids('actor'))} of {cell.actors} actors run")
            time.sleep(0.5)
        time.sleep(warm_s)
        first = at_update(run)
        time.sleep(window_s)
        return figures(first, at_update(run)) | used(run.pids("actor"))


def without_torch(cell: Cell, warm_s: float, window_s: float) -> dict[str, Any]:
    """rlctl with light actors."""
    with fleet(cell.actors, run_spec(0, cell.latency_ms, cell.cpu_ms)) as crew:
        until_all_act(crew, cell.actors, 60 + 2 * cell.actors)
        product.wait_for_steps(crew.run, 1, 60)
        time.sleep(warm_s)
        first = at_update(crew.run, [crew.parent])
        time.sleep(window_s)
        return figures(first, at_update(crew.run, [crew.parent])) | used(crew.pids())


def used(actors: list[int]) -> dict[str, Any]:
    """Memory of the actors."""
    found = processes.memory(actors)
    return {"pss_mib": found.pss_mib, "threads": found.threads, "sockets": found.sockets}


def plot(rows: list[Row], path: Path) -> None:
    made, axes = plots.figure(len(PLOTTED))
    for axis, column, title in ((axes[at], *what) for at, what in enumerate(PLOTTED.items())):
        curves = {}
        for latency in store.distinct(rows, "latency_ms"):
            for cpu in store.distinct(rows, "cpu_ms"):
                found = store.where(rows, who="light", latency_ms=latency, cpu_ms=cpu)
                points = [
                    (int(count), spread(values).median)
                    for count in store.distinct(found, "actors")
                    if (values := store.kept(store.where(found, actors=count), column))
                ]
                if points:
                    across, up = zip(*sorted(points), strict=True)
                    curves[f"{latency} ms latency, {cpu} ms CPU"] = (across, up)
        plots.lines(axis, curves, title=title, x="actors", y="agent steps", log=True)
    plots.save(made, path)
