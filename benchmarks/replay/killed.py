"""A run with a replay in shards that are killed, and the goals that it misses.

python -m benchmarks shards --form short
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.replay.soak import CORE, Soak, soak
from benchmarks.shared import plots, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Replay shards that are killed"
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


def measure(session: Session) -> None:
    form = session.choose(Soak(4, 2, 12.0, 4.0, 0.0), Soak(16, 4, 60.0, 15.0, 0.0), Soak(100, 4, 600.0, 60.0, 900.0))
    session.cell(form._asdict(), partial(soak, form), repeat=False)


def table(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    row = rows[-1]
    title = (
        f"**{row['actors']} light actors, {row['shards']} shards, one learner, {row['seconds']} s, a shard killed "
        f"every {row['kill_every_s']} s.**"
    )
    if row.get("failed"):
        return [f"{title} Failed: {row['failed']}."]
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
        ("agent steps learned from per second", tables.measured([row], "learned_from_per_s")),
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
    ]


def plot(rows: list[Row], path: Path) -> None:
    made, axes = plots.figure(1)
    if rows and not rows[-1].get("failed"):
        words = {"first": "before the first kill", "last": "at the end"}
        names = {f"{role}, {words[at]}": f"{role}_mib_{at}" for role in CORE for at in AT}
        shown = {shown: spread([float(rows[-1][name])]) for shown, name in names.items()}
        plots.bars(axes[0], shown, title="memory", unit="MiB (PSS)")
    plots.save(made, path)
