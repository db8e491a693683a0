"""A run of the product with light actors: their parent, their counters, and what they use."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaling.settings import run_spec
from benchmarks.shared import processes, product
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.product import Mark, Run


class Fleet:
    """Light actors of a live run."""

    def __init__(self, run: Run, parent: subprocess.Popen[bytes], counters: NDArray[np.int64]) -> None:
        self.run, self._parent = run, parent
        self.steps, self.pid_of = counters

    def pids(self) -> list[int]:
        """Of the actors that live."""
        return [pid for pid in processes.tree([self._parent.pid]) if pid != self._parent.pid]

    def mark(self) -> Mark:
        """Rows consumed, CPU of all roles and actors, as of now."""
        at = product.mark(self.run)
        return Mark(at.at_s, at.steps, at.cpu_s + processes.cpu_s([self._parent.pid]))


@contextlib.contextmanager
def fleet(count: int, latency_ms: float, cpu_ms: float) -> Iterator[Fleet]:
    """A run that is up, with so many light actors.

    Raises:
        RuntimeError: it does not come up.
    """
    with product.running(run_spec(0, latency_ms, cpu_ms)) as run:
        counters = run.folder / "counters"
        table = np.memmap(counters, np.int64, "w+", shape=(2, count))
        words = actor_words(run)
        experience = run.folder / "experience.json"
        run_file = words[words.index("--run-file") + 1]
        env = run.env | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "rlctl_agents", "probe", "--run-file", run_file, "--out", str(experience)],
            env=env, cwd=REPOSITORY, check=True, capture_output=True,
        )  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.scaling.light", str(count), str(counters), str(experience), "--"]
        with (run.folder / "actors.log").open("wb") as log:
            parent = subprocess.Popen(
                [*command, *words], env=env, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                yield Fleet(run, parent, table)
            finally:
                parent.kill()
                parent.wait()


def actor_words(run: Run) -> list[str]:
    """The arguments that the supervisor gives an actor, with {} for its index."""
    text = (run.root / "run" / "programs" / "actor.conf").read_text()
    line = next(line for line in text.splitlines() if line.startswith("command"))
    words = shlex.split(line.split("=", 1)[1].replace("%(program_name)s", "actor-{}"))
    return words[words.index("rlctl_agents") + 1 :]


def everybody(fleet: Fleet, count: int, timeout_s: float) -> None:
    """Wait until every actor has acted.

    Raises:
        TimeoutError: somebody has not.
    """
    deadline = time.monotonic() + timeout_s
    while (np.asarray(fleet.steps) == 0).any():
        if time.monotonic() > deadline:
            acting = int((np.asarray(fleet.steps) > 0).sum())
            raise TimeoutError(f"{acting} of {count} actors act after {timeout_s:g} s: {last_words(fleet.run.folder)}")
        time.sleep(0.2)


def last_words(folder: Path) -> str:
    """The newest line of an actor that is a warning or worse."""
    with contextlib.suppress(OSError):
        for line in reversed((folder / "actors.log").read_text(errors="replace").splitlines()):
            with contextlib.suppress(ValueError):
                told = json.loads(line)
                if told.get("level") not in ("INFO", "DEBUG"):
                    return str(told.get("msg"))[:200]
    return f"see {folder}" if os.environ.get("RLCTL_BENCH_KEEP") else "no actor says why"
