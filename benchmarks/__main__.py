"""`python -m benchmarks NAME`: measure, store the CSV, draw the plot, write the table into docs/performance.md.

NAME is one of BENCHMARKS, `all` (all but attacks and regression), or `tables`, which measures nothing and writes every
table and plot anew from the stored figures.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Protocol, cast

import torch

from benchmarks.shared import host, signals, store, tables
from benchmarks.shared.host import REPOSITORY
from benchmarks.shared.product import LeftOver
from benchmarks.shared.session import Session
from benchmarks.shared.store import Row

BENCHMARKS = {
    "peers": "peers.bench",
    "algorithms": "peers.algorithms",
    "limit": "limit",
    "ablation": "ablation",
    "kernels": "kernels",
    "curves": "curves",
    "scaling": "scaling.bench",
    "gpu": "gpu",
    "async": "asynchronous",
    "replay": "replay.bench",
    "shards": "replay.killed",
    "saving": "replay.saving",
    "wire": "wire",
    "fanout": "fanout",
    "cli": "cli",
    "ci": "ci.bench",
    "attacks": "attacks.bench",
    "regression": "regression",
}
"""Name -> module, in the order of docs/performance.md."""


class Benchmark(Protocol):
    """Interface of the module of a benchmark."""

    TITLE: str

    def measure(self, session: Session) -> None:
        """Measure every cell."""

    def table(self, rows: list[Row]) -> list[str]:
        """Markdown, from the stored CSV alone."""

    def plot(self, rows: list[Row], path: Path) -> None:
        """An SVG, from the stored CSV alone."""


def find(name: str) -> Benchmark:
    """The module of a benchmark."""
    return cast(Benchmark, importlib.import_module(f"benchmarks.{BENCHMARKS[name]}"))


def write(name: str, results: Path, document: Path) -> None:
    """Table and plot of the stored figures; nothing without any."""
    folder = results / name
    try:
        rows = store.read(folder / store.CELLS)
    except OSError:
        return
    found = find(name)
    found.plot(rows, folder / "plot.svg")
    lines = [f"## {found.TITLE}", "", tables.host_line(store.read_host(folder)), ""]
    lines += [*found.table(rows), "", *sources(folder, document)]
    tables.replace_section(document, name, lines)


def sources(folder: Path, document: Path) -> list[str]:
    """Links from the document to the stored figures."""
    shown = folder
    if folder.is_relative_to(REPOSITORY) and document.is_relative_to(REPOSITORY):
        up = len(document.parent.relative_to(REPOSITORY).parts)
        shown = Path(*[".."] * up) / folder.relative_to(REPOSITORY)
    raw, plot, card = (shown / file for file in (store.CELLS, "plot.svg", store.HOST))
    return [f"[raw figures]({raw}), [plot]({plot}), [host card]({card})"]


def main(words: list[str]) -> int:
    """Run the command; returns its exit code.

    It is 1 when nothing of a benchmark could be measured, a run could not be ended or a defence did not hold, 130 after
    Ctrl-C.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, "all", "tables"])
    parser.add_argument("--form", choices=["tiny", "short", "full"], default="full")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--document", type=Path, default=REPOSITORY / "docs" / "performance.md")
    chosen = parser.parse_args(words)
    out, document = chosen.out.resolve(), chosen.document.resolve()
    left_out = {"regression", "attacks", *([] if torch.cuda.is_available() else ["gpu"])}
    measured = {"all": [name for name in BENCHMARKS if name not in left_out], "tables": []}
    failed = 0
    card = host.host_card()  # once for all: after the first, the load is the benchmarks' own
    for name in measured.get(chosen.name, [chosen.name]):
        began = time.monotonic()
        print(f"{name}, {chosen.form} form", file=sys.stderr, flush=True)
        try:
            session = Session(out / name, chosen.form)
            session.begin(card)
            find(name).measure(session)
            failed |= any(row.get("held") is False for row in session.rows)
            failed |= bool(session.rows) and all("failed" in row for row in session.rows)
        except KeyboardInterrupt:
            print(f"{name}: ended early; its table is of what was measured", file=sys.stderr, flush=True)
            write(name, out, document)
            return 130
        except LeftOver as error:  # it computes on, so nothing else is measured beside it
            print(f"{name}: ended early: {error}", file=sys.stderr, flush=True)
            write(name, out, document)
            return 1
        except Exception as error:  # the others are measured all the same
            if chosen.name != "all":
                raise
            failed = 1
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        write(name, out, document)
    if chosen.name == "tables":
        for name in BENCHMARKS:
            write(name, out, document)
    return failed


if __name__ == "__main__":
    signals.end_as_ctrl_c()
    sys.exit(main(sys.argv[1:]))
