"""A run of the product with light actors: their parent, their counters, and their resources."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared import processes, product
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.product import Run, Spec


class Fleet:
    """Light actors of a live run.

    Attributes:
        steps: agent steps of each, over all its lives.
        pid_of: process of each.
        real: actors that are the product's own, with torch and under its supervisor; their indexes come first.
    """

    def __init__(self, run: Run, parent: subprocess.Popen[bytes], counters: NDArray[np.int64], real: int) -> None:
        self.run, self.parent = run, parent.pid
        self.steps, self.pid_of = counters
        self.real = real

    def pids(self) -> list[int]:
        """Of the actors that live."""
        return [pid for pid in processes.tree([self.parent]) if pid != self.parent]

    def pid_of_real(self, index: int) -> int | None:
        """The process of one of the product's own actors; None while there is none."""
        name = f"--name actor-{index} "
        return next((pid for pid in self.run.pids("actor") if name in processes.command_line(pid)), None)

    def rows_of_real(self, index: int) -> int:
        """Rows that its process has written so far; 0 while it does not answer. The row after an end is no step."""
        rows = 0.0
        for name in ("agent_steps", "episodes"):
            with contextlib.suppress(RuntimeError):
                rows += self.run.counter("actor", name, index)
        return int(rows)

    def halt(self) -> None:
        """Stop all steps: the light actors are gone, the product's own stand still."""
        os.kill(self.parent, signal.SIGKILL)  # the actors go with it
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let the product's own actors run again, so that they can end in good order."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.run.pids("actor"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.contextmanager
def fleet(count: int, spec: Spec, *, real: int = 0) -> Iterator[Fleet]:
    """A run that is up, with light actors beside those of its spec.

    Args:
        count: of light actors.
        spec: of the run, without storage.
        real: actors that the spec has, the product's own.

    Raises:
        RuntimeError: it does not come up.
    """
    with product.running(spec) as run:
        counters = run.folder / "counters"
        table = np.memmap(counters, np.int64, "w+", shape=(2, count))
        words = actor_words(run)
        experience = run.folder / "experience.json"
        run_file = words[words.index("--run-file") + 1]
        env = run.env | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.scaling.experience", run_file, str(experience)],
            env=env, cwd=REPOSITORY, check=True, capture_output=True,
        )  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.scaling.light"]
        command += [str(count), str(real), str(counters), str(experience), "--"]
        with (run.folder / "actors.log").open("wb") as log:
            parent = subprocess.Popen(
                [*command, *words], env=env, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            try:
                yield Fleet(run, parent, table, real)
            finally:
                parent.kill()
                parent.wait()


def actor_words(run: Run) -> list[str]:
    """The arguments that the supervisor gives an actor, with {} for its index."""
    text = (run.root / "run" / "programs" / "actor.conf").read_text()
    line = next(line for line in text.splitlines() if line.startswith("command"))
    words = shlex.split(line.split("=", 1)[1].replace("%(program_name)s", "actor-{}"))
    return words[words.index("rlctl_agents") + 1 :]


def until_all_act(fleet: Fleet, count: int, timeout_s: float) -> None:
    """Wait until every actor has acted.

    Raises:
        TimeoutError: an actor has not.
    """
    deadline = time.monotonic() + timeout_s
    while (np.asarray(fleet.steps) == 0).any() or not all(fleet.rows_of_real(index) for index in range(fleet.real)):
        if time.monotonic() > deadline:
            acting = int((np.asarray(fleet.steps) > 0).sum())
            real = f", and {fleet.real} of the product's own are waited for" if fleet.real else ""
            why = last_words(fleet.run.folder)
            raise TimeoutError(f"{acting} of {count} actors act after {timeout_s:g} s{real}: {why}")
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
