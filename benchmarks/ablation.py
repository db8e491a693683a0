"""Ablation of the fast path: one part switched off at a time, beside the whole in the same rounds.

bf16 is a field of the spec. The others have no switch in the product: the environments of benchmarks/envs/plain.py and
the algorithm of benchmarks/envs/listed.py do without them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.bench import rlctl, wanted
from benchmarks.peers.contenders import OURS, TASKS, changed
from benchmarks.shared import plots, store, tables
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "What each part buys"
WHOLE = "as it is"
_LISTED = {"algorithm": {"name": "benchmarks.envs.listed:Listed"}}
WITHOUT: dict[str, dict[str, dict[str, Any]]] = {
    "pong": {
        "without bf16": {"model": {"precision": "fp32"}},
        "every stack sent whole": {"env": {"id": "benchmarks.envs.plain:whole_stacks", "preset": "none"}},
        "batches stacked from lists": _LISTED,
        "games stepped one by one": {"env": {"id": "benchmarks.envs.plain:one_by_one", "preset": "none"}},
    },
    "cartpole": {
        "batches stacked from lists": _LISTED,
        "poles stepped one by one": {"env": {"id": "benchmarks.envs.plain:cartpole"}},
    },
}
"""Task -> part that is switched off -> fields of the spec that do so."""


def measure(session: Session) -> None:
    tasks = wanted("RLCTL_BENCH_TASKS", session.choose(["cartpole"], ["pong"], list(WITHOUT)))
    cells = [(task, variant) for task in tasks for variant in (WHOLE, *WITHOUT[task])]
    for number, (task, variant) in session.rounds(cells, session.choose(1, 1, 5)):
        keys = {"task": task, "variant": variant, "round": number}
        session.cell(keys, partial(rlctl, session, spec(task, variant)))


def spec(task: str, variant: str) -> dict[str, Any]:
    """The spec of `peers` with one part switched off."""
    return changed(OURS[task], WITHOUT[task].get(variant, {}))


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for task in store.distinct(rows, "task"):
        found = store.where(rows, task=task)
        body = [
            [
                variant,
                *(
                    tables.measured(store.where(found, variant=variant), at)
                    for at in ("steps_per_s", "steps_per_cpu_s")
                ),
                bought(found, variant),
            ]
            for variant in (WHOLE, *WITHOUT[task])
        ]
        head = ["", "agent steps/s", "agent steps per CPU s", "CPU s of the whole less"]
        lines += [f"**{TASKS[task]}.**", "", *tables.table(head, body), ""]
    return [
        *lines,
        "The last column: so much less CPU an agent step takes with it than without it, in the same round. What is "
        "learned from is the same with each but bf16, which rounds; what comes of it is told under "
        '"What is learned without each part".',
    ]


def bought(rows: list[Row], variant: str) -> str:
    """Share of the CPU per step that the whole saves: the median over the rounds, smallest and largest.

    Example:
        1,000 steps per CPU second without and 1,250 with it, once: "20 % (20 to 20)".
    """
    shares = []
    for number in store.distinct(rows, "round"):
        with_it, without = (
            store.kept(store.where(rows, variant=name, round=number), "steps_per_cpu_s") for name in (WHOLE, variant)
        )
        if with_it and without and variant != WHOLE:
            shares.append(100 * (1 - without[0] / with_it[0]))
    if not shares:
        return ""
    found = spread(shares)
    return f"{found.median:.0f} % ({found.low:.0f} to {found.high:.0f})"


def plot(rows: list[Row], path: Path) -> None:
    tasks = store.distinct(rows, "task")
    made, axes = plots.figure(max(1, len(tasks)))
    for one, task in zip(axes, tasks, strict=False):
        found = store.where(rows, task=task)
        values = {
            name: store.kept(store.where(found, variant=name), "steps_per_cpu_s") for name in (WHOLE, *WITHOUT[task])
        }
        shown = {name: spread(some) for name, some in values.items() if some}
        plots.bars(one, shown, title=TASKS[task], unit="agent steps per CPU second")
    plots.save(made, path)
