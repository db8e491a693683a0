"""Stores the learning curve and the throughput of a run: `python benchmarks/curve.py RUN_FOLDER OUT_FOLDER`.

Writes host.json (the machine), run.json (spec, totals, ledger, throughput), evaluations.csv, scalars.csv (the
TensorBoard curves of KEPT) and curve.svg. Needs the `bench` extra.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

REPOSITORY = Path(__file__).parent.parent
KEPT = ("return/", "throughput/", "lag/", "waits/")


def host_card() -> dict[str, Any]:
    """The machine that the figures belong to."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return {
        "processor": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }


def scalars(results: Path) -> dict[str, list[tuple[float, int, float]]]:
    """Tag -> (unix time, consumed steps, value)."""
    found: dict[str, list[tuple[float, int, float]]] = {}
    for file in sorted((results / "tensorboard").iterdir()):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((e.wall_time, e.step, e.value) for e in events.Scalars(tag))
    return found


def main(root: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results = root / "results"
    status = json.loads((results / "status.json").read_text())
    told = [json.loads(line) for line in (results / "evaluations.jsonl").read_text().splitlines()]
    evaluations = [one for one in told if one["mode"] == status["evaluation"]["mode"]]
    curves = scalars(results)
    state = json.loads((root / "run" / "state.json").read_text())

    (out / "host.json").write_text(json.dumps(host_card(), indent=1) + "\n")
    kept = ("phase", "wall_s", "cpu_s", "totals", "lag", "verdict", "policies", "evaluation")
    steps, cpu_s = status["totals"]["consumed_steps"], sum(status["cpu_s"].values())
    run = {
        "spec": state["spec"],
        **{key: status[key] for key in kept},
        "consumed_steps_per_s": round(steps / status["wall_s"], 1),
        "consumed_steps_per_cpu_s": round(steps / cpu_s, 1),
    }
    (out / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    with (out / "evaluations.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["steps", "wall_s", "mean", "std", "min", "max", "episodes", "mode"])
        for e in evaluations:
            table.writerow(
                [e["steps"], round(e["wall_s"], 1), e["mean"], e["std"], e["min"], e["max"], e["episodes"], e["mode"]]
            )
    with (out / "scalars.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["tag", "unix_time", "steps", "value"])
        table.writerows(
            (tag, round(t, 1), steps, f"{v:.6g}")
            for tag, points in sorted(curves.items())
            for t, steps, v in points
            if tag.startswith(KEPT)
        )

    mpl.rcParams["svg.hashsalt"] = "rlctl"  # the same figures give the same file
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    training = curves.get("return/train", [])
    left.plot(
        [steps for _, steps, _ in training], [value for _, _, value in training], label="training, last 100 episodes"
    )
    left.errorbar(
        [e["steps"] for e in evaluations], [e["mean"] for e in evaluations], [e["std"] for e in evaluations],
        fmt="o", capsize=2, label=f"evaluator, {evaluations[-1]['mode']}",
    )  # fmt: skip
    left.set(xlabel="agent steps consumed", ylabel="return", title=state["run"])
    left.legend()
    consumed = curves["throughput/consumed_steps_per_s"]
    right.plot([t - consumed[0][0] for t, _, _ in consumed], [value for _, _, value in consumed])
    right.set(xlabel="seconds", ylabel="agent steps consumed per second", title="throughput", ylim=(0, None))
    figure.savefig(out / "curve.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
