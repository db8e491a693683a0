"""A run with its replay in its generations, while its power is lost again and again.

    python -m benchmarks.replay.power [LOSSES [SEED]]

Every process of it gets SIGKILL at once, at a random instant, half of them while a generation is being written; after
every fifth loss the newest part of one process is damaged as well. Then `up`, and the run has to show: every process
goes on from the newest generation of which it can read its part, a shard with as many rows as that part holds; no
generation that was committed is gone; no step is lost but those since that generation; it learns on, and the ledger
balances. Exit code 1: it did not.

A kill loses nothing that the kernel has not written yet. A disk that forgets it is for tests/checkpoint/.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared import processes, product, tables
from benchmarks.shared.product import Run, Spec

LOSSES = 20
SHARDS = 2
EVERY_S = 3.0
"""checkpoint.every."""
LEARNS_ON = 500
"""Agent steps learned from after each, before the next."""
UP_S = 180.0
WRITING_S = 30.0
"""Longest wait for a generation to be written."""
DAMAGED_EACH = 5


def spec_of() -> Spec:
    """Ape-X on CartPole, a replay of two shards."""
    return {
        "run": "power",
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "apex_dqn", "batch_size": 256},
        "replay": {"capacity": 20_000, "learning_starts": 1000, "checkpoint": "full"},
        "roles": {
            "actor": {"replicas": 2, "envs": 4}, "evaluator": {"replicas": 0},
            "replay": {"replicas": SHARDS, "memory": "512Mi"},
        },
        "checkpoint": {"every": f"{EVERY_S:g}s"},
    }  # fmt: skip


class Wanted(NamedTuple):
    """State with which a run has to come back."""

    learner: dict[str, Any]  # the newest generation with a readable part of the learner
    shards: dict[int, tuple[int, int]]  # shard -> newest generation with its part, and the rows in that
    newest: int  # generation


class Before(NamedTuple):
    """The run at the moment of the loss, as its manager told it last."""

    committed: int  # the newest generation that was told of
    steps: int
    writing: str  # parts that were half-written, or waited for others


def lose(losses: int, seed: int, say: Callable[[str], object]) -> list[dict[str, Any]]:
    """One row for each loss; `violations` is empty where all held.

    Raises:
        RuntimeError, TimeoutError: it does not come up, or does not learn.
    """
    chance, found = random.Random(seed), list[dict[str, Any]]()
    with product.made(spec_of()) as run:
        try:
            run.up("--detach")
            product.wait_for_steps(run, 3 * LEARNS_ON, UP_S)
            for number in range(1, losses + 1):
                found.append(_loss(run, number, chance))
                say("  ".join(f"{name} {value}" for name, value in found[-1].items()))
            run.down()
            ledger = run.stored()["policies"]["main"]["ledger"]
            if not ledger["balanced"]:
                found[-1]["violations"] += f"; at the end the ledger does not balance: {ledger}"
        finally:
            product.end(run)
    return found


def _loss(run: Run, number: int, chance: random.Random) -> dict[str, Any]:
    at = "while writing" if number % 2 else "any time"
    _wait_for_generation(run)
    pids = _processes(run)  # before: to look for them takes longer than a part takes to be written
    if at == "any time":
        time.sleep(chance.uniform(0.0, 2 * EVERY_S))
    else:
        _wait_for_writing(run)
        time.sleep(chance.choice([0.0, chance.uniform(0.0, 0.02), chance.uniform(0.0, 0.5)]))
    _kill(pids)
    told = run.stored()
    while pids := _processes(run):
        _kill(pids)
        time.sleep(0.05)
    folder = run.root / "checkpoints"
    before = Before(
        (told.get("checkpoint") or {"number": 0})["number"], told["policies"]["main"]["steps"], _half_written(folder)
    )
    damaged = _damage(folder, chance) if number % DAMAGED_EACH == 0 else ""
    wanted = _wanted(folder)
    logs_at = {path: path.stat().st_size for path in (run.root / "logs").glob("replay-*.log")}
    began = time.monotonic()
    run.up("--detach")
    resumed = _resumed(run)
    restored = _restored(run, logs_at)
    steps = _goes_on(run, resumed["steps"])
    learns_s = time.monotonic() - began
    violations = _violations(before, wanted, resumed, restored, damaged=bool(damaged))
    if not run.stored()["policies"]["main"]["ledger"]["balanced"]:
        violations.append("the ledger does not balance")
    return {
        "loss": number,
        "at": at,
        "half_written": before.writing,
        "damaged": damaged,
        "committed": wanted.newest,
        "learner_from": resumed["number"],
        **{f"shard{index}_from": restored.get(index, (0, 0))[0] for index in range(SHARDS)},
        **{f"shard{index}_rows": restored.get(index, (0, 0))[1] for index in range(SHARDS)},
        "rows_in_parts": sum(rows for _, rows in wanted.shards.values()),
        "steps_before": before.steps,
        "steps_after": resumed["steps"],
        "steps_then": steps,
        "learns_s": round(learns_s, 1),
        "violations": "; ".join(violations),
    }


def _violations(
    before: Before, wanted: Wanted, resumed: dict[str, Any], restored: dict[int, tuple[int, int]], *, damaged: bool
) -> list[str]:
    found = []
    if wanted.newest < before.committed:
        found.append(f"generation {before.committed} was committed and is gone")
    if resumed["number"] != wanted.learner["number"]:
        found.append(f"the learner went on from {resumed['number']}, not {wanted.learner['number']}")
    if resumed["steps"] != wanted.learner["steps"]:
        found.append(f"it has {resumed['steps']} steps, the generation {wanted.learner['steps']}")
    if not damaged and wanted.learner["number"] != wanted.newest:
        found.append(f"the learner's part of generation {wanted.newest} cannot be read")
    for index, (number, rows) in wanted.shards.items():
        if restored.get(index) != (number, rows):
            found.append(f"shard {index} has (generation, rows) {restored.get(index)}, its part {(number, rows)}")
    return found


def _processes(run: Run) -> list[int]:
    """Of a run, its supervisor first: it would start the others again."""
    pids = processes.mentioning(str(run.folder))
    return sorted(pids, key=lambda pid: "rlctl_agents" in processes.command_line(pid))


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _manifests(folder: Path) -> list[dict[str, Any]]:
    """Committed generations, newest first."""
    paths = sorted(folder.glob("generation-*.json"), reverse=True)
    return [json.loads(path.read_text())["generation"] for path in paths]


def _whole(folder: Path, generation: dict[str, Any], part: str) -> Path | None:
    """The file of a part, if it can be read."""
    if part not in generation["parts"]:
        return None
    path = folder / generation["parts"][part]
    whole = path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == generation["sha256"][part]
    return path if whole else None


def _rows(path: Path) -> int:
    """That a shard's part holds."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(json.loads(header["__metadata__"]["rlctl"])["plain"]["filled"])


def _wanted(folder: Path) -> Wanted:
    generations = _manifests(folder)
    learner = next(one for one in generations if _whole(folder, one, "learner"))
    shards = {}
    for index in range(SHARDS):
        for one in generations:
            if (path := _whole(folder, one, f"replay{index}")) is not None:
                shards[index] = one["number"], _rows(path)
                break
    return Wanted(learner, shards, generations[0]["number"])


def _half_written(folder: Path) -> str:
    """Writes that a loss has interrupted: files that are not whole, and parts of a generation that is not committed."""
    newest = max((one["number"] for one in _manifests(folder)), default=0)
    names = [path.name for path in folder.iterdir()]
    half = {name.split("-")[2].partition(".")[0] for name in names if ".tmp." in name and name.startswith("main-")}
    whole = {
        name.split("-")[2] for name in names
        if name.startswith("main-") and ".tmp." not in name and int(name.split("-")[1]) > newest
    }  # fmt: skip
    told = [f"{part} half" for part in sorted(half)] + [f"{part} uncommitted" for part in sorted(whole - {"policy"})]
    return ", ".join(told)


def _damage(folder: Path, chance: random.Random) -> str:
    """Cut or change the newest part of the learner or of a shard; which."""
    newest = _manifests(folder)[0]
    part = chance.choice(sorted(set(newest["parts"]) - {"policy"}))
    path = folder / newest["parts"][part]
    data = bytearray(path.read_bytes())
    if chance.random() < 0.5:
        path.write_bytes(data[: chance.randrange(len(data))])
        return f"{part} cut"
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"{part} changed"


def _wait_for_generation(run: Run) -> None:
    """Wait until this life of the run has committed one, so that all missing steps were lost by this loss."""
    folder, first = run.root / "checkpoints", _manifests(run.root / "checkpoints")
    newest = first[0]["number"] if first else 0
    _until(lambda: bool(found := _manifests(folder)) and found[0]["number"] > newest, 60.0, "a generation")


def _wait_for_writing(run: Run) -> None:
    """Wait until a process writes a part of the next generation."""
    folder = run.root / "checkpoints"
    known, deadline = {path.name for path in folder.iterdir()}, time.monotonic() + WRITING_S
    while not {name for name in os.listdir(folder) if name.startswith("main-")} - known:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no generation is written within {WRITING_S:g} s")
        time.sleep(0.0005)


def _resumed(run: Run) -> dict[str, Any]:
    """Generation from which the learner says that it resumed."""
    booted = time.time()

    def told() -> dict[str, Any] | None:
        status = run.stored()
        return status.get("resumed") if status.get("time", 0.0) > booted else None

    _until(lambda: told() is not None, UP_S, "the learner to go on")
    return told() or {}


def _restored(run: Run, logs_at: dict[Path, int]) -> dict[int, tuple[int, int]]:
    """Shard -> generation and rows that it says it began with, in lines of its newest life."""

    def look() -> dict[int, tuple[int, int]]:
        found = {}
        for path, size in logs_at.items():
            with path.open("rb") as file:
                file.seek(size if path.stat().st_size >= size else 0)
                for line in file.read().decode(errors="replace").splitlines():
                    if "restored replay" in line:
                        words = str(json.loads(line)["msg"]).replace(":", "").split()
                        found[int(words[1].removeprefix("replay"))] = int(words[4]), int(words[5])
        return found

    _until(lambda: len(look()) == SHARDS, UP_S, "all shards to say what they begin with")
    return look()


def _goes_on(run: Run, steps: int) -> int:
    """Wait until it has learned from more steps; returns their number."""

    def now() -> int:
        return int(run.stored().get("policies", {}).get("main", {}).get("steps", 0))

    _until(lambda: now() >= steps + LEARNS_ON, UP_S, "the run to learn on")
    return now()


def _until(holds: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:g} s for {what}")
        time.sleep(0.1)


SHOWN = {
    "loss": "loss", "at": "at", "half_written": "half-written", "damaged": "damaged then", "committed": "newest",
    "learner_from": "learner from", "shard0_from": "shard 0 from", "shard0_rows": "rows", "shard1_from": "shard 1 from",
    "shard1_rows": "rows ", "steps_before": "steps before", "steps_after": "after", "learns_s": "s until it learns",
    "violations": "violations",
}  # fmt: skip
"""Columns of the table."""


def main(words: list[str]) -> int:
    """Exit code."""
    losses, seed = int(words[0]) if words else LOSSES, int(words[1]) if len(words) > 1 else 0
    found = lose(losses, seed, lambda line: print(line, file=sys.stderr, flush=True))
    body = [[str(row[name]) for name in SHOWN] for row in found]
    print("\n".join(tables.table(list(SHOWN.values()), body)))
    bad = [row for row in found if row["violations"]]
    print(f"{len(found) - len(bad)} of {len(found)} losses came back as they should")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
