"""Learning curves with each part of the fast path switched off, on the same number of steps: do they change?

Catch from pixels (benchmarks/envs/catch.py) with the network of Pong, many seeds. Compared are the mean return of the
last model, and the area under the curve: the mean over all steps of what models of so many steps return, in 100 greedy
episodes each; no area where evaluations lie further apart than WIDEST. Equivalence: two one-sided Welch tests, margin
5 % of the range of returns, which is 2.

A learning rate of a hundredth is there too. Its curve has to differ, or the test has no power.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.asynchronous import until_done
from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread, tost
from benchmarks.shared.store import Row
from rlctl.statistics import bootstrap, iqm

TITLE = "What is learned without each part"
WHOLE = "as it is"
MARGIN = 0.05 * 2
LIMIT_S = 300.0
WIDEST = 0.05
"""Gap between evaluations, as a share of all steps, up to which an area counts. They are due by seconds: where fewer
come, the area is that of the evaluator's cadence."""
WITHOUT: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "without bf16": {"model": {"precision": "fp32"}},
    "every stack sent whole": {"env": "whole_stacks"},
    "batches stacked from lists": {"algorithm": "benchmarks.envs.listed:Listed"},
    "games stepped one by one": {"env": "one_by_one"},
    "a hundredth of the learning rate": {"hyper": {"lr": 6e-6}},
}
"""Variant, by the part that is switched off -> fields that do so. The last one switches nothing off."""
COLUMNS = {"mean_return": "return of the last model", "area": "area under the curve"}


def measure(session: Session) -> None:
    seeds, rows = session.choose((1, 2_000), (1, 12_000), (10, 50_000))
    names = session.choose([WHOLE], [WHOLE, "without bf16"], list(WITHOUT))
    for seed, name in session.rounds(names, seeds):
        session.cell({"variant": name, "seed": seed}, partial(train, name, seed, rows), repeat=False)


def spec_of(variant: str, seed: int, rows: int) -> dict[str, Any]:
    """Catch as specs/pong-impala.yaml trains Pong, until so many agent steps."""
    changed = WITHOUT[variant]
    hyper = {
        "lambda": 1.0, "optimizer": "rmsprop", "lr": 6e-4, "optimizer_eps": 1e-5, "max_grad_norm": 0.5,
        "entropy_coef": 0.01,
        **changed.get("hyper", {}),
    }  # fmt: skip
    name = changed.get("algorithm", "impala")
    return {
        "run": "curve",
        "seed": seed,
        "env": {"id": f"benchmarks.envs.catch:{changed.get('env', 'catch')}"},
        "algorithm": {
            "name": name, "unroll_length": 20, "batch_size": 320, "gamma": 0.99, "publish_every_updates": 2,
            "max_lag_versions": 8,
            **(hyper if name == "impala" else {"params": hyper}),
        },
        "model": {"torso": "nature_cnn", "width": 512, **changed.get("model", {})},
        "roles": {"actor": {"replicas": 1, "envs": 16}},
        "evaluation": {"episodes": 100, "every": "2s", "envs": 20},
        "stop": {"agent_steps": rows, "wall_time": LIMIT_S},
    }  # fmt: skip


def train(variant: str, seed: int, rows: int) -> dict[str, Any]:
    """One run: the return of its last model, and its curve.

    Raises:
        RuntimeError: it failed.
        TimeoutError: it was not done in time.
    """
    with product.running(spec_of(variant, seed, rows)) as run:
        until_done(run, None)
        status = run.stored()
        told = (run.root / "results" / "evaluations.jsonl").read_text()
    if status["phase"] != "finished":
        raise RuntimeError(f"ended as {status['phase']}")
    counts = status["evaluation"]["mode"]
    points = {found["steps"]: found["mean"] for found in map(json.loads, told.splitlines()) if found["mode"] == counts}
    last = max(points)
    if last < rows:
        raise RuntimeError(f"the last evaluation is of a model of {last} agent steps")
    return {
        "mean_return": points[last], "area": area(points, rows), "points": len(points), "gap": gap(points, rows),
        "rows": last, "wall_s": status["wall_s"], "cpu_s": sum(status["cpu_s"].values()),
    }  # fmt: skip


def area(points: dict[int, float], rows: int) -> float:
    """Mean over `rows` of the straight lines between the points; flat before the first and after the last.

    Example:
        `area({0: -1.0, 100: 1.0}, 200)` is 0.5.
    """
    at = np.linspace(0, rows, 1001)
    along = sorted(points)
    return float(np.trapezoid(np.interp(at, along, [points[one] for one in along]), at) / rows)


def gap(points: Iterable[int], rows: int) -> float:
    """Largest gap between two evaluations, from the beginning and to the end, as a share of all steps.

    Example:
        `gap([0, 50, 200], 200)` is 0.75.
    """
    along = sorted({0, *points, rows})
    return max(after - before for before, after in pairwise(along)) / rows


def widest(rows: list[Row], variant: str) -> float:
    """Largest gap of any seed; of rows that were stored without it, the least that it can be with so many points."""
    found = [row for row in store.where(rows, variant=variant) if row.get("area")]
    return max((float(row.get("gap") or 1 / max(1, int(row["points"]) - 1)) for row in found), default=0.0)


def values(rows: list[Row], variant: str, column: str) -> list[float]:
    """Figures of every seed that ended; other load on the machine does not change them. No area that does not count."""
    if column == "area" and widest(rows, variant) > WIDEST:
        return []
    return [float(row[column]) for row in store.where(rows, variant=variant) if row.get(column)]


def table(rows: list[Row]) -> list[str]:
    body = []
    for variant in store.distinct(rows, "variant"):
        failed = sorted({row["failed"] for row in store.where(rows, variant=variant) if row.get("failed")})
        told = [cell for column in COLUMNS for cell in compared(rows, variant, column)]
        body.append([variant, str(len(values(rows, variant, "mean_return"))), *told, "; ".join(failed)])
    body.sort(key=lambda line: list(WITHOUT).index(line[0]))
    head = ["", "seeds", *(word for what in COLUMNS.values() for word in (f"{what}: IQM (95 %)", "")), "failed"]
    about = "IMPALA on Catch from pixels (`benchmarks/envs/catch.py`) with the network of Pong; returns from -1 to 1."
    return [about, "", *tables.table(head, body)]


def compared(rows: list[Row], variant: str, column: str) -> tuple[str, str]:
    """The figure of a variant, and whether that of the whole is the same."""
    ours, whole = values(rows, variant, column), values(rows, WHOLE, column)
    if column == "area" and (apart := widest(rows, variant)) > WIDEST:
        return "", f"none: evaluations {100 * apart:.2g} % of the steps apart, or more"
    if not ours:
        return "", ""
    low, high = bootstrap(ours, iqm)
    shown = f"{iqm(ours):.3f} ({low:.3f} to {high:.3f})"
    if variant == WHOLE or min(len(ours), len(whole)) < 2:
        return shown, ""
    found = tost(ours, whole, MARGIN)
    verdict = "equivalent" if found.p < 0.05 else "not shown"
    return shown, f"{verdict}: difference {found.difference:.3f} ({found.low:.3f} to {found.high:.3f})"


def plot(rows: list[Row], path: Path) -> None:
    found = {
        column: {name: spread(some) for name in WITHOUT if (some := values(rows, name, column))} for column in COLUMNS
    }
    columns = [column for column in COLUMNS if found[column]] or ["mean_return"]
    made, axes = plots.figure(len(columns))
    for axis, column in zip(axes, columns, strict=True):
        shown, title = found[column], COLUMNS[column]
        plots.bars(axis, shown, title=title, unit="mean return, all seeds")
    plots.save(made, path)
