"""Agent steps consumed by learning, per second and per CPU second, beside other trainers in the same run.

    python -m benchmarks peers        # IMPALA
    python -m benchmarks algorithms   # PPO, APPO, DQN and SAC
    RLCTL_BENCH_ONLY=rlctl,sb3 RLCTL_BENCH_TASKS=cartpole python -m benchmarks peers --form tiny --out /tmp/x

Every trainer has the same network, learns from every step once (in the tasks of PPO once an epoch, in those of a replay
from as many rows for each step), and gets one compute thread per process. The trainers of a task compute in turns of a
second. A window lies between two reports of the trainer itself, after a warm-up; CPU is that of its whole process tree,
from /proc.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.peers import turns, venvs
from benchmarks.peers.contenders import (
    ALSO,
    CLIPPED,
    GOALS,
    OUR_SETTINGS,
    OUR_SETTINGS_OF_ALGORITHMS,
    OURS,
    PEERS,
    REPLAYED,
    SCORE,
    TASKS,
    changed,
)
from benchmarks.peers.window import Child, child, solve
from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.stats import Spread, spread
from benchmarks.shared.store import Row

TITLE = "Beside other trainers"
US = "rlctl"
SCRIPTS = Path(__file__).parent / "scripts"
SOLVE_LIMIT_S = 240.0
ALGORITHMS = (*CLIPPED, *REPLAYED)
"""Tasks of `algorithms`."""
IMPALA = tuple(task for task in TASKS if task not in ALGORITHMS)
"""Tasks of `peers`."""


def measure(session: Session) -> None:
    compare(session, IMPALA)


def compare(session: Session, tasks: Sequence[str]) -> None:
    """Measure tasks, or those of them that $RLCTL_BENCH_TASKS names, by rlctl and every peer that has them."""
    chosen = wanted("RLCTL_BENCH_TASKS", tasks)
    folders = install(session, chosen)
    peers = {peer.label: peer for peer in PEERS if peer.name in folders}
    us = US in wanted("RLCTL_BENCH_ONLY", [US, *(peer.name for peer in PEERS)])

    def command(label: str, task: str) -> AbstractContextManager[Child]:
        folder, script = folders[peers[label].name], SCRIPTS / f"{peers[label].script}.py"
        return child([venvs.python(folder), str(script), task], {"SOURCE": str(folder / "source")})

    def spec(label: str, task: str) -> dict[str, Any]:
        return changed((OURS | CLIPPED | REPLAYED)[task], ALSO.get(task, {}).get(label, {}))

    for number, task in session.rounds(chosen, session.choose(1, 1, 3)):
        able = [label for label, peer in peers.items() if task in peer.tasks]
        mine = [US, *ALSO.get(task, {})] if us else []
        if task == "solve":
            for label in in_order([*mine, *(able if session.form == "full" else ())], number):
                theirs = partial(solved, partial(command, label))
                work: Callable[[], Mapping[str, Any]] = solve_ours if label in mine else theirs
                session.cell({"task": task, "who": label, "round": number}, work)
            continue
        if task.startswith("halfcheetah") and find_spec("mujoco") is None:
            lacks = {"missing": 'needs pip install "gymnasium[mujoco]"'}
            session.add({"task": task, "who": US, "round": number} | lacks)
            continue
        warm_s, window_s = times(session)
        starts = {label: partial(turns.ours, spec(label, task)) for label in mine}
        starts |= {label: partial(turns.theirs, partial(command, label, task)) for label in able}
        starts = {label: starts[label] for label in in_order(list(starts), number)}
        found = turns.in_turns(starts, warm_s=warm_s, window_s=window_s)
        for label, figures in found.items():
            session.plain({"task": task, "who": label, "round": number}, partial(dict, figures))


def in_order(labels: Sequence[str], number: int) -> list[str]:
    """Trainers of a task in the order of a round: the first moves on by a third of them each round, as there are three.

    Example:
        `in_order(["a", "b", "c"], 1)` begins with "b", and that of round 2 with "c"; the order of the others is random.
    """
    if not labels:
        return []
    first = number * len(labels) // 3 % len(labels)
    others = [*labels[:first], *labels[first + 1 :]]
    return [labels[first], *(others[at] for at in np.random.default_rng(number).permutation(len(others)))]


def install(session: Session, tasks: Sequence[str]) -> dict[str, Path]:
    """Environment of every peer with one of the tasks that can be had; the others are stored with the reason."""
    folders = {}
    for peer in PEERS:
        if not set(peer.tasks) & set(tasks):
            continue
        if peer.name not in wanted("RLCTL_BENCH_ONLY", [one.name for one in PEERS]):
            continue
        if session.form == "short" and not peer.quick:
            session.add({"task": "", "who": peer.label, "missing": "not part of the short form"})
            continue
        session.say(f"installing {peer.label}")
        try:
            folders[peer.name] = venvs.ready(peer.name)
        except venvs.Missing as missing:
            session.say(f"{peer.label}: {missing}")
            session.add({"task": "", "who": peer.label, "missing": str(missing)})
    return folders


def wanted(variable: str, all_of_them: Any) -> list[str]:
    """Names that an environment variable chooses, by default all."""
    chosen = os.environ.get(variable, "")
    return chosen.split(",") if chosen else list(all_of_them)


def solved(command: Callable[[str], AbstractContextManager[Child]]) -> dict[str, float]:
    """How long a peer takes to the score."""
    with command("solve") as running:
        return solve(running, score=SCORE, limit_s=SOLVE_LIMIT_S)


def rlctl(
    session: Session, spec: dict[str, Any], *, tell: Callable[[float, float], object] = lambda *_: None
) -> dict[str, Any]:
    """A window of a run, all roles counted. `tell` is told its two moments of the monotonic clock."""
    warm_s, window_s = times(session)
    with product.running({"run": "bench", **spec}) as run:
        product.wait_for_steps(run, 1, 120)
        time.sleep(warm_s)
        first = product.edge(partial(product.mark, run))
        time.sleep(window_s)
        last = product.edge(partial(product.mark, run))
        tell(first.at_s, last.at_s)
        lost = run.stored()["policies"]["main"]["ledger"]
        return product.rates(first, last) | {"stale_share": lost["stale"] / max(1, lost["produced"])}


def solve_ours() -> dict[str, Any]:
    """`rlctl up specs/cartpole-impala.yaml` until the mean of its last 100 training episodes reaches the score.

    Beside it, as rlctl itself would stop: until its evaluator has seen the score, in 100 whole episodes, greedy.
    """
    spec = yaml.safe_load((REPOSITORY / "specs" / "cartpole-impala.yaml").read_text())
    spec["stop"] = {"wall_time": SOLVE_LIMIT_S}
    solved: dict[str, Any] = {}
    greedy_s: float | None = None
    began, children = time.monotonic(), os.times()
    with product.running(spec) as run:
        ended = os.times()
        command_s = ended.children_user + ended.children_system - children.children_user - children.children_system
        while not solved or greedy_s is None:
            if time.monotonic() > began + SOLVE_LIMIT_S:
                raise TimeoutError(f"a mean of {SCORE:g} was not reached within {SOLVE_LIMIT_S:g} s")
            time.sleep(0.1)
            status = run.stored()
            trained, evaluated = status.get("train_return"), status.get("evaluation")
            if evaluated and evaluated["mean"] >= SCORE and greedy_s is None:
                greedy_s = evaluated["wall_s"]
            if trained and trained["episodes"] >= 100 and trained["mean"] >= SCORE and not solved:
                solved = {
                    "solve_s": time.monotonic() - began, "training_s": status["wall_s"],
                    "solve_cpu_s": run.cpu_s() + command_s, "solve_steps": status["totals"]["consumed_steps"],
                }  # fmt: skip
    return solved | {"greedy_s": greedy_s}


def times(session: Session) -> tuple[float, float]:
    """Seconds of warm-up and of the window."""
    return session.choose((1.0, 3.0), (2.0, 4.0), (8.0, 20.0))


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for task, what in TASKS.items():
        found = store.where(rows, task=task)
        if not found:
            continue
        columns: tuple[str, ...] = ("steps_per_s", "steps_per_cpu_s")
        if task == "solve":
            columns = ("solve_s", "training_s", "greedy_s", "solve_cpu_s")
        head = {
            "solve_s": "s with start-up", "training_s": "s of training", "solve_cpu_s": "CPU s",
            "greedy_s": "s of training, by greedy evaluation",
            "steps_per_s": "agent steps/s", "steps_per_cpu_s": "agent steps per CPU s",
        }  # fmt: skip
        body = [
            [who, *(tables.measured(store.where(found, who=who), column) for column in columns), remark(found, who)]
            for who in ranked(found, columns[-1])
        ]
        lines += [f"**{what}.** Goal: {GOALS[task]}. {ratio(found, task)}", ""]
        lines += [*tables.table(["", *(head[column] for column in columns), ""], body), ""]
    of_algorithms = any(row["task"] in ALGORITHMS for row in rows)
    own, tasks = (OUR_SETTINGS_OF_ALGORITHMS, ALGORITHMS) if of_algorithms else (OUR_SETTINGS, IMPALA)
    able = [peer for peer in PEERS if set(peer.tasks) & set(tasks)]
    others = {peer.label for peer in PEERS if peer not in able}
    gone = [
        (row["who"], row["missing"])
        for row in rows
        if row.get("missing") and not row["task"] and row["who"] not in others
    ]
    lines += [f"Missing: {'; '.join(f'{who}: {why}' for who, why in gone)}.", ""] if gone else []
    there = [f"{peer.label}: {(of_algorithms and peer.in_algorithms) or peer.settings}" for peer in able]
    lines += [f"Settings: {own}. {'; '.join(there)}."]
    return lines


def ranked(rows: list[Row], column: str) -> list[str]:
    """rlctl first, then from the fastest on; trainers without a figure come last."""

    def key(who: str) -> tuple[bool, float]:
        values = store.kept(store.where(rows, who=who), column)
        if not values:
            return not who.startswith(US), float("inf")
        return not who.startswith(US), spread(values).median * (1 if column.startswith("solve") else -1)

    return sorted(store.distinct(rows, "who"), key=key)


def remark(rows: list[Row], who: str) -> str:
    """Reason for fewer figures than rounds."""
    said = {row.get("failed") or row.get("missing") or "" for row in store.where(rows, who=who)} - {""}
    return "; ".join(sorted(said))


def ratio(rows: list[Row], task: str) -> str:
    """Speed of rlctl as a multiple of each peer's: the median over the rounds of the ratio within a round."""
    column = "solve_cpu_s" if task == "solve" else "steps_per_cpu_s"
    own = [US, *ALSO.get(task, {})]
    told = []
    for one in own:
        against = [
            f"{tables.number(found.median)}x {who} ({tables.number(found.low)}-{tables.number(found.high)})"
            for who in ranked(rows, column)
            if who not in own and (found := beside(rows, one, who, column))
        ]
        told += [f"Per CPU second {one} is at {', '.join(against)}."] if against else []
    return " ".join(told)


def beside(rows: list[Row], us: str, them: str, column: str) -> Spread | None:
    """Spread of the ratios within a round, above 1 where rlctl is ahead."""
    pairs = []
    for number in store.distinct(rows, "round"):
        ours_, theirs_ = (store.kept(store.where(rows, who=who, round=number), column) for who in (us, them))
        if ours_ and theirs_:
            pairs.append(theirs_[0] / ours_[0] if column == "solve_cpu_s" else ours_[0] / theirs_[0])
    return spread(pairs) if pairs else None


def plot(rows: list[Row], path: Path) -> None:
    tasks = [task for task in TASKS if store.where(rows, task=task)]
    made, axes = plots.figure(max(1, len(tasks)))
    for one, task in zip(axes, tasks, strict=False):
        found = store.where(rows, task=task)
        column = "solve_s" if task == "solve" else "steps_per_cpu_s"
        values = {who: store.kept(store.where(found, who=who), column) for who in ranked(found, column)}
        shown = {who: spread(some) for who, some in values.items() if some}
        unit = "seconds to 475, start-up included" if task == "solve" else "agent steps per CPU second"
        plots.bars(one, shown, title=TASKS[task], unit=unit, log=task == "native")
    plots.save(made, path)
