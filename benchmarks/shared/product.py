"""Runs of rlctl itself, each in a state folder of its own, through the command line that a user types."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.shared import processes
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.signals import uninterrupted

Spec = dict[str, Any]
SITTINGS = "sittings"
"""File in the folder of a run that is kept: a line, with the mark of the code, each time that it was gone on with."""
PREFIX = "rlb-"
"""Prefix of the folders of runs."""


class Run:
    """One run of the product on this machine. Made by `running`."""

    def __init__(self, folder: Path, spec: Spec, path: str) -> None:
        self.folder = folder
        self.name = str(spec["run"])
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("RLCTL_", "XDG_"))}
        runtime = folder / "r"
        runtime.mkdir(mode=0o700, exist_ok=True)
        self.env |= {"XDG_STATE_HOME": str(folder / "s"), "XDG_RUNTIME_DIR": str(runtime), "NO_COLOR": "1"}
        self.env["PYTHONPATH"] = path
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))

    def rlctl(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """Run a command; returns its output.

        Raises:
            RuntimeError: it failed.
        """
        done = subprocess.run(
            [sys.executable, "-m", "rlctl", *arguments], cwd=self.folder, env=self.env, timeout=timeout_s,
            text=True, capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"rlctl {' '.join(arguments)}: exit {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def up(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """`rlctl up spec.yaml`."""
        return self.rlctl("up", "spec.yaml", *arguments, timeout_s=timeout_s)

    def down(self) -> bool:
        """End it, and say whether that worked; a run that has ended stays as it is."""
        try:
            self.rlctl("down", self.name)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def status(self) -> dict[str, Any]:
        """As `rlctl status -o json` says."""
        found: dict[str, Any] = json.loads(self.rlctl("status", self.name, "-o", "json"))
        return found

    @property
    def root(self) -> Path:
        """The folder of the run.

        Raises:
            RuntimeError: it has never been up.
        """
        for found in (self.folder / "s" / "rlctl" / "runs").glob(f"{self.name}-*"):
            return found
        raise RuntimeError(f"run {self.name} has no folder")

    def stored(self) -> dict[str, Any]:
        """The status that the manager wrote last: about once a second, without starting a process."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads((self.root / "results" / "status.json").read_text())
            return found
        return {}

    def ended(self) -> bool:
        """Whether the run has finished by itself, its last status written.

        Raises:
            RuntimeError: it has stopped before that.
        """
        phase = self.stored().get("phase")
        if phase in ("finished", "failed"):
            time.sleep(1.0)  # the last status is written once more
            return True
        if phase is not None and not self.supervisor():
            raise RuntimeError("; ".join(problem["text"] for problem in self.status()["problems"]) or "it has stopped")
        return False

    def supervisor(self) -> list[int]:
        """The process above all roles."""
        roles = [pid for pid in processes.mentioning(str(self.root)) if "rlctl_agents" in processes.command_line(pid)]
        parents = {found.parent for pid in roles if (found := processes.stat(pid)) is not None}
        return [pid for pid in parents if pid > 1]

    def pids(self, role: str) -> list[int]:
        """Live processes of a role."""
        return [
            pid for pid in processes.mentioning(str(self.root))
            if f"rlctl_agents {role} " in processes.command_line(pid)
        ]  # fmt: skip

    def cpu_s(self) -> float:
        """CPU seconds of all roles and the supervisor so far."""
        return processes.cpu_s(self.supervisor())

    def counter(self, role: str, name: str, index: int = 0) -> float:
        """A counter of one process, as of now.

        Raises:
            RuntimeError: it does not answer, or has no such counter.
        """
        paths = sorted((self.folder / "r").rglob(f"{role}-{index}.probe"))
        if not paths:
            raise RuntimeError(f"{role} {index} has no probe listener")
        found = re.search(rf"^rlctl_{role}_{name}_total\S* (\S+)$", _get(paths[0], "/metrics"), re.MULTILINE)
        if found is None:
            raise RuntimeError(f"{role} {index} does not count {name}")
        return float(found[1])

    def control(self, path: str) -> None:
        """Give the manager an order.

        Raises:
            RuntimeError: it does not answer, or refuses.
        """
        for found in (self.folder / "r").rglob("manager-0.control"):
            _get(found, path, "POST", "{}")
            return
        raise RuntimeError("there is no manager to give orders to")


@contextlib.contextmanager
def running(spec: Spec, *arguments: str, path: str = "") -> Iterator[Run]:
    """A run that is up, and down and gone afterwards.

    Args:
        spec: of the run, without storage.
        arguments: of `rlctl up`; by default it returns at once.
        path: in front of PYTHONPATH.

    Raises:
        RuntimeError: it does not come up.
        LeftOver: it could not be ended; its folder stays.
    """
    with made(spec, path=path) as run:
        try:
            run.up(*(arguments or ("--detach",)))
            yield run
        finally:
            end(run)


def end(run: Run) -> None:
    """End a run whatever signals come meanwhile.

    Raises:
        LeftOver: it could not be ended, so its processes may live on.
    """
    with uninterrupted():
        if not run.down():
            raise LeftOver(f"the run in {run.folder} is left over and cannot be ended")


@contextlib.contextmanager
def made(spec: Spec, *, path: str = "") -> Iterator[Run]:
    """A run that is not started yet. Its folder goes with the block, but stays where that leaves a run over."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))  # short: sockets have short names
    is_left = False
    try:
        yield Run(folder, spec, _joined(path))
    except LeftOver:
        is_left = True
        raise
    finally:
        if not is_left:
            shutil.rmtree(folder)


def _joined(path: str = "") -> str:
    """PYTHONPATH of a run, with this in front."""
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(word for word in (path, str(REPOSITORY), inherited) if word)


@contextlib.contextmanager
def kept(folder: Path, spec: Spec, mark: str) -> Iterator[tuple[Run, int]]:
    """A run in a folder that stays when the block is left by an exception, so that it can be gone on with.

    Args:
        folder: of this run alone, with a short path: sockets have short names.
        mark: of the code; the run goes on by no other.

    Yields:
        The run, not started yet or any more, and how often it was gone on with before.

    Raises:
        LeftOver: the folder holds a run of another mark.
    """
    folder.mkdir(parents=True, exist_ok=True)
    marks = folder / SITTINGS
    before = marks.read_text().split() if marks.exists() else []
    if set(before) - {mark}:
        raise LeftOver(f"{folder} holds a run of other code or of another spec; remove it to begin anew")
    marks.write_text("\n".join([*before, mark]) + "\n")
    yield Run(folder, spec, _joined()), len(before)
    shutil.rmtree(folder)


class LeftOver(RuntimeError):
    """A run that cannot be ended: its processes may live on, and its folder stays."""


def remove(folder: Path) -> None:
    """End the run of a killed starter, and remove its folder unless it is kept. A folder that is not there, or not of
    `made`, is left.

    Raises:
        LeftOver: it could not be ended, so its processes may live on, and the folder stays.
    """
    try:
        spec = yaml.safe_load((folder / "spec.yaml").read_text())
    except OSError:
        return
    made_here, is_kept = folder.name.startswith(PREFIX), (folder / SITTINGS).exists()
    if made_here or is_kept:
        was_up = any((folder / "s" / "rlctl" / "runs").glob("*"))
        if was_up and not Run(folder, spec, "").down():
            raise LeftOver(f"the run in {folder} is left over and cannot be ended")
    if made_here and not is_kept:
        shutil.rmtree(folder, ignore_errors=True)


class Mark(NamedTuple):
    """Progress of a training at one moment."""

    at_s: float
    steps: float
    cpu_s: float


def mark(run: Run) -> Mark:
    """Rows that the learner has consumed, and the CPU of everything, as of now."""
    return Mark(time.monotonic(), run.counter("learner", "consumed_steps"), run.cpu_s())


def edge(marked: Callable[[], Mark], timeout_s: float = 30.0) -> Mark:
    """The moment at which the learner has just made an update: a window between two of them holds whole batches.

    Raises:
        TimeoutError: it makes none.
    """
    before = marked()
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = marked()
        if now.steps > before.steps:
            return now
        time.sleep(0.005)
    raise TimeoutError(f"no update for {timeout_s:g} s")


def wait_for_steps(run: Run, steps: float, timeout_s: float) -> Mark:
    """Until the learner has consumed so many agent steps.

    Raises:
        TimeoutError: it has not in time.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(RuntimeError, OSError):
            reached = mark(run)
            if reached.steps >= steps:
                return reached
        time.sleep(0.2)
    raise TimeoutError(f"run {run.name} has not consumed {steps:g} agent steps within {timeout_s:g} s: {_why(run)}")


def rates(first: Mark, last: Mark) -> dict[str, float]:
    """Per second, per CPU second, and cores used, between two marks."""
    wall_s, cpu_s, steps = last.at_s - first.at_s, last.cpu_s - first.cpu_s, last.steps - first.steps
    return {
        "steps_per_s": steps / wall_s,
        "steps_per_cpu_s": steps / cpu_s if cpu_s else 0.0,
        "cores_used": cpu_s / wall_s,
        "window_s": wall_s,
    }


def _why(run: Run) -> str:
    problems = run.stored().get("problems", [])
    return "; ".join(problem["text"] for problem in problems) or "no problem is known"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5.0)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(5.0)
        self.sock.connect(self._path)


def _get(path: Path, target: str, method: str = "GET", body: str | None = None) -> str:
    connection = _UnixConnection(path)
    try:
        connection.request(method, target, body, {} if body is None else {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        if method == "POST" and answer.status != 200:
            raise RuntimeError(f"{path.name}: {answer.status}: {text}")
        return text
    except (OSError, http.client.HTTPException) as error:
        raise RuntimeError(f"{path.name}: {error}") from error
    finally:
        connection.close()
