"""The command line on the memory target: a clock of its own, streams of its own, no process and no waiting."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import LogRecord
from rlctl.cli.context import World
from rlctl.cli.main import run
from rlctl.probe import Probed
from rlctl.spec import Machine, Spec
from tests.support.memory import MemoryBackend

GOLDEN = Path(__file__).parent / "golden"
START = datetime(2026, 11, 21, 4, 0, 0, tzinfo=UTC)

SPEC = """\
run: pole
env: {id: CartPole-v1}
algorithm: {name: impala, lr: 1e-3}
roles: {actor: {replicas: 2, envs: 8}}
stop: {eval_return: 475}
"""

LEDGER = {"produced": 76800, "consumed": 76000, "dropped": 0, "stale": 160, "fenced": 0, "invalid": 0, "lost": 0}
MEASURED: dict[str, Any] = {
    "mean": 212.34,
    "std": 41.5,
    "min": 98.0,
    "max": 301.0,
    "episodes": 100,
    "mode": "greedy",
    "ref": {"policy": "main", "lineage": 1, "version": 96},
    "steps": 61440,
    "wall_s": 10.1,
    "confirms": False,
}
STATUS: dict[str, Any] = {
    "apiVersion": "rlctl/v1",
    "term": 1,
    "phase": "running",
    "time": START.timestamp() + 12,
    "wall_s": 12.3,
    "cpu_s": {"learner": 9.5, "actor": 14.0, "manager": 0.5},
    "verdict": {
        "kind": "actor-bound",
        "text": "actor-bound: the learner waits for experience 61 % of the time",
        "learner_waits_data": 0.61,
        "actor_waits_credit": 0.0,
        "actor_waits_model": 0.02,
        "suggest": "rlctl scale actor=3",
    },
    "throughput": {
        "env_steps_per_s": 14200.0,
        "frames_per_s": 14200.0,
        "agent_steps_per_s": 14200.0,
        "consumed_steps_per_s": 12100.0,
        "learned_steps_per_s": 12100.0,
        "updates_per_s": 18.9,
    },
    "totals": {
        "env_steps": 76800,
        "frames": 76800,
        "agent_steps": 76800,
        "consumed_steps": 76000,
        "learned_steps": 76000,
        "updates": 118,
        "episodes": 1204,
    },
    "lag": {"mean": 1.25, "p95": 3.0, "max": 5.0},
    "train_return": {"mean": 133.1, "episodes": 100},
    "evaluation": MEASURED,
    "evaluations": {"sample": {**MEASURED, "mode": "sample", "mean": 187.5}, "greedy": MEASURED},
    "models": {
        "best": {
            "version": 96,
            "evaluation": MEASURED,
            "other": None,
            "goal": None,
            "policy": "models/main-l0001-v96.json",
            "tensors": "models/main-l0001-v96.safetensors",
        },
        "goal": None,
    },
    "cadence": {"stated_s": None, "every_s": 14.2, "cpu_share": 0.083},
    "history": [[20480, 4.0, 22.5], [40960, 7.0, 98.25], [61440, 10.1, 212.34]],
    "stop": {"conditions": {"eval_return": 475.0}, "met": None},
    "policies": {
        "main": {
            "ref": {"policy": "main", "lineage": 1, "version": 118},
            "ledger": {**LEDGER, "in_flight": 640, "balanced": True},
        }
    },
    "roles": {
        "actor": [
            {
                "index": index,
                "boot": f"{index:016x}",
                "joined": True,
                "age_s": 11.0,
                "silent_s": 0.4,
                "model": {"policy": "main", "lineage": 1, "version": 117},
                "env_steps_per_s": 7100.0,
            }
            for index in range(2)
        ],
        **{
            role: [
                {
                    "index": 0,
                    "boot": boot * 16,
                    "joined": True,
                    "age_s": 11.0,
                    "silent_s": 0.2,
                    "model": {"policy": "main", "lineage": 1, "version": version},
                }
            ]
            for role, boot, version in (("modelpool", "a", 118), ("learner", "b", 118), ("evaluator", "e", 96))
        },
    },
    "checkpoint": {"number": 1, "version": 90, "steps": 57600, "age_s": 3.2},
    "resumed": None,
    "problems": [],
}


class Stream(io.StringIO):
    """A stream that is a terminal when told so."""

    def __init__(self, text: str = "", *, terminal: bool = False) -> None:
        super().__init__(text)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@dataclass(frozen=True)
class Result:
    """Answer of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The documents on standard output, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Check:
    """Stands for the child that tries the environment: it has its answer at once, and no process."""

    def __init__(self, answer: Probed) -> None:
        self._answer = answer
        self.asked = self.over = False

    def __enter__(self) -> Check:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    def answer(self) -> Probed:
        self.asked = True
        return self._answer


class Rlctl:
    """`rlctl(...)` runs one command line; `at` plans what happens while it waits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time_s = 0.0
        self.environ: dict[str, str] = {"TERM": "xterm", "NO_COLOR": "1"}
        self.backend = MemoryBackend(now=self.now, wait=self._wait, storage=Path("/data"))
        self.targets: dict[str, str | Callable[[], Any]] = {"local": lambda: self.backend}
        self.registries = True  # are asked for images; clusters in memory have none
        self.browsed: list[str] = []
        self.probed = Probed(
            "ok",
            "CartPole-v1: obs float32 [4] -> mlp",
            inputs={"main": [{"leaf": "obs", "space": "float32 [4]", "net": "mlp"}]},
        )
        self.checks: list[Check] = []
        self.initials: list[Any] = []
        self._planned: list[tuple[float, Callable[[], object]]] = []
        self.spec = str(self.write("pole.yaml", SPEC))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def now(self) -> datetime:
        return START + timedelta(seconds=self.time_s)

    def at(self, time_s: float, event: Callable[[], object]) -> None:
        """Plan an event; the time is that of the commands, which begins at 0."""
        self._planned.append((time_s, event))

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds
        assert self.time_s < 10_000, "the command waits for something that never happens"
        due = [event for time_s, event in self._planned if time_s <= self.time_s]
        self._planned = [(time_s, event) for time_s, event in self._planned if time_s > self.time_s]
        for event in due:
            event()

    def _wait(self) -> bool:
        self.sleep(0.5)
        return bool(self._planned)

    def __call__(self, *arguments: str, terminal: bool = False, answer: str = "", width: int | None = None) -> Result:
        out, err = Stream(terminal=terminal), Stream(terminal=terminal)
        world = World(
            stdout=out,
            stderr=err,
            stdin=Stream(answer, terminal=terminal),
            environ=self.environ,
            targets=self.targets,
            clock=lambda: self.time_s,
            sleep=self.sleep,
            now=self.now,
            width=width,
            machine=Machine(cores=16, memory_mib=65536),
            browse=self.browsed.append,
            probe=self._probe,
        )
        if not self.registries:
            world.label = lambda environ, image, name: ""
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments, world)
        return Result(code, out.getvalue(), err.getvalue())

    def _probe(self, spec: Spec, base: Path, initial: Any) -> Any:
        self.initials.append(initial)
        self.checks.append(Check(self.probed))
        return self.checks[-1]

    def up(self, *more: str, run: str = "pole") -> None:
        """A run that trains."""
        assert self("up", self.spec, "-d", "--set", f"run={run}", *more).code == 0
        self.report(run)

    def report(self, run: str = "pole", **status: Any) -> None:
        state = self.backend.find(run)
        assert state is not None
        self.backend.report(run, {**STATUS, "run": run, "uid": state.uid, **status})

    def log(self, process: str, message: str, *, ago_s: float = 0.0, level: str = "INFO", **extra: Any) -> None:
        record = LogRecord(self.now() - timedelta(seconds=ago_s), level, process, message, extra)
        self.backend.say("pole", record)


@pytest.fixture
def rlctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rlctl]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield Rlctl(tmp_path)
    monkeypatch.undo()
    time.tzset()


def check_golden(name: str, text: str, *, folder: Path) -> None:
    """Compare with the stored text; `RLCTL_REWRITE_GOLDEN=1 pytest` stores it instead."""
    path = GOLDEN / name
    text = text.replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
    text = re.sub(r"Python 3\.[0-9.]+(rc\d+)?|\"3\.[0-9.]+\"", "Python 3", text)
    if os.environ.get("RLCTL_REWRITE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing; RLCTL_REWRITE_GOLDEN=1 writes it"
    assert text == path.read_text(), f"{path.name} differs; RLCTL_REWRITE_GOLDEN=1 rewrites it when that is meant"
