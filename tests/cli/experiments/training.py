"""Runs of the memory target that train by themselves while a command waits."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from rlctl.backends.base import Failure, RunState
from rlctl.spec.layout import Layout
from tests.cli.conftest import MEASURED, Rlctl
from tests.support.memory import MemoryBackend

SPEC = """\
run: pole
env: {id: CartPole-v1}
algorithm: {name: impala, lr: 1e-3}
stop: {agent_steps: 1000}
"""
LOOKS = 4
"""Evaluations of one run, a second apart."""


class Training:
    """Every live run makes an evaluation a second, and finishes with the last.

    Args:
        mean: of the evaluation of a run at so many of LOOKS; None: the run fails.
    """

    def __init__(self, rlctl: Rlctl, mean: Callable[[RunState, int], float | None]) -> None:
        self._rlctl, self._mean = rlctl, mean
        self.done: dict[str, int] = {}  # run -> evaluations
        self.most = 0  # runs that trained at once
        self.busy = False
        self._life = 0
        self.go_on()

    @property
    def backend(self) -> MemoryBackend:
        return self._rlctl.backend

    def go_on(self) -> None:
        """After a command that was killed, and whatever was planned with it."""
        self._life += 1
        self._plan(self._life)

    def _plan(self, life: int) -> None:
        self._rlctl.at(self._rlctl.time_s + 1, lambda: self._step(life))

    def _step(self, life: int) -> None:
        if life != self._life:
            return
        self.busy = True
        live = [state for state in self.backend.runs() if state.phase == "running"]
        self.most = max(self.most, len(live))
        for state in live:
            self._train(state)
        self.busy = False
        self._plan(life)

    def _train(self, state: RunState) -> None:
        look = self.done[state.run] = self.done.get(state.run, 0) + 1
        mean = self._mean(state, look)
        if mean is None:
            text = "actor 0 exited 1 after 00:00:03: EnvError: step returned NaN reward"
            self.backend.fail(state.run, Failure("actor/0", text, (), datetime(2026, 11, 21, tzinfo=UTC)))
            return
        steps = look * 250
        evaluation = {**MEASURED, "mean": mean, "steps": steps}
        layout = self.backend.files_of.setdefault(state.run, Layout(self._rlctl.folder / "files" / state.run))
        layout.make()
        with (layout.results / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(evaluation) + "\n")
        before = self.backend.stored_status(state.run) or {}
        history = [*before.get("history", []), [steps, float(look), mean]]
        self._rlctl.report(
            state.run, evaluation=evaluation, history=history, models={"best": None, "goal": None},
            totals={"consumed_steps": steps},
        )  # fmt: skip
        if look == LOOKS:
            self.backend.finish(state.run, "agent_steps")


def rate(state: RunState) -> float:
    """Learning rate of a run."""
    return float(state.spec["algorithm"]["lr"])


def write(folder: Path, name: str = "pole.yaml", text: str = SPEC) -> str:
    (folder / name).write_text(text)
    return str(folder / name)
