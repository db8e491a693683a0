"""The webhook service on this machine: hooks at a steady rate while it builds, and a push until its run is verified."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.ci.hooks import hooks
from benchmarks.ci.push import STAGES, WATCH_S, pushes
from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import Spread, spread
from benchmarks.shared.store import Row

TITLE = "CI"
RATE = 50.0
GOAL_P99_MS, GOAL_REDEPLOYED_S = 200.0, 15.0
HOOKS = ("hooks", "accepted", "other", "refused", "p50_ms", "p95_ms", "p99_ms", "max_ms", "cpu_ms_per_hook",
         "sender_cpu_ms_per_hook")  # fmt: skip
PUSHES = ("cold", "warm")


def measure(session: Session) -> None:
    seconds = session.choose(5.0, 20.0, 60.0)
    for number in range(session.choose(1, 1, 5)):
        session.cell({"what": "hooks", "round": number}, partial(hooks, RATE, seconds))
    for number in range(session.choose(1, 1, 5)):
        warm: list[dict[str, float]] = []
        cold = session.cell(
            {"what": "cold", "round": number}, partial(pushes, session.choose(1, 2, 3), warm), repeat=False
        )
        for figures in warm:  # measured within the same cell: the spins around it are theirs, too
            session.add(
                {"what": "warm", "round": number, **figures, "kept": cold["kept"], "kept_cpu": cold["kept_cpu"]}
            )


def table(rows: list[Row]) -> list[str]:
    found = store.where(rows, what="hooks")
    answered = [[name, tables.measured(found, name)] for name in HOOKS]
    stages = [*(f"{stage}_s" for stage in STAGES), "redeployed_s", "verified_s", "service_cpu_s", "roles_cpu_s"]
    pushed = [[name, *(tables.measured(store.where(rows, what=what), name) for what in PUSHES)] for name in stages]
    return [
        f"{RATE:g} signed hooks a second while the service builds; goal: none refused, p99 below {GOAL_P99_MS:g} ms. A "
        "hook's time counts from when it was due. `accepted` is 202, `refused` 5xx or no answer. The CPU of the "
        "service is that of its builds and their programs, too; the sender runs on the same cores.",
        "",
        *tables.table(["", "per window"], answered),
        "",
        f"A push to a training on this machine, from the hook on; goal: redeployed within {GOAL_REDEPLOYED_S:g} s, "
        "warm. Redeployed is when every replica runs the new code and has reported, verified after a watch of "
        f"{WATCH_S:g} s more (`verify.watch_s` of this run; the default is 30 s).",
        "",
        *tables.table(["", "first push of a service", "later ones"], pushed),
    ]  # fmt: skip


def plot(rows: list[Row], path: Path) -> None:
    made, (left, right) = plots.figure(2)
    found = store.where(rows, what="hooks")
    times = {name: store.kept(found, name) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")}
    plots.bars(left, _spreads(times), title=f"{RATE:g} hooks a second", unit="ms", log=True)
    warm = store.where(rows, what="warm")
    stages = {name: store.kept(warm, name) for name in (*(f"{stage}_s" for stage in STAGES), "redeployed_s")}
    plots.bars(right, _spreads(stages), title="a push, warm", unit="seconds")
    plots.save(made, path)


def _spreads(values: dict[str, list[float]]) -> dict[str, Spread]:
    return {name: spread(some) for name, some in values.items() if some}
