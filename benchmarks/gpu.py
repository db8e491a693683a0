"""The learner on a GPU: fed from memory, and by actors of this machine. Part of `all` only where torch sees a GPU.

Busy is the share of the time in which the GPU computed at all, and PCIe what it received, both as `nvidia-smi` tells
them of the seconds that are measured, idle ones too; "copied" is calculated from the size of batches. Without a GPU the
tiny form takes the same way on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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


class Sample(NamedTuple):
    """State of the GPU in the second before a moment."""

    of_day_s: float  # local time
    busy: float  # percent
    received: float  # MB/s


def watched(work: Callable[..., dict[str, Any]], on_gpu: bool) -> dict[str, Any]:
    """Figures of the work, which tells when it was measured, and of the GPU meanwhile."""
    marks: list[float] = []
    watching: contextlib.AbstractContextManager[list[Sample]] = looked() if on_gpu else contextlib.nullcontext([])
    with watching as seen:
        found = dict(work(tell=lambda *two: marks.extend(two)))
    if inside := within(seen, *map(of_day, marks)):
        found["busy"] = statistics.median(one.busy for one in inside)
        found["pcie_mb_per_s"] = statistics.median(one.received for one in inside)
    return found


def of_day(monotonic_s: float) -> float:
    """Seconds since midnight, local time, of a moment of the monotonic clock."""
    at_s = time.time() - time.monotonic() + monotonic_s
    local = time.localtime(at_s)
    return 3600 * local.tm_hour + 60 * local.tm_min + local.tm_sec + at_s % 1


def within(seen: Sequence[Sample], begin_s: float, end_s: float) -> list[Sample]:
    """Samples whose second lies whole between two times of the day; a sample's time is rounded down.

    Example:
        From 10.5 to 14.5 it is those of 12 and 13: that of 11 may have begun at 10.0, that of 14 may end at 14.9.
    """
    day_s = 24 * 3600
    return [one for one in seen if 1 <= (one.of_day_s - begin_s) % day_s <= (end_s - begin_s) % day_s - 1]


@contextlib.contextmanager
def looked() -> Iterator[list[Sample]]:
    """Samples of a second each, until the block ends."""
    seen: list[Sample] = []
    command = ["nvidia-smi", "dmon", "-i", "0", "-s", "ut", "-d", "1", "-o", "T"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        reader = threading.Thread(target=lambda: seen.extend(samples(process.stdout or ())), name="nvidia-smi")
        reader.start()
        try:
            yield seen
        finally:
            process.terminate()
            reader.join()


def samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Of what `nvidia-smi dmon -s ut -o T` prints.

    Example:
        Of "#Time gpu sm mem rxpci", "#HH:MM:SS Idx % % MB/s" and "00:00:07 0 55 10 1200" it is Sample(7, 55, 1200).
    """
    names: list[str] = []
    for line in lines:
        words = line.lstrip("# ").split()
        if line.startswith("#"):
            names = words if "gpu" in words else names
        elif words and "-" not in (words[names.index("sm")], words[names.index("rxpci")]):
            hours, minutes, seconds = map(int, words[names.index("Time")].split(":"))
            busy, received = (float(words[names.index(name)]) for name in ("sm", "rxpci"))
            yield Sample(3600 * hours + 60 * minutes + seconds, busy, received)


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
