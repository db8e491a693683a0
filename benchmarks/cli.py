"""The command line itself: how fast it starts, renders 10,000 actors, and searches 1 GB of logs.

Beside it: the interpreter alone, kubectl and ray where they are on PATH, `grep` over the same files.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shared import plots, product, store, tables
from benchmarks.shared.commands import took
from benchmarks.shared.session import Session
from benchmarks.shared.stats import spread
from benchmarks.shared.store import Row

TITLE = "The command line"
RLCTL = (sys.executable, "-m", "rlctl")
SMALL: dict[str, Any] = {
    "run": "small",
    "env": {"id": "CartPole-v1"},
    "algorithm": {"name": "impala"},
    "roles": {"actor": {"replicas": 1, "envs": 1}, "evaluator": {"replicas": 0}},
    "stop": {"wall_time": "1h"},
}
FILE_BYTES, FILES_A_LOG = 16_000_000, 5
"""Size and number of log files, as the supervisor rotates them."""
NEEDLE = "needle in the haystack"
BEFORE_EACH = 200_000
"""Lines between two that match."""


def measure(session: Session) -> None:
    actors = session.choose(100, 10_000, 10_000)
    size = session.choose(20_000_000, 1_000_000_000, 1_000_000_000)
    with product.made(SMALL) as run, logged(run, size):
        cells = [*starts(run.folder), *renders(run.folder, actors), *searches(run, size)]
        for number, (what, who, command, ok) in session.rounds(cells, session.choose(1, 1, 7)):
            keys = {"what": what, "who": who, "round": number}
            session.cell(keys, partial(timed, command, run, ok))


def timed(command: Sequence[str], run: product.Run, ok: Sequence[int]) -> dict[str, Any]:
    return took(command, cwd=run.folder, env=run.env, ok=ok)._asdict()


Cell = tuple[str, str, Sequence[str], Sequence[int]]


def starts(folder: Path) -> Iterator[Cell]:
    """Commands that do next to nothing."""
    what = "start"
    yield what, "python -c pass", (sys.executable, "-c", "pass"), (0,)
    for words in (("--version",), ("--help",), ("lint", "spec.yaml"), ("render", "spec.yaml")):
        yield what, f"rlctl {' '.join(words)}", (*RLCTL, *words), (0,)
    for other, words in (("kubectl", ("version", "--client")), ("ray", ("--version",)), ("sky", ("--version",))):
        if shutil.which(other):
            yield what, f"{other} {' '.join(words)}", (other, *words), (0,)


def renders(folder: Path, actors: int) -> Iterator[Cell]:
    """Every manifest of a run on a cluster."""
    images = {name: f"registry.example/{name}@sha256:{'0' * 64}" for name in ("core", "actor", "learner")}
    spec = {**SMALL, "run": "large", "target": "kubernetes", "images": images, "roles": {"actor": {"replicas": actors}}}
    (folder / "large.yaml").write_text(yaml.safe_dump(spec))
    yield "render", f"rlctl render, {actors:,} actors", (*RLCTL, "render", "large.yaml"), (0,)


def searches(run: product.Run, size: int) -> Iterator[Cell]:
    """Log queries over everything."""
    what = f"search {size / 1e9:g} GB"
    logs = (*RLCTL, "logs", "--run", run.name)
    yield what, "rlctl logs --grep, rare words", (*logs, "--grep", NEEDLE), (0,)
    yield what, "rlctl logs --grep, nowhere", (*logs, "--grep", "no such words at all"), (1,)
    yield what, "rlctl logs --level ERROR", (*logs, "--level", "ERROR"), (0, 1)
    yield what, "rlctl logs --tail 100", (*logs, "--tail", "100"), (0,)
    yield what, "grep -c, rare words", ("grep", "-rc", NEEDLE, str(run.root / "logs")), (0,)


@contextmanager
def logged(run: product.Run, size: int) -> Iterator[None]:
    """A run that has ended, with so many bytes of logs."""
    run.up("--detach")
    run.down()
    try:
        write_logs(run.root / "logs", run.name, size)
        yield
    finally:
        run.down()


def write_logs(folder: Path, run: str, size: int) -> None:
    """Lines as actors write them, in rotated files; one in BEFORE_EACH holds the needle."""
    number, actor = 0, 0
    while size > 0:
        for rotation in range(FILES_A_LOG - 1, -1, -1):
            path = folder / (f"actor-{actor}.log.{rotation}" if rotation else f"actor-{actor}.log")
            written = 0
            with path.open("w") as file:
                while written < min(FILE_BYTES, size):
                    chunk = "".join(line(run, actor, n) for n in range(number, number + 1000))
                    number += 1000
                    written += file.write(chunk)
            size -= written
            if size <= 0:
                return
        actor += 1


def line(run: str, actor: int, number: int) -> str:
    """One record; times go on by a millisecond."""
    message = NEEDLE if number % BEFORE_EACH == 7 else f"episode {number} ended after {number % 500} steps"
    seconds, millis = divmod(number, 1000)
    record = {
        "ts": f"2026-01-{1 + seconds // 86400:02}T{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}."
        f"{millis:03}Z",
        "level": "INFO", "run": run, "role": "actor", "id": f"actor/{actor}", "boot": f"{actor:016x}",
        "msg": message, "kv": {"return": number % 500, "env": number % 16},
    }  # fmt: skip
    return json.dumps(record) + "\n"


def table(rows: list[Row]) -> list[str]:
    body = [
        [what, who, *(tables.measured(found, column) for column in ("wall_s", "cpu_s", "peak_mib"))]
        for what in store.distinct(rows, "what")
        for who in sorted(store.distinct(store.where(rows, what=what), "who"))
        if (found := store.where(rows, what=what, who=who))
    ]
    return tables.table(["", "command", "seconds", "CPU s", "peak RSS MiB"], body)


def plot(rows: list[Row], path: Path) -> None:
    kinds = store.distinct(rows, "what")
    made, axes = plots.figure(max(1, len(kinds)))
    for one, what in zip(axes, kinds, strict=False):
        values = {
            who: store.kept(store.where(rows, what=what, who=who), "wall_s")
            for who in sorted(store.distinct(store.where(rows, what=what), "who"))
        }
        plots.bars(one, {who: spread(some) for who, some in values.items() if some}, title=what, unit="seconds")
    plots.save(made, path)
