"""Replay buffers alone: rows inserted and drawn per CPU second, beside those of other libraries.

    python -m benchmarks replay --form short

Buffers are each in a process of their own with one thread, full before they are measured; CPU is that of the process,
and no learner runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import venvs
from benchmarks.replay.buffers import BATCH, CASES, CONTENDERS, STEPS, STREAMS
from benchmarks.shared import plots, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Replay buffers"
SCRIPT = Path(__file__).parent / "buffers.py"
PEERS = {"cpprb": "cpprb 11.0.0", "sb3": "SB3 2.9.2", "cleanrl": "CleanRL fe8d8a0"}
NOT_HERE = {
    "Reverb": "0.14.0 is installed, and its import fails: it needs TensorFlow",
    "torchrl": "the C++ part with its sum trees does not load with torch 2.13.0, in none of 0.12.0 to 0.14.1 "
    "(undefined symbols); `PrioritizedSampler` raises",
}
GOALS = {
    "vectors": "a draw and its update of 512 rows in at most 300 us",
    "frames": "finding the rows takes at most 20 % of a draw",
}
COLUMNS = {
    "inserts_per_cpu_s": "rows inserted per CPU s", "samples_per_cpu_s": "rows drawn per CPU s",
    "cpu_us_of_both": "us of draw and update", "cpu_share_of_index": "share of index",
    "computed_mib": "MiB computed", "grown_mib": "MiB that it took", "peak_mib": "MiB of the process",
}  # fmt: skip


def measure(session: Session) -> None:
    rows = {
        "vectors": session.choose(10_000, 1_000_000, 1_000_000), "frames": session.choose(2_000, 50_000, 200_000),
    }  # fmt: skip
    seconds = session.choose(0.2, 1.0, 5.0)
    try:
        peers: Path | None = venvs.ready("buffers")
    except venvs.Missing as missing:
        session.say(f"peers: {missing}")
        peers = None
        for who in PEERS.values():
            session.add({"case": "", "who": who, "missing": str(missing)})
    cells = [(case, who) for case in CASES for who in CONTENDERS if who not in PEERS or peers is not None]
    for number, (case, who) in session.rounds(cells, session.choose(1, 1, 5)):
        keys = {"case": case, "who": PEERS.get(who, who), "rows": rows[case], "round": number}
        session.cell(keys, partial(alone, who, case, rows[case], seconds, peers))


def alone(who: str, case: str, rows: int, seconds: float, peers: Path | None) -> dict[str, Any]:
    """A buffer in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    words = [case, str(rows), str(seconds)]
    command = [sys.executable, "-m", "benchmarks.replay.buffers", who, *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if who in PEERS:
        assert peers is not None
        command = [venvs.python(peers), str(SCRIPT), who, *words]
        env["SOURCE"] = str(peers / "source")
    done = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for case in CASES:
        found = store.where(rows, case=case)
        if not found:
            continue
        body = [
            [who, *(tables.measured(store.where(found, who=who), column) for column in COLUMNS)]
            for who in ranked(found)
        ]
        what = f"**{case.capitalize()}, {int(found[0]['rows']):,} rows.** Goal: {GOALS[case]}."
        lines += [what, "", *tables.table(["", *COLUMNS.values()], body), ""]
    missing = {row["who"]: row["missing"] for row in rows if row.get("missing")} | NOT_HERE
    failed = {
        f"{row['who']}, {row['case']}": row["failed"] for row in rows if row.get("failed") and row["case"] in CASES
    }
    lines += ["Missing: " + "; ".join(f"{who}: {why}" for who, why in (missing | failed).items()) + ".", ""]
    return [
        *lines,
        f"Draws are of {BATCH} rows. rlctl gets blocks of {STREAMS} streams x {STEPS} steps, as an actor sends them, "
        "and draws windows of one step (n 3: of three) that its tree finds by priority; where there are shards, all "
        "are in this one process, and each keeps its part of the rows. cpprb gets as many rows at once, draws by "
        f"priority and adds weights; SB3 and CleanRL get {STREAMS} rows at once, draw evenly and make tensors. Vectors "
        "are 8 float32, frames stacks of 4 of 84x84 bytes: rlctl and cpprb keep each frame once, SB3 and CleanRL each "
        "stack.",
    ]


def ranked(rows: list[Row]) -> list[str]:
    """Contenders in the order of CONTENDERS, rlctl first."""
    order = [PEERS.get(who, who) for who in CONTENDERS]
    return sorted(store.distinct(rows, "who"), key=order.index)


def plot(rows: list[Row], path: Path) -> None:
    cases = [case for case in CASES if store.where(rows, case=case)]
    made, axes = plots.figure(max(1, len(cases)))
    for one, case in zip(axes, cases, strict=False):
        found = store.where(rows, case=case)
        values = {who: store.kept(store.where(found, who=who), "samples_per_cpu_s") for who in ranked(found)}
        shown = {who: spread(some) for who, some in values.items() if some}
        plots.bars(one, shown, title=case, unit="rows drawn per CPU second")
    plots.save(made, path)
