"""CartPole trained on the same number of steps: in lock-step, asynchronously, and with things that go wrong on purpose.

- delay D: weights are published every D updates, so actors act with weights that are up to D versions old and older;
- stragglers: one step in a hundred sleeps 10 ms;
- kills: an actor is killed every few seconds, at most four a run;
- uncorrected: the longest delay with every importance weight 1. It has to fail, or the test has no power.

Equivalence: two one-sided Welch tests of the mean return of the last model, margin 5 % of lock-step's mean; beside it
the interquartile mean with a bootstrap interval, the worst seed, and how old the weights were.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.product import Run
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread, tost
from benchmarks.shared.store import Row
from rlctl.statistics import bootstrap, iqm

TITLE = "Asynchronous training beside lock-step"
MARGIN, WORST = 0.05, 0.8
KILL_EVERY_S, MOST_KILLS = 3.0, 4
"""Most kills of a run: a fifth short life in a row of one process would end it, which shows nothing."""
LIMIT_S = 420.0
LOCK_STEP = "lock-step"


class Condition(NamedTuple):
    """Condition of a run."""

    name: str
    delay: int = 1  # updates between two publications
    straggle: bool = False
    kill: bool = False
    corrected: bool = True
    sync: bool = False


CONDITIONS = (
    Condition(LOCK_STEP, sync=True),
    Condition("asynchronous"),
    Condition("delay 4", delay=4),
    Condition("delay 16", delay=16),
    Condition("delay 64", delay=64),
    Condition("stragglers", straggle=True),
    Condition("kills", kill=True),
    Condition("delay 64 uncorrected", delay=64, corrected=False),
)


def measure(session: Session) -> None:
    seeds = session.choose(1, 2, 10)
    rows = session.choose(8_000, 60_000, 250_000)
    names = session.choose([LOCK_STEP, "kills"], [LOCK_STEP, "asynchronous"], [one.name for one in CONDITIONS])
    chosen = os.environ.get("RLCTL_BENCH_CONDITIONS", "")
    cells = [one for one in CONDITIONS if one.name in (chosen.split(",") if chosen else names)]
    for seed, condition in session.rounds(cells, seeds):
        session.cell({"condition": condition.name, "seed": seed}, partial(train, condition, seed, rows), repeat=False)


def spec_of(condition: Condition, seed: int, rows: int) -> dict[str, Any]:
    """CartPole as specs/cartpole-impala.yaml trains it, on two actors, until so many agent steps."""
    hyper: dict[str, Any] = {
        "lambda": 0.95, "advantage": "vtrace", "optimizer": "rmsprop", "lr": 1e-3, "entropy_coef": 0.0,
        "max_grad_norm": 0.1, "value_batches": 0,
    }  # fmt: skip
    shared = {
        "unroll_length": 16, "batch_size": 512, "reward_clip": 0.1, "gamma": 0.99,
        "publish_every_updates": 1 if condition.sync else condition.delay,
        "max_lag_versions": max(4, 4 * condition.delay),
    }  # fmt: skip
    algorithm = (
        {"name": "impala", **shared, **hyper}
        if condition.corrected
        else {"name": "benchmarks.envs.uncorrected:Uncorrected", **shared, "params": hyper}
    )
    return {
        "run": "stability",
        "seed": seed,
        "sync": condition.sync,
        "env": {"id": "benchmarks.envs.straggler:make" if condition.straggle else "CartPole-v1"},
        "algorithm": algorithm,
        "model": {"hidden": [64, 64], "activation": "tanh"},
        "roles": {"actor": {"replicas": 2, "envs": 16}},
        "evaluation": {"episodes": 100, "every": "1h", "envs": 100},
        "stop": {"agent_steps": rows, "wall_time": LIMIT_S},
    }


def train(condition: Condition, seed: int, rows: int) -> dict[str, Any]:
    """One run, and the return of its last model.

    Raises:
        RuntimeError: it failed, or ended before it had learned from so many agent steps.
        TimeoutError: it was not done in time.
    """
    with product.running(spec_of(condition, seed, rows)) as run:
        kills = until_done(run, random.Random(seed) if condition.kill else None)
        status = run.stored()
    evaluation, ledger = status.get("evaluation"), status["policies"]["main"]["ledger"]
    if status["phase"] != "finished" or not evaluation:
        raise RuntimeError(f"ended as {status['phase']} without an evaluation of its last model")
    if evaluation["steps"] < rows:  # seeds are compared after equally many
        raise RuntimeError(f"the last evaluation is of a model of {evaluation['steps']} agent steps, not of {rows}")
    produced = max(1, ledger["produced"])
    return {
        "mean_return": evaluation["mean"],
        "rows": evaluation["steps"],
        "wall_s": status["wall_s"],
        "cpu_s": sum(status["cpu_s"].values()),
        "lag_mean": status["lag"]["mean"],
        "lag_p95": status["lag"]["p95"],
        "lag_max": status["lag"]["max"],
        "stale_share": ledger["stale"] / produced,
        "lost_share": ledger["lost"] / produced,
        "balanced": ledger["balanced"],
        "kills": kills,
    }


def until_done(run: Run, chance: random.Random | None) -> int:
    """Wait for the end; kill an actor now and then if asked to. Returns how often.

    Raises:
        RuntimeError: it has ended without being finished.
        TimeoutError: it has no end.
    """
    deadline = time.monotonic() + LIMIT_S + 60
    next_kill, kills = time.monotonic() + KILL_EVERY_S, 0
    while time.monotonic() < deadline:
        if run.ended():
            return kills
        if (
            chance is not None
            and run.stored().get("phase") == "running"
            and kills < MOST_KILLS
            and time.monotonic() >= next_kill
        ):
            next_kill = time.monotonic() + KILL_EVERY_S
            actors = run.pids("actor")
            if actors:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(actors), signal.SIGKILL)
                    kills += 1
        time.sleep(0.25)
    raise TimeoutError(f"not done within {LIMIT_S:g} s: {run.stored().get('problems')}")


def returns(rows: list[Row], condition: str) -> list[float]:
    """Returns of every seed that ended; other load on the machine does not change them."""
    return [float(row["mean_return"]) for row in store.where(rows, condition=condition) if row.get("mean_return")]


def table(rows: list[Row]) -> list[str]:
    reference = returns(rows, LOCK_STEP)
    body = []
    for condition in CONDITIONS:
        found, values = store.where(rows, condition=condition.name), returns(rows, condition.name)
        failed = sorted({row["failed"] for row in found if row.get("failed")})
        if found and not values:
            body.append([condition.name, "0", "", "", "", "", "", "; ".join(failed)])
        if not values:
            continue
        low, high = bootstrap(values, iqm)
        lags = [float(row["lag_mean"]) for row in found if row.get("lag_mean")]
        body.append([
            condition.name, str(len(values)), f"{iqm(values):.0f} ({low:.0f}-{high:.0f})", f"{min(values):.0f}",
            f"{spread(lags).median:.1f}" if lags else "", *verdict(values, reference, condition), "; ".join(failed),
        ])  # fmt: skip
    columns = ("seeds", "IQM of returns (95 %)", "worst seed", "mean lag, versions", "p of not equivalent")
    return ["IMPALA on CartPole-v1; the most is 500.", "", *tables.table(["", *columns, "", "failed"], body)]


def verdict(values: list[float], reference: list[float], condition: Condition) -> tuple[str, str]:
    """p of the equivalence test, and the verdict."""
    if condition.sync or min(len(values), len(reference)) < 2:
        return "", ""
    mean = sum(reference) / len(reference)
    found = tost(values, reference, MARGIN * mean)
    equal = found.p < 0.05
    steady = min(values) >= WORST * mean
    if equal and steady:
        said = "equivalent within 5 %, no seed below 80 %"
    elif equal:
        said = "equivalent within 5 %, but a seed is below 80 %"
    else:
        said = f"not shown: difference {found.difference:.0f} ({found.low:.0f} to {found.high:.0f})"
    return f"{found.p:.3f}", said


def plot(rows: list[Row], path: Path) -> None:
    made, (axes,) = plots.figure(1)
    values = {one.name: returns(rows, one.name) for one in CONDITIONS}
    shown = {name: spread(some) for name, some in values.items() if some}
    plots.bars(axes, shown, title="return of the last model, all seeds", unit="mean of 100 episodes, greedy")
    plots.save(made, path)
