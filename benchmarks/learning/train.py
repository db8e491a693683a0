"""One seed of a row: trained to the end of its agent steps, and what its evaluator saw on the way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.learning.rows import Row
from benchmarks.shared import host, product

POLL_S = 1.0
Point = dict[str, Any]
"""An evaluation: agent steps, mean return, wall and CPU seconds."""


def train(row: Row, seed: int) -> tuple[dict[str, Any], list[Point]]:
    """The line of a seed, and its curve.

    Raises:
        RuntimeError: the run failed, or its last model was not evaluated.
    """
    clock: list[tuple[float, float]] = [(0.0, 0.0)]
    origin = {  # of the code that roles will import, not of what it is when they have ended
        "fingerprint": row.fingerprint(seed),
        "commit": host.commit()[:10] + (" with changes" if host.changed() else ""),
        "processor": host.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "unix_time": round(time.time()),
    }
    with product.running(row.of_seed(seed)) as run:
        while not run.ended():
            if "wall_s" in (status := run.stored()):
                clock.append((status["wall_s"], sum(status["cpu_s"].values())))
            time.sleep(POLL_S)
        status = run.stored()
        told = (run.root / "results" / "evaluations.jsonl").read_text().splitlines()
    if status["phase"] != "finished":
        raise RuntimeError(f"ended as {status['phase']}: {'; '.join(one['text'] for one in status['problems'])}")
    walls, cpus = zip(*clock, strict=True)
    mode = row.spec.evaluation.mode
    both = [json.loads(line) for line in told]
    found = [one for one in both if one["mode"] == mode]
    if not found or found[-1]["steps"] < status["totals"]["consumed_steps"]:
        raise RuntimeError("its last model was not evaluated")
    last = found[-1]
    points: list[Point] = [
        {
            "steps": one["steps"],
            "mean_return": one["mean"],
            "wall_s": one["wall_s"],
            "cpu_s": float(np.interp(one["wall_s"], walls, cpus)),
        }
        for one in found
    ]
    line = {
        "seed": seed,
        "agent_steps": last["steps"],
        "mean_return": last["mean"],
        "other_return": next((one["mean"] for one in both if one["ref"] == last["ref"] and one["mode"] != mode), None),
        "episodes": last["episodes"],
        "mode": mode,
        "wall_s": status["wall_s"],
        "cpu_s": sum(status["cpu_s"].values()),
        **origin,
    }
    return line, points


def success(points: Sequence[Point], goal: float) -> int | None:
    """Index of the first evaluation that reaches the goal; None without one."""
    return next((at for at, point in enumerate(points) if float(point["mean_return"]) >= goal), None)


def fell_back(points: Sequence[Point], goal: float) -> int:
    """Evaluations after the first success that are below half of it; of a negative return, below twice.

    Example:
        With a goal of 400: returns of 100, 420, 200, 500 have one; with -90: -80, -170, -85 have one.
    """
    at = success(points, goal)
    if at is None:
        return 0
    first = float(points[at]["mean_return"])
    least = first / 2 if first > 0 else first * 2
    return sum(float(point["mean_return"]) < least for point in points[at:])
