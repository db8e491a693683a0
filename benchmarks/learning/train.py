"""Training of one seed of a row to the end of its agent steps, with its evaluations on the way."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.rows import Row
from benchmarks.shared import host, product


class Failed(RuntimeError):
    """The run has ended without the figure."""


POLL_S = 1.0
STALLED_S = 1800.0
"""A run is given up when no step was learned from in so long. The last model is evaluated within it as well."""
Point = dict[str, Any]
"""An evaluation: agent steps, mean return, wall and CPU seconds."""


def train(
    row: Row, seed: int, tell: Callable[[Path], None], gpu: str = "", keep: Path | None = None
) -> tuple[dict[str, Any], list[Point]]:
    """The line of a seed, and its curve.

    Args:
        tell: told the folder of the run before it begins.
        gpu: name of the one that the learner computes on; "": none. The results do not depend on it, but for the
            order of sums and the precision that images are computed in.
        keep: folder for the folder of the run: one that is ended early stays there, and goes on with the next call; one
            that failed stays under another name.

    Raises:
        RuntimeError: the run failed or makes no progress, its last model was not evaluated, or the code that learns
            changed meanwhile.
        LeftOver: the run could not be ended; its folder stays.
    """
    clock: list[tuple[float, float]] = [(0.0, 0.0)]
    line = {"seed": seed, **origin(row, seed, gpu)}  # before roles import the code
    with _made(row, seed, line["fingerprint"], keep) as (run, sittings):
        tell(run.folder)
        line |= {"sittings": sittings + 1} if sittings else {}
        try:
            run.up("--detach", *(("--set", "roles.learner.gpu=1") if gpu else ()))
            moved, learned = time.monotonic(), -1
            while not run.ended():
                if "wall_s" in (status := run.stored()):
                    clock.append((status["wall_s"], sum(status["cpu_s"].values())))
                if (steps := status.get("totals", {}).get("consumed_steps", 0)) != learned:
                    moved, learned = time.monotonic(), steps
                if time.monotonic() - moved > STALLED_S:
                    raise Failed(f"no progress after {learned} agent steps for {STALLED_S:.0f} s")
                time.sleep(POLL_S)
            status = run.stored()
            told = (run.root / "results" / "evaluations.jsonl").read_text().splitlines()
        finally:
            product.end(run)
    if status["phase"] != "finished":
        raise Failed(f"ended as {status['phase']}: {'; '.join(one['text'] for one in status['problems'])}")
    if row.fingerprint(seed) != line["fingerprint"]:
        raise Failed("the code that learns, or the spec, changed while it was trained")
    found, points = measured([json.loads(one) for one in told], row, status["totals"]["consumed_steps"], clock)
    return {**line, **found, "wall_s": status["wall_s"], "cpu_s": sum(status["cpu_s"].values())}, points


@contextlib.contextmanager
def _made(row: Row, seed: int, fingerprint: str, keep: Path | None) -> Iterator[tuple[product.Run, int]]:
    """The run of a seed that is not up, and how often it was gone on with."""
    if keep is not None:
        folder = keep / f"{row.name}-{seed}"
        try:
            with product.kept(folder, row.of_seed(seed), fingerprint) as found:
                yield found
        except Failed:
            folder.rename(folder.with_name(f"{folder.name}-failed-{round(time.time())}"))
            raise
    else:
        with product.made(row.of_seed(seed)) as run:
            yield run, 0


def origin(row: Row, seed: int, gpu: str = "") -> dict[str, Any]:
    """Code and machine, as of now."""
    return {
        "fingerprint": row.fingerprint(seed),
        "commit": host.commit()[:10] + (" with changes" if host.changed() else ""),
        "processor": f"{host.processor()}, {gpu}" if gpu else host.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
        "unix_time": round(time.time()),
    }


def measured(
    both: Sequence[dict[str, Any]], row: Row, steps: int, clock: Sequence[tuple[float, float]]
) -> tuple[dict[str, Any], list[Point]]:
    """The last model's return, and the curve.

    Args:
        both: evaluations in both modes, as they came.
        steps: agent steps that were learned from.
        clock: wall and CPU seconds of the run from time to time.

    Raises:
        RuntimeError: the last model was not evaluated.
    """
    mode = row.spec.evaluation.mode
    found = [one for one in both if one["mode"] == mode]
    if not found or found[-1]["steps"] < steps:
        raise Failed("its last model was not evaluated")
    last = found[-1]
    walls, cpus = zip(*clock, strict=True)
    points = [
        {
            "steps": one["steps"],
            "mean_return": one["mean"],
            "wall_s": one["wall_s"],
            "cpu_s": float(np.interp(one["wall_s"], walls, cpus)),
        }
        for one in found
    ]
    others = [one["mean"] for one in both if one["ref"] == last["ref"] and one["mode"] != mode]
    return {
        "agent_steps": last["steps"],
        "mean_return": last["mean"],
        "other_return": others[0] if others else None,
        "episodes": last["episodes"],
        "mode": mode,
    }, points


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
