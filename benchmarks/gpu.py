"""The learner on a GPU: fed from memory, and by actors of this machine. Part of `all` only where torch sees a GPU.

Busy is the share of the time in which the GPU computed at all, and PCIe what it received, both as `nvidia-smi` tells
them; "copied" is calculated from the size of batches. Without a GPU the tiny form takes the same way on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import limit
from benchmarks.peers.bench import rlctl
from benchmarks.peers.contenders import OURS, TASKS, changed
from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "The learner on a GPU"
MEMORY, WHOLE = "fed from memory", "whole"
COLUMNS = {
    "steps_per_s": "agent steps/s", "busy": "GPU busy, %", "copied_mb_per_s": "batches copied, MB/s",
    "pcie_mb_per_s": "PCIe received, MB/s", "cores_used": "cores used",
}  # fmt: skip


def measure(session: Session) -> None:
    on_gpu = torch.cuda.is_available()
    if session.form != "tiny" and not on_gpu:
        raise SystemExit(f"gpu: torch {torch.__version__} sees no GPU: run it where `nvidia-smi` shows one")
    actors = max(1, len(os.sched_getaffinity(0)) - 2)
    cells = [
        (task, what) for task in session.choose(["pong"], ["pong"], ["pong", "native"]) for what in (MEMORY, WHOLE)
    ]
    for number, (task, what) in session.rounds(cells, session.choose(1, 1, 5)):
        seconds = session.choose(0.5, 5.0, 20.0)
        learner: dict[str, Any] = {"gpu": 1} if on_gpu else {}
        roles = {"roles": {"learner": learner, "actor": {**OURS[task]["roles"]["actor"], "replicas": actors}}}
        work = (
            partial(limit.alone, "learner", task, seconds, "cuda" if on_gpu else "copies")
            if what == MEMORY
            else partial(rlctl, session, changed(OURS[task], roles))
        )
        session.cell({"task": task, "what": what, "actors": actors, "round": number}, partial(watched, work, on_gpu))


def watched(work: Any, on_gpu: bool) -> dict[str, Any]:
    """Figures of the work, and of the GPU meanwhile."""
    with looked() if on_gpu else contextlib.nullcontext([]) as seen:
        found = dict(work())
    if seen:
        found["busy"], found["pcie_mb_per_s"] = (statistics.median(values) for values in zip(*seen, strict=True))
    return found


@contextlib.contextmanager
def looked() -> Iterator[list[tuple[float, float]]]:
    """Samples of a second each, until the block ends: percent busy, MB/s received."""
    seen: list[tuple[float, float]] = []
    command = ["nvidia-smi", "dmon", "-i", "0", "-s", "ut", "-d", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: seen.extend(samples(process.stdout or ())), name="nvidia-smi")
        reader.start()
        try:
            yield seen
        finally:
            process.terminate()
            reader.join()


def samples(lines: Any) -> Iterator[tuple[float, float]]:
    """Of what `nvidia-smi dmon -s ut` prints; seconds in which the GPU did nothing are start-up and do not count.

    Example:
        `list(samples(["# gpu sm mem rxpci", "# Idx % % MB/s", "0 55 10 1200"]))` is [(55.0, 1200.0)].
    """
    names: list[str] = []
    for line in lines:
        words = line.lstrip("# ").split()
        if line.startswith("#"):
            names = words if "gpu" in words else names
        elif words and words[names.index("sm")] not in ("0", "-"):
            yield float(words[names.index("sm")]), float(words[names.index("rxpci")])


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for task in store.distinct(rows, "task"):
        body = [
            [what, *(tables.measured(found, column) for column in COLUMNS)]
            for what in (MEMORY, WHOLE)
            if (found := store.where(rows, task=task, what=what))
        ]
        lines += [f"**{TASKS[task]}.**", "", *tables.table(["", *COLUMNS.values()], body), ""]
    return lines


def plot(rows: list[Row], path: Path) -> None:
    tasks = store.distinct(rows, "task")
    made, axes = plots.figure(max(1, len(tasks)))
    for one, task in zip(axes, tasks, strict=False):
        values = {what: store.kept(store.where(rows, task=task, what=what), "steps_per_s") for what in (MEMORY, WHOLE)}
        shown = {what: spread(some) for what, some in values.items() if some}
        plots.bars(one, shown, title=TASKS[task], unit="agent steps per second")
    plots.save(made, path)
