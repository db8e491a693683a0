"""Every part of the work alone, and the share of them that the whole reaches.

The whole cannot do more per CPU second than 1 / (1 / simulator + 1 / inference + 1 / learner): the sum of the parts.
Transport is an overhead, so it is beside that sum and not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.parts import PARTS
from benchmarks.peers import bench as peers
from benchmarks.peers.contenders import OURS, TASKS
from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Close to the limit"
WHOLE = "whole"
IN_THE_SUM = ("simulator", "inference", "learner")


def measure(session: Session) -> None:
    tasks = peers.wanted("RLCTL_BENCH_TASKS", session.choose(["cartpole"], ["pong"], list(OURS)))
    cells = [(task, part) for task in tasks for part in (*PARTS, WHOLE)]
    seconds = session.choose(1.0, 2.0, 10.0)
    for number, (task, part) in session.rounds(cells, session.choose(1, 1, 5)):
        keys = {"task": task, "part": part, "round": number}
        work = partial(peers.rlctl, session, OURS[task]) if part == WHOLE else partial(alone, part, task, seconds)
        session.cell(keys, work)


def alone(
    part: str, task: str, seconds: float, device: str = "cpu", *,
    tell: Callable[[float, float], object] = lambda *_: None,
) -> dict[str, Any]:  # fmt: skip
    """A part in a process of its own. `tell` is told when it was measured: two moments of the monotonic clock.

    Raises:
        RuntimeError: it failed.
    """
    told = in_a_process("benchmarks.parts", part, task, str(seconds), device)
    tell(told["began_s"], told["began_s"] + told["wall_s"])
    copied = {"copied_mb_per_s": told["bytes_copied"] / told["wall_s"] / 1e6} if told["bytes_copied"] else {}
    return rates(told) | copied


def in_a_process(module: str, *words: str, environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """The JSON line that a module prints last, run with one compute thread.

    Raises:
        RuntimeError: it failed.
    """
    path = os.pathsep.join(word for word in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if word)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **(environment or {})}
    done = subprocess.run(
        [sys.executable, "-m", module, *words], env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def rates(told: Mapping[str, float]) -> dict[str, Any]:
    """Figures of a `parts.Part` as it was printed."""
    return product.rates(product.Mark(0.0, 0.0, 0.0), product.Mark(told["wall_s"], told["steps"], told["cpu_s"]))


def bound(rates: dict[str, float]) -> float:
    """Agent steps per CPU second if nothing cost anything but the parts.

    Example:
        `bound({"simulator": 300, "inference": 300, "learner": 300})` is 100.
    """
    return 1 / sum(1 / rates[part] for part in IN_THE_SUM)


def shares(rows: list[Row], task: str) -> list[tuple[float, float, float]]:
    """Bound of the parts, and shares of it and of the simulator that the whole reaches, of every complete round."""
    found = []
    for number in store.distinct(rows, "round"):
        values = {
            part: store.kept(store.where(rows, task=task, part=part, round=number), "steps_per_cpu_s")
            for part in (*IN_THE_SUM, WHOLE)
        }
        if all(values.values()):
            rates = {part: some[0] for part, some in values.items()}
            limit, whole = bound(rates), rates[WHOLE]
            found.append((limit, whole / limit, whole / rates["simulator"]))
    return found


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for task in store.distinct(rows, "task"):
        body = [
            [part, *(tables.measured(found, column) for column in ("steps_per_s", "steps_per_cpu_s", "cores_used"))]
            for part in (*PARTS, WHOLE)
            if (found := store.where(rows, task=task, part=part))
        ]
        lines += [f"**{TASKS[task]}.** {told(shares(rows, task))}", ""]
        lines += [*tables.table(["", "agent steps/s", "per CPU s", "cores used"], body), ""]
    return lines


def told(found: list[tuple[float, float, float]]) -> str:
    """Share of the parts' sum that the whole reaches, in words.

    Example:
        `told([(100.0, 0.5, 0.2)])` begins with "The whole reaches 50 % (50-50) of the parts' sum".
    """
    if not found:
        return "No round has a figure that counts of every part."
    limit, of_sum, of_simulator = (spread(values) for values in zip(*found, strict=True))
    return (
        f"The whole reaches {100 * of_sum.median:.0f} % ({100 * of_sum.low:.0f}-{100 * of_sum.high:.0f}) of the parts' "
        f"sum ({tables.number(limit.median)} per CPU s) and {100 * of_simulator.median:.0f} % of the simulator alone."
    )


def plot(rows: list[Row], path: Path) -> None:
    tasks = store.distinct(rows, "task")
    made, axes = plots.figure(max(1, len(tasks)))
    for one, task in zip(axes, tasks, strict=False):
        values = {
            part: store.kept(store.where(rows, task=task, part=part), "steps_per_cpu_s") for part in (*PARTS, WHOLE)
        }
        shown = {("rlctl, whole" if part == WHOLE else part): spread(some) for part, some in values.items() if some}
        plots.bars(one, shown, title=TASKS[task], unit="agent steps per CPU second", log=True)
    plots.save(made, path)
