"""Replay buffers alone: rows inserted and drawn per CPU second, beside those of other libraries; and a run with shards
that are killed.

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
from benchmarks.replay.soak import CORE, Soak, soak
from benchmarks.shared import plots, store, tables
from benchmarks.shared.host import REPOSITORY, processor
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
FIGURES = (
    "kills",
    "not_recovered",
    "recovery_p50_s",
    "recovery_p95_s",
    "learned_from_per_s",
    "longest_pause_s",
    "produced",
    "lost",
    "fenced",
    "balanced",
    "limiter_error_at_end",
    "limiter_error_most",
)
AT = ("first", "last")
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
    form = session.choose(Soak(4, 2, 12.0, 4.0, 0.0), Soak(16, 4, 60.0, 15.0, 0.0), Soak(100, 4, 600.0, 60.0, 900.0))
    keys = {"case": "soak", "who": "rlctl", "machine": processor(), **form._asdict()}
    session.cell(keys, partial(soak, form), repeat=False)
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
    lines += [line for row in store.where(rows, case="soak")[-1:] for line in soaked(row)]
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


def soaked(row: Row) -> list[str]:
    """The run with shards that are killed, and the goals that it does not reach."""
    title = (
        f"**{row['actors']} light actors, {row['shards']} shards, one learner, {row['seconds']} s, a shard killed "
        f"every {row['kill_every_s']} s, on {row['machine']}.**"
    )
    if row.get("failed"):
        return [f"{title} Failed: {row['failed']}.", ""]
    value = {name: float(row[name]) for name in (*FIGURES, *(f"{role}_mib_{at}" for role in CORE for at in AT))}
    grown = {role: value[f"{role}_mib_last"] / value[f"{role}_mib_first"] - 1 for role in CORE}
    goals = {
        "the ledger does not balance": value["balanced"] == 1,
        "samples per insert are off by over 2 %": value["limiter_error_most"] <= 0.02,
        "a shard is not back": value["not_recovered"] == 0 < value["kills"],
        **{f"{role} has grown by {more:.0%}": more <= 0.05 for role, more in grown.items()},
    }
    missed = [what for what, holds in goals.items() if not holds]
    facts = [
        ("shards killed", f"{value['kills']:.0f}"),
        ("s from SIGKILL until a new process of the shard is there: median, 95 %",
         f"{value['recovery_p50_s']:.1f}, {value['recovery_p95_s']:.1f}"),
        ("agent steps learned from per second", f"{value['learned_from_per_s']:,.0f}"),
        ("longest time without one, s", f"{value['longest_pause_s']:.1f}"),
        ("error of samples per insert: at the end, most on the way",
         f"{value['limiter_error_at_end']:.2%}, {value['limiter_error_most']:.2%}"),
        ("rows produced, lost, fenced", f"{value['produced']:,.0f}, {value['lost']:,.0f}, {value['fenced']:,.0f}"),
        *((f"MiB (PSS) of {role}: before the first kill, at the end",
           f"{value[f'{role}_mib_first']:,.0f}, {value[f'{role}_mib_last']:,.0f}") for role in CORE),
    ]  # fmt: skip
    verdict = "; ".join(missed) or "the ledger balances, samples per insert stay within 2 %, memory within 5 %"
    return [
        f"{title} {verdict[0].upper()}{verdict[1:]}.",
        "",
        *tables.table(["", "value"], [list(one) for one in facts]),
        "",
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
