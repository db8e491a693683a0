"""Progress of a measured trainer: one JSON line on its standard output. Standard library only."""

from __future__ import annotations

import json
import os
import time

EVERY_S = 0.25
_last = 0.0
_stdout = os.dup(1)  # trainers print to standard output as well: their lines go to standard error
os.dup2(2, 1)


def tell(steps: float, score: float | None = None) -> None:
    """Agent steps that learning has consumed so far, and the mean return of the last 100 training episodes."""
    global _last
    now = time.monotonic()
    if now - _last < EVERY_S and score is None:
        return
    _last = now
    line = {"at_s": now, "steps": float(steps), "score": score}
    os.write(_stdout, json.dumps(line).encode() + b"\n")
