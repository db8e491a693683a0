"""`python -m benchmarks.learning [ROW ...] [--seed N ...]`: train what is not valid any more, write docs/learning.md.

A seed is stored when it is done, so the command may end at any time and goes on where it was. A stored seed is valid
while its resolved spec and the code that learns are as they were.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.learning import report
from benchmarks.learning.report import Stored
from benchmarks.learning.rows import rows
from benchmarks.learning.train import train
from rlctl.spec.problems.findings import simulator_missing

LONG = 1_000_000
"""Rows of more agent steps come last; of the others the first seed of all comes before the second of one."""


def main(words: list[str]) -> int:
    """Returns the exit code: 1 when a seed could not be trained, 130 after Ctrl-C."""
    known = {row.name: row for row in rows()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(known)}; default: all")
    parser.add_argument("--seed", type=int, action="append", help="only these; default: all that the row asks for")
    parser.add_argument("--tables", action="store_true", help="train nothing; write table and plots anew")
    chosen = parser.parse_args(words)
    if unknown := [name for name in chosen.rows if name not in known]:
        parser.error(f"no row {', '.join(unknown)} in specs/learn; it has {', '.join(known)}")
    todo = [known[name] for name in chosen.rows or known] if not chosen.tables else []
    wanted = [(row, seed) for row in todo for seed in chosen.seed or range(row.seeds)]
    failed = 0
    for row in todo:
        if lacking := simulator_missing(row.spec.env.id):
            failed = 1
            say(f"{row.name}: NOT TRAINED: {'; '.join(lacking)} (`make learn` brings it)")
            wanted = [one for one in wanted if one[0] is not row]
    try:
        for row, seed in sorted(wanted, key=lambda one: (one[0].agent_steps > LONG, one[1])):
            stored = Stored.read(report.RESULTS, row)
            if stored.valid(row, seed):
                continue
            say(f"{row.name}, seed {seed}: {report.steps(row.agent_steps)} agent steps")
            began = time.monotonic()
            try:
                stored.add(*train(row, seed))
            except (RuntimeError, OSError) as error:  # the others are measured all the same
                failed = 1
                say(f"{row.name}, seed {seed}: {error}")
                continue
            say(f"  {' | '.join(report.line(row, stored)[2:-1])}; {time.monotonic() - began:.0f} s")
    except KeyboardInterrupt:
        return 130
    finally:
        report.write(list(known.values()))
    return failed


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
