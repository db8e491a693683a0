"""One shard alone that is saved while it is drawn from and inserted into: `python -m benchmarks.replay.saved CASE ROWS
SECONDS FOLDER`; prints one JSON line.

A learner draws 512 rows and tells the errors of those before, as fast as it is answered; with each eighth draw a block
of 512 rows comes in: eight samples per insert. So it goes for SECONDS, then while a part is written, three times.
Afterwards the part is read into an empty shard of the same capacity, then into one of half of it; the kernel was asked
to forget the file before each. CPU seconds of writing are those of its thread.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replay.buffers import BATCH, agreed, blocks
from rlctl_agents.experience.replay.messages import Draw, from_buffers, layout, to_buffers
from rlctl_agents.experience.replay.server import SharedShard
from rlctl_agents.experience.replay.shard import ReplaySettings, Shard
from rlctl_agents.experience.replay.snapshot import ShardSnapshot, restore
from rlctl_agents.runtime.metrics import Metrics

BOOT = "boot"
DRAWS = 8
"""To one block."""
ROUNDS = 3
NAME = "main-000001-replay0.safetensors"


class Busy:
    """A shard with a learner and actors."""

    def __init__(self, case: str, rows: int) -> None:
        self.schema, self.settings = agreed(case), ReplaySettings(1, prioritized=True)
        self.shard = Shard(self.schema, self.settings, capacity=rows, seed=0)
        self.shared = SharedShard(self.shard, BOOT, starts=0, share=0, ratio=0.0, metrics=Metrics())
        self._block, self._number = blocks(case), 0
        self._errors = np.random.default_rng(0).random(BATCH).astype(np.float32)
        self._told: list[Any] = []
        while self.shard.filled < self.shard.capacity:
            self.insert()

    def insert(self) -> None:
        self.shared.insert(self._block(self._number))
        self._number += 1

    def draw(self) -> None:
        changes = BATCH if self._told else 0
        drawn, buffers = self.shared.draw(Draw(BATCH, BOOT, changes=changes), self._told)
        arrays = from_buffers([memoryview(one) for one in buffers], layout(self.schema, self.settings, drawn.count))
        told = {"slot": arrays["slot"], "generation": arrays["generation"], "delta": self._errors}
        self._told = to_buffers(told, list(told))

    def work(self, goes_on: Callable[[], bool]) -> dict[str, float]:
        """Draws and insertions until then, once at least: rows drawn per second, and the longest of each in ms."""
        longest, draws, began = {"draw": 0.0, "insert": 0.0}, 0, time.perf_counter()
        while not draws or goes_on():
            for number in range(DRAWS + 1):
                at = time.perf_counter()
                (self.insert if number == DRAWS else self.draw)()
                name = "insert" if number == DRAWS else "draw"
                longest[name] = max(longest[name], time.perf_counter() - at)
            draws += DRAWS
        per_s = draws * BATCH / (time.perf_counter() - began)
        return {"per_s": per_s, **{f"longest_{name}_ms": 1e3 * value for name, value in longest.items()}}


def saved(busy: Busy, folder: Path, seconds: float) -> tuple[dict[str, float], Any]:
    """One round: figures without a save, and while a part is written; and the part."""
    until = time.perf_counter() + seconds
    without = busy.work(lambda: time.perf_counter() < until)
    told: dict[str, Any] = {}

    def write() -> None:
        with busy.shared._lock:
            at = time.perf_counter()
            begun = ShardSnapshot(busy.shard, busy.shared._lock)
            told["pause_ms"] = 1e3 * (time.perf_counter() - at)
        at, cpu = time.perf_counter(), time.thread_time()
        told["part"] = begun.write(folder, NAME)
        told["write_s"] = time.perf_counter() - at
        told["write_cpu_s"] = time.thread_time() - cpu

    thread = threading.Thread(target=write)
    thread.start()
    during = busy.work(thread.is_alive)
    thread.join()
    part = told.pop("part")
    told["bytes"] = (folder / part.file).stat().st_size
    told["speed_while_written"] = during["per_s"] / without["per_s"]
    for name in ("longest_draw_ms", "longest_insert_ms"):
        told |= {f"{name}_without": without[name], f"{name}_while_written": during[name]}
    return told, part


def read(busy: Busy, folder: Path, part: Any, capacity: int) -> tuple[float, float]:
    """Seconds until an empty shard of this capacity has the rows, and CPU seconds."""
    with (folder / part.file).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    empty = Shard(busy.schema, busy.settings, capacity=capacity, seed=1)
    began, cpu = time.perf_counter(), time.process_time()
    restore(empty, folder, part.file, part.sha256)
    assert empty.filled == empty.capacity
    return time.perf_counter() - began, time.process_time() - cpu


def main(case: str, rows: int, seconds: float, folder: Path) -> dict[str, float]:
    busy, rounds = Busy(case, rows), list[dict[str, float]]()
    part: Any = None
    for _ in range(ROUNDS):
        if part is not None:
            (folder / part.file).unlink()
        found, part = saved(busy, folder, seconds)
        rounds.append(found)
    figures = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    figures["restore_s"], figures["restore_cpu_s"] = read(busy, folder, part, busy.shard.capacity)
    figures["restore_half_s"], figures["restore_half_cpu_s"] = read(busy, folder, part, busy.shard.capacity // 2)
    return figures


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))))
