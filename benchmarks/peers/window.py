"""A trainer as a child process, and its rates per second and per CPU second between two of its own lines."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from benchmarks.shared import processes
from benchmarks.shared.product import Mark
from benchmarks.shared.signals import uninterrupted

CANNOT = 2
"""Exit code of a program that has no such task."""
START_S = 180.0
"""Longest wait for the first line; importing takes its time on a busy machine."""


class Line(NamedTuple):
    """A line of a trainer."""

    at_s: float  # monotonic seconds, the same clock in every process
    steps: float
    score: float | None


class CannotDo(RuntimeError):
    """The peer has no such task."""


class Child:
    """A trainer that runs and talks."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._lines: queue.SimpleQueue[tuple[Line, float] | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="lines", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process above all others."""
        return self._process.pid

    def next(self, timeout_s: float) -> tuple[Line, float]:
        """Its next line, and the CPU seconds of its tree when the line came.

        Raises:
            TimeoutError: it says nothing.
            RuntimeError: it has ended, with its last words.
        """
        try:
            found = self._lines.get(timeout=timeout_s) if timeout_s > 0 else self._lines.get_nowait()
        except queue.Empty:
            raise TimeoutError(f"said nothing for {timeout_s:g} s") from None
        if found is None:
            code = self._process.wait(10)
            if code == CANNOT:
                raise CannotDo("has no such task")
            raise RuntimeError(f"exit {code}: {self._last_words()}")
        return found

    def cpu_s(self) -> float:
        """Of the tree so far."""
        return processes.cpu_s([self._process.pid])

    def end(self) -> None:
        """Kill it and everything that it has started."""
        for pid in reversed(processes.tree([self._process.pid])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(30)
        self._reader.join(5)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                told = json.loads(text)
                self._lines.put((Line(told["at_s"], told["steps"], told["score"]), self.cpu_s()))
        self._lines.put(None)

    def _last_words(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:250] if lines else "without a word"


@contextlib.contextmanager
def child(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Child]:
    """A trainer until the block ends, in a folder of its own, one compute thread per process."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="rlb-peer-") as folder, (Path(folder) / "errors").open("w+b") as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=clean | threads | dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=errors, text=True,
        )  # fmt: skip
        running = Child(process, errors)
        try:
            yield running
        finally:
            with uninterrupted():
                running.end()


def window(running: Child, *, warm_s: float, window_s: float) -> tuple[Mark, Mark]:
    """Two of its lines: the first after the warm-up, which its first update begins, and the first after the window.

    Raises:
        TimeoutError, RuntimeError: as `Child.next`.
    """
    line, _ = running.next(START_S)
    while line.steps == 0:  # a trainer may talk before it learns
        line, _ = running.next(START_S)
    begin_s = line.at_s + warm_s
    while line.at_s < begin_s:
        line, cpu_s = running.next(START_S)
    first = Mark(line.at_s, line.steps, cpu_s)
    while line.at_s < first.at_s + window_s:
        line, cpu_s = running.next(START_S)
    return first, Mark(line.at_s, line.steps, cpu_s)


def solve(running: Child, *, score: float, limit_s: float) -> dict[str, float]:
    """Seconds until the mean of its last 100 training episodes reaches a score; start-up counts, and is told apart.

    Raises:
        TimeoutError: not in time.
        RuntimeError: as `Child.next`.
    """
    started = time.monotonic()
    first = 0.0
    while time.monotonic() < started + limit_s:
        line, cpu_s = running.next(limit_s)
        first = first or line.at_s
        if line.score is not None and line.score >= score:
            return {
                "solve_s": line.at_s - started, "training_s": line.at_s - first, "solve_cpu_s": cpu_s,
                "solve_steps": line.steps,
            }  # fmt: skip
    raise TimeoutError(f"a mean of {score:g} was not reached within {limit_s:g} s")
