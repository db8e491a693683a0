"""Exhaustive tests, and the samples of them that `make test` takes.

`make test-full` sets RLCTL_TEST_FULL=1 and tries every point. Otherwise a sample is drawn from a seed that is the
commit's, so that another commit tries other points; the head of every session prints the command that draws the same
sample again.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

FULL = os.environ.get("RLCTL_TEST_FULL") == "1"
SEED = "RLCTL_TEST_SEED"

T = TypeVar("T")


def seed() -> str:
    """RLCTL_TEST_SEED, else the commit that is tested, else 0; the same in every process of a session."""
    if SEED not in os.environ:
        said = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        os.environ[SEED] = said.stdout.strip() or "0"
    return os.environ[SEED]


def chance(name: str) -> random.Random:
    """Random numbers of one test, from the seed of the session."""
    return random.Random(f"{seed()} {name}")


def sample(name: str, points: Sequence[T], most: int) -> list[T]:
    """At most so many of the points, in their order, the last always among them; in the full form all.

    Args:
        name: of the test, so that two tests draw differently.
    """
    if FULL or len(points) <= most:
        return list(points)
    drawn = chance(name).sample(range(len(points) - 1), most - 1)
    return [points[at] for at in sorted({*drawn, len(points) - 1})]


def size(sampled: int, full: int) -> int:
    """Number of cases that are tried."""
    return full if FULL else sampled
