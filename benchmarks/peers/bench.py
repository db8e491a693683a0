"""Agent steps consumed by learning, per second and per CPU second, beside other trainers in the same run.

    python -m benchmarks peers
    RLCTL_BENCH_ONLY=rlctl,sb3 RLCTL_BENCH_TASKS=cartpole python -m benchmarks peers --form tiny --out /tmp/x

Everybody has the same network, learns from every step once, and gets one compute thread per process. A window lies
between two reports of the trainer itself, after a warm-up; CPU is that of its whole process tree, from /proc.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.peers import venvs
from benchmarks.peers.contenders import GOALS, OURS, PEERS, SCORE, TASKS, Peer
from benchmarks.peers.window import CannotDo, child, solve, window
from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "Beside other trainers"
US = "rlctl"
SCRIPTS = Path(__file__).parent / "scripts"
SOLVE_LIMIT_S = 240.0


def measure(session: Session) -> None:
    folders = install(session)
    peers = {peer.label: peer for peer in PEERS if peer.name in folders}
    cells = [
        (task, label)
        for task in wanted("RLCTL_BENCH_TASKS", TASKS)
        for label in (US, *peers)
        if label == US or (task in peers[label].tasks and (task != "solve" or session.form == "full"))
    ]
    if US not in wanted("RLCTL_BENCH_ONLY", [US, *(peer.name for peer in PEERS)]):
        cells = [cell for cell in cells if cell[1] != US]
    for number, (task, label) in session.rounds(cells, session.choose(1, 1, 5)):
        keys = {"task": task, "who": label, "round": number}
        if label == US:
            session.cell(keys, partial(ours, session, task))
        else:
            session.cell(keys, partial(theirs, session, task, peers[label], folders[peers[label].name]))


def install(session: Session) -> dict[str, Path]:
    """Environment of every peer that can be had; the others are stored with the reason."""
    folders = {}
    for peer in PEERS:
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
    """What an environment variable chooses from."""
    chosen = os.environ.get(variable, "")
    return chosen.split(",") if chosen else list(all_of_them)


def theirs(session: Session, task: str, peer: Peer, folder: Path) -> dict[str, Any]:
    """A window of a peer, or how long it takes to the score."""
    command = [venvs.python(folder), str(SCRIPTS / f"{peer.script}.py"), task]
    with child(command, {"TORCHBEAST": str(folder / "source")}) as running:
        if task == "solve":
            return solve(running, score=SCORE, limit_s=SOLVE_LIMIT_S)
        warm_s, window_s = times(session)
        try:
            return product.rates(*window(running, warm_s=warm_s, window_s=window_s))
        except CannotDo:
            return {"missing": "has no such task"}


def ours(session: Session, task: str) -> dict[str, Any]:
    """The same of rlctl."""
    return solve_ours() if task == "solve" else rlctl(session, OURS[task])


def rlctl(session: Session, spec: dict[str, Any]) -> dict[str, Any]:
    """A window of a run, all roles counted."""
    warm_s, window_s = times(session)
    with product.running({"run": "bench", **spec}) as run:
        product.wait_for_steps(run, 1, 120)
        time.sleep(warm_s)
        first = product.edge(partial(product.mark, run))
        time.sleep(window_s)
        last = product.edge(partial(product.mark, run))
        lost = run.stored()["policies"]["main"]["ledger"]
        return product.rates(first, last) | {"stale_share": lost["stale"] / max(1, lost["produced"])}


def solve_ours() -> dict[str, Any]:
    """`rlctl up specs/cartpole-impala.yaml`, until its evaluator has seen the score: whole episodes, greedy."""
    spec = yaml.safe_load((REPOSITORY / "specs" / "cartpole-impala.yaml").read_text())
    spec["stop"] = {"eval_return": SCORE, "wall_time": SOLVE_LIMIT_S}
    with product.made(spec) as run:
        try:
            began = time.monotonic()
            run.up(timeout_s=SOLVE_LIMIT_S + 60)
            whole_s = time.monotonic() - began
            status = run.status()
        finally:
            run.down()
    if status["phase"] != "finished" or not status["evaluation"] or status["evaluation"]["mean"] < SCORE:
        raise TimeoutError(f"a mean of {SCORE:g} was not reached within {SOLVE_LIMIT_S:g} s")
    return {
        "solve_s": whole_s,
        "training_s": status["evaluation"]["wall_s"],
        "solve_cpu_s": sum(status["cpu_s"].values()),
        "solve_steps": status["evaluation"]["rows"],
    }


def times(session: Session) -> tuple[float, float]:
    """Seconds of warm-up and of the window."""
    return session.choose((1.0, 3.0), (3.0, 6.0), (10.0, 30.0))


def table(rows: list[Row]) -> list[str]:
    lines: list[str] = []
    for task, what in TASKS.items():
        found = store.where(rows, task=task)
        if not found:
            continue
        columns = ("solve_s", "training_s", "solve_cpu_s") if task == "solve" else ("steps_per_s", "steps_per_cpu_s")
        head = {
            "solve_s": "s with start-up", "training_s": "s of training", "solve_cpu_s": "CPU s",
            "steps_per_s": "agent steps/s", "steps_per_cpu_s": "agent steps per CPU s",
        }  # fmt: skip
        body = [
            [who, *(tables.measured(store.where(found, who=who), column) for column in columns), remark(found, who)]
            for who in ranked(found, columns[-1])
        ]
        lines += [f"**{what}.** Goal: {GOALS[task]}. {ratio(found, task)}", ""]
        lines += [*tables.table(["", *(head[column] for column in columns), ""], body), ""]
    gone = [(row["who"], row["missing"]) for row in rows if row.get("missing") and not row["task"]]
    lines += [f"Missing: {'; '.join(f'{who}: {why}' for who, why in gone)}.", ""] if gone else []
    lines += ["Settings: " + "; ".join(f"{peer.label}: {peer.settings}" for peer in PEERS) + "."]
    return lines


def ranked(rows: list[Row], column: str) -> list[str]:
    """Ourselves first, then from the fastest on; whoever has no figure comes last."""

    def key(who: str) -> tuple[bool, float]:
        values = store.kept(store.where(rows, who=who), column)
        if not values:
            return who != US, float("inf")
        return who != US, spread(values).median * (1 if column.startswith("solve") else -1)

    return sorted(store.distinct(rows, "who"), key=key)


def remark(rows: list[Row], who: str) -> str:
    """Why there are fewer figures than rounds."""
    said = {row.get("failed") or row.get("missing") or "" for row in store.where(rows, who=who)} - {""}
    return "; ".join(sorted(said))


def ratio(rows: list[Row], task: str) -> str:
    """How often we are as fast as each peer: the median over the rounds of the ratio within a round."""
    column = "solve_cpu_s" if task == "solve" else "steps_per_cpu_s"
    told = []
    for who in ranked(rows, column):
        pairs = []
        for number in store.distinct(rows, "round"):
            us, them = (
                store.kept(store.where(rows, who=name, round=number), column) for name in (US, who)
            )  # fmt: skip
            if us and them and who != US:
                pairs.append(them[0] / us[0] if task == "solve" else us[0] / them[0])
        if pairs:
            found = spread(pairs)
            told.append(
                f"{tables.number(found.median)}x {who} ({tables.number(found.low)}-{tables.number(found.high)})"
            )
    return f"Per CPU second rlctl is at {', '.join(told)}." if told else ""


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
