"""Replays in generations: cost of a shard's part, loss of training speed, and recovery of a run.

    python -m benchmarks saving --form short

Training is compared with itself: windows in which a generation is saved, each between two in which none is. A run loses
its power as benchmarks/replay/power.py says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.replay import power
from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.product import Run, Spec
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Saved replays"
EVERY_S = 60.0
"""checkpoint.every for which the lost share is calculated."""
WINDOW_S = 10.0
CASES = ("vectors", "frames")
COLUMNS = {
    "pause_ms": "ms that the shard stands still", "write_s": "s to write", "write_cpu_s": "CPU s to write",
    "bytes": "bytes",
    "speed_while_written": "its speed while it is written", "longest_draw_ms_while_written": "longest draw then, ms",
    "longest_insert_ms_while_written": "longest insertion then, ms", "restore_s": "s to read",
    "restore_cpu_s": "CPU s to read", "restore_half_s": "s to read into half the capacity",
    "restore_half_cpu_s": "CPU s to read into half the capacity",
}  # fmt: skip


def measure(session: Session) -> None:
    rows = {
        "vectors": session.choose(10_000, 1_000_000, 1_000_000), "frames": session.choose(2_000, 100_000, 100_000),
    }  # fmt: skip
    seconds, rounds = session.choose(0.2, 3.0, 5.0), session.choose(1, 2, 3)
    for number, case in session.rounds(CASES, rounds):
        session.plain({"case": case, "rows": rows[case], "round": number}, partial(alone, case, rows[case], seconds))
    held = {"vectors": session.choose(2_000, 200_000, 200_000), "frames": session.choose(500, 30_000, 100_000)}
    pairs = session.choose(1, 4, 8)
    for case in CASES:
        for saves in ("full", "none"):
            keys = {"case": "training", "what": case, "checkpoint": saves, "rows": held[case], "pairs": pairs}
            session.plain(keys, partial(training, case, saves, held[case], pairs))
    losses = session.choose(1, 5, power.LOSSES)
    for row in power.lose(losses, 0, session.say):
        session.add({"case": "power", **row, "held": not row["violations"]})


def alone(case: str, rows: int, seconds: float) -> dict[str, Any]:
    """A shard in a process of its own, its parts on the disk of this repository.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix=".parts-", dir=REPOSITORY / "build") as folder:
        command = [sys.executable, "-m", "benchmarks.replay.saved", case, str(rows), str(seconds), folder]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "load": round(os.getloadavg()[0], 2)}


def spec_of(case: str, saves: str, rows: int) -> Spec:
    """A replay of two shards, full before anything is learned."""
    frames = case == "frames"
    return {
        "run": "saving",
        "env": {"id": "benchmarks.envs.catch:catch" if frames else "CartPole-v1"},
        "algorithm": {"name": "apex_dqn"} | ({"batch_size": 64, "minibatch_size": 32} if frames else {}),
        "replay": {"capacity": rows, "learning_starts": rows, "checkpoint": saves},
        "roles": {
            "actor": {"replicas": 1, "envs": 16}, "evaluator": {"replicas": 0},
            "replay": {"replicas": 2, "memory": "2Gi"},
        },
        "checkpoint": {"every": "10h"},
    }  # fmt: skip


def training(case: str, saves: str, rows: int, pairs: int) -> dict[str, Any]:
    """Updates per second in windows with a generation and in those around them.

    Raises:
        RuntimeError, TimeoutError: it does not come up, or saves nothing.
    """
    with product.running(spec_of(case, saves, rows)) as run:
        product.wait_for_steps(run, rows + 1000, 900.0)
        time.sleep(WINDOW_S)
        lost_s, seconds, rates = list[float](), list[float](), list[float]()
        before = _window(run, WINDOW_S)
        for _ in range(pairs):
            updates, began = run.counter("learner", "updates"), time.monotonic()
            seconds.append(_save(run))
            time.sleep(max(0.0, began + WINDOW_S - time.monotonic()))
            window_s = time.monotonic() - began
            made = run.counter("learner", "updates") - updates
            after = _window(run, WINDOW_S)
            without = (before + after) / 2
            lost_s.append(window_s - made / without)
            rates.append(without)
            before = after
        folder = run.root / "checkpoints"
        sizes = sum(path.stat().st_size for path in folder.glob("*-replay*")) / max(len(list(folder.glob("g*"))), 1)
        return {
            "updates_per_s": float(np.median(rates)),
            "lost_s_of_a_generation": float(np.mean(lost_s)),
            "lost_s_error": float(np.std(lost_s, ddof=1) / len(lost_s) ** 0.5) if pairs > 1 else None,
            "saved_after_s": float(np.median(seconds)),
            "bytes": int(sizes),
            "lost_share": float(np.mean(lost_s)) / EVERY_S,
            "load": round(os.getloadavg()[0], 2),
        }


def _window(run: Run, seconds: float) -> float:
    """Updates per second."""
    began, updates = time.monotonic(), run.counter("learner", "updates")
    time.sleep(seconds)
    return (run.counter("learner", "updates") - updates) / (time.monotonic() - began)


def _save(run: Run) -> float:
    """Order a generation, and wait until it is committed; seconds."""
    folder, began = run.root / "checkpoints", time.monotonic()
    known = {path.name for path in folder.glob("generation-*")}
    run.control("/checkpoint")
    while {path.name for path in folder.glob("generation-*")} <= known:
        if time.monotonic() > began + 120.0:
            raise TimeoutError("a generation is not saved within 120 s")
        time.sleep(0.05)
    return time.monotonic() - began


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for case in CASES:
        found = store.where(rows, case=case)
        if not found:
            continue
        failed = "; ".join(row["failed"] for row in found if row.get("failed"))
        body = [[what, tables.measured(found, column)] for column, what in COLUMNS.items()]
        what = (
            f"**A shard of {int(found[0]['rows']):,} rows, {case}.** {f'Failed: {failed}.' if failed else ''}".rstrip()
        )
        lines += [what, "", *tables.table(["", "median (lowest-highest)"], body), ""]
    trained = store.where(rows, case="training")
    if trained:
        body = [_trained(row) for row in trained]
        head = ["rows of two shards", "checkpoint", "updates / s", "bytes", "s until it is committed"]
        head += ["s of training lost to a generation", f"share lost with checkpoint.every {EVERY_S:g}s"]
        lines += ["**Training lost.**", "", *tables.table(head, body), ""]
    losses = store.where(rows, case="power")
    if losses:
        head = list(power.SHOWN.values())
        body = [[row[name] for name in power.SHOWN] for row in losses]
        good = sum(row["held"] == "1" for row in losses)
        what = f"**{len(losses)} losses of power, CartPole with Ape-X DQN: {good} came back as they should.**"
        apart = sorted({row["measured"] for row in losses if row.get("measured")})
        lines += [what, *(f"Measured by {one}." for one in apart), "", *tables.table(head, body), ""]
    return [
        *lines,
        "A shard's speed is that of draws of 512 rows with their priorities and a block of 512 rows with each eighth, "
        "as fast as they are answered, by one thread. The file is on the disk, not only in the kernel's memory, when "
        "it counts as written, and the kernel was asked to forget it before it is read. Training is compared with "
        f"windows of {WINDOW_S:g} s around each generation; with `none` a generation is the learner's part alone. "
        "Vectors are of 8 float32 (4 in training), frames stacks of 4 of 84x84 bytes.",
    ]


def _trained(row: Row) -> list[str]:
    what = f"{int(row['rows']):,}, {row['what']}"
    if row.get("failed"):
        return [what, row["checkpoint"], row["failed"], "", "", "", ""]
    error = f" ± {tables.number(float(row['lost_s_error']))}" if row.get("lost_s_error") else ""
    return [
        what, row["checkpoint"], tables.number(float(row["updates_per_s"])), f"{int(row['bytes']):,}",
        tables.number(float(row["saved_after_s"])), tables.number(float(row["lost_s_of_a_generation"])) + error,
        f"{float(row['lost_share']):.1%}",
    ]  # fmt: skip


def plot(rows: list[Row], path: Path) -> None:
    shown = {"write_s": "s to write", "restore_s": "s to read"}
    made, axes = plots.figure(len(shown))
    for one, (column, unit) in zip(axes, shown.items(), strict=True):
        values = {case: store.kept(store.where(rows, case=case), column) for case in CASES}
        found = {f"rlctl, {case}": spread(some) for case, some in values.items() if some}
        plots.bars(one, found, title="a shard's part", unit=unit)
    plots.save(made, path)
