"""One run of `rlctl`: as a user starts it, or forked from a process that has its imports behind it already.

The second is the same command line in a process of its own with its own streams, a second sooner; what takes hundreds
of commands could not be tried otherwise. Whether they are killed, stopped or let go on makes no difference.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

IMPORTED: Final = (
    "rlctl.cli.app", "rlctl.plan", "rlctl.spec", "rlctl.render.kubernetes", "rlctl.backends.kubernetes.backend",
    "rlctl.backends.kubernetes.api.client", __name__,
)  # fmt: skip


_TELLING: Final = """
import atexit, runpy, sys
file = sys.argv.pop(1)
def tell():
    with open("/proc/self/status") as status, open(file, "w") as told:
        told.write(next(line.split()[1] for line in status if line.startswith("VmHWM")))
atexit.register(tell)
runpy.run_module("rlctl", run_name="__main__", alter_sys=True)
"""
"""`python -m rlctl`, which tells at its end how much memory it held: what the system counts for a child begins with all
that the parent held when it was started."""


@dataclass(frozen=True, slots=True)
class Start:
    """Arguments and surroundings of a command."""

    arguments: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    out: Path
    err: Path


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    command: str
    code: int
    stdout: str
    stderr: str
    seconds: float
    peak_mib: float  # most memory that it held; 0 of a forked or killed one

    @property
    def said(self) -> str:
        """Both streams: for claims about what a person reads."""
        return self.stdout + self.stderr

    def json(self) -> Any:
        return json.loads(self.stdout)

    def __str__(self) -> str:
        return f"$ {self.command}\n{self.stdout}{self.stderr}exit {self.code} after {self.seconds:.1f} s\n"


class Command:
    """A command that has been started.

    Args:
        quick: fork it.
        ended: told once about its end.
    """

    def __init__(self, start: Start, timeout_s: float, ended: Callable[[Done], object], *, quick: bool) -> None:
        self._start, self._ended = start, ended
        self._began, self._deadline = time.monotonic(), time.monotonic() + timeout_s
        self._process: Forked | Fresh = Forked(start) if quick else Fresh(start)
        self.pid = self._process.pid
        self._done: Done | None = None

    @property
    def said(self) -> str:
        """So far."""
        return _read(self._start.out) + _read(self._start.err)

    def line(self, timeout_s: float = 60.0) -> str:
        """The first line of its answer, once that is there."""
        deadline = time.monotonic() + timeout_s
        while "\n" not in _read(self._start.out):
            # a file cannot be waited for; the process can, and its end is the other way out
            assert not _over(self.pid, 0.1), f"it ended without a line\n{self.said}"
            assert time.monotonic() < deadline, f"no line of output\n{self.said}"
        return _read(self._start.out).splitlines()[0]

    def done(self) -> Done:
        """Wait for its end."""
        if self._done is None:
            words = f"rlctl {' '.join(self._start.arguments)}"
            assert _over(self.pid, self._deadline - time.monotonic()), f"{words} does not end\n{self.said}"
            code, peak_mib = self._process.collect()
            seconds = time.monotonic() - self._began
            self._done = Done(words, code, _read(self._start.out), _read(self._start.err), seconds, peak_mib)
            self._ended(self._done)
        return self._done

    def end(self) -> None:
        """Kill it, if it still lives."""
        if self._done is None:
            self._process.kill()


class Fresh:
    """`python -m rlctl` in a process of its own."""

    def __init__(self, start: Start) -> None:
        self._peak = start.out.with_suffix(".peak")
        self._peak.unlink(missing_ok=True)
        with start.out.open("w") as out, start.err.open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TELLING, str(self._peak), *start.arguments],
                cwd=start.folder, env=dict(start.env), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        self.pid = self._process.pid

    def collect(self) -> tuple[int, float]:
        """Exit code, and the most memory that it held in MiB; 0 of one that was killed."""
        code = self._process.wait()
        return code, int(_read(self._peak) or 0) / 1024

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Forked:
    """The same, from a server that forks."""

    def __init__(self, start: Start) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(IMPORTED))
        self._process = context.Process(target=_run, args=(start,))
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def collect(self) -> tuple[int, float]:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode, 0.0

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run(start: Start) -> None:
    """In the forked process: the command line, as `python -m rlctl` would run it."""
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.env)
    files = [Path(os.devnull), start.out, start.err]
    for number, (file, mode) in enumerate(zip(files, ("r", "w", "w"), strict=True)):
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    from rlctl.cli.context import World
    from rlctl.cli.main import run

    streams = [os.fdopen(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w"))]
    code = run(list(start.arguments), World(stdin=streams[0], stdout=streams[1], stderr=streams[2]))
    os._exit(code)


def _over(pid: int, timeout_s: float) -> bool:
    """Whether a process ends within the time."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], max(0.0, timeout_s))[0])
    finally:
        os.close(watched)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""
