"""`python -m benchmarks.learning [ROW ...] [--seed N ...]`: train what is not valid any more, write docs/learning.md.

A seed is stored when it is done, so the command may end at any time and goes on where it was. A stored seed is valid
while its resolved spec and the code that learns are as they were. Several such commands at once share the seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.learning import claims, comparisons, report
from benchmarks.learning.rows import Row, arms, rows
from benchmarks.learning.stored import Stored, steps
from benchmarks.learning.train import origin, train
from benchmarks.shared import product, signals
from rlctl.spec.problems.findings import simulator_missing

LONG = 1_000_000
"""Rows of more agent steps come last; of the others the first seed of all comes before the second of one."""


def main(words: list[str]) -> int:
    """Returns the exit code: 1 when a seed could not be trained or nothing can be stored, 130 after Ctrl-C."""
    table, sides = rows(), arms()
    known = {row.name: row for row in (*table, *sides)}
    groups = {one.name: one.rows for one in (*comparisons.ABLATIONS, *comparisons.LEARNERS)}
    groups |= {name: (name,) for name in known}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(groups)}; default: all")
    parser.add_argument("--seed", type=int, action="append", help="only these; default: all that the row asks for")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a seed that is ended early stays here, and goes on the next time"
    )
    parser.add_argument("--gpu", action="store_true", help="learners compute on the GPU of this machine")
    parser.add_argument("--tables", action="store_true", help="train nothing; write tables and plots anew")
    chosen = parser.parse_args(words)
    if unknown := [name for name in chosen.rows if name not in groups]:
        parser.error(f"no row {', '.join(unknown)} in specs/learn and specs/ablations; there are {', '.join(groups)}")
    if chosen.gpu and not torch.cuda.is_available():
        parser.error(f"--gpu: torch {torch.__version__} finds none on this machine")
    gpu = torch.cuda.get_device_name() if chosen.gpu else ""
    todo = [known[name] for name in dict.fromkeys(name for group in chosen.rows or known for name in groups[group])]
    for name in chosen.rows if chosen.seed else ():
        most = min(known[row].seeds for row in groups[name])
        if extra := sorted(set(chosen.seed) - set(range(most))):
            parser.error(f"{name} asks for seeds below {most}, not for {', '.join(map(str, extra))}")
    wanted = [(row, seed) for row in todo for seed in range(row.seeds) if not chosen.seed or seed in chosen.seed]
    wanted.sort(key=lambda one: (one[0].agent_steps > LONG, one[1]))
    failed = 0
    for row in [] if chosen.tables else todo:
        if lacking := simulator_missing(row.spec.env.id):
            failed = 1
            say(f"{row.name}: NOT TRAINED: {'; '.join(lacking)} (`make learn` brings it)")
            wanted = [one for one in wanted if one[0] is not row]
    try:
        for row, seed in [] if chosen.tables else wanted:
            failed |= not done(row, seed, gpu, chosen.keep and chosen.keep.resolve())
    except KeyboardInterrupt:
        say("ended early; what was done is stored")
        failed = 130
    except OSError as error:
        say(f"nothing can be stored: {error}")
        failed = 1
    except product.LeftOver as error:
        say(f"ended early: {error}")
        failed = 1
    try:
        report.write(table, sides, report.RESULTS, report.DOCUMENT)
    except OSError as error:
        say(f"tables and plots are not written: {error}")
        failed = failed or 1
    except KeyboardInterrupt:
        say("ended early; tables and plots are not all written: --tables writes them")
        failed = 130
    return failed


def done(row: Row, seed: int, gpu: str, keep: Path | None) -> bool:
    """Whether a seed is valid, or has become so by training it here, or another process trains it. A failure is stored.

    Raises:
        OSError: nothing can be stored.
    """
    with claims.claim(report.RESULTS, row.name, seed) as tell:
        if tell is None:
            say(f"{row.name}, seed {seed}: another process trains it")
            return True
        stored = Stored.read(report.RESULTS, row)
        if stored.valid(row, seed):
            say(f"{row.name}, seed {seed}: valid and stored already")
            return True
        say(f"{row.name}, seed {seed}: {steps(row.agent_steps)} agent steps")
        began, line = time.monotonic(), {"seed": seed, **origin(row, seed, gpu)}
        try:
            found = train(row, seed, tell, gpu, keep)
        except product.LeftOver:
            raise
        except Exception as error:  # the others are measured all the same
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            say(f"{row.name}, seed {seed} failed: {said}")
            stored.fail({**line, "failed": said}, row)
            return False
        stored.add(*found)
        say(f"  {' | '.join(report.line(row, stored)[2:-1])}; {time.monotonic() - began:.0f} s")
        return True


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signals.end_as_ctrl_c()
    sys.exit(main(sys.argv[1:]))
