"""Shares of the CPU of an agent step: of the actors, the learner, and all other processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.shared import processes, product
from benchmarks.shared.product import Mark, Run

WHO = ("actors", "learner", "others")
"""Others: manager, modelpool, supervisor."""
LOOK_S = 0.02
"""Time between two checks for an update: each makes the learner's process write a page."""


class Seen(NamedTuple):
    """A run at one moment."""

    mark: Mark
    cpu_s: dict[str, float]  # by WHO, since the start


def seen(run: Run, parents: Sequence[int] = ()) -> Seen:
    """As of now.

    Args:
        run: that is up.
        parents: of actors that it has not started itself.
    """
    at_s, steps = time.monotonic(), run.counter("learner", "consumed_steps")
    light_s = processes.cpu_s(parents)
    actors_s, learner_s = light_s + processes.cpu_s(run.pids("actor")), processes.cpu_s(run.pids("learner"))
    whole_s = run.cpu_s() + light_s
    return Seen(
        Mark(at_s, steps, whole_s), dict(zip(WHO, (actors_s, learner_s, whole_s - actors_s - learner_s), strict=True))
    )


def at_update(run: Run, parents: Sequence[int] = (), timeout_s: float = 30.0) -> Seen:
    """The run just after an update of the learner. Until then only its counter is read: to read all processes costs as
    much as hundreds of steps.

    Raises:
        TimeoutError: it makes none.
    """
    before, deadline = run.counter("learner", "consumed_steps"), time.monotonic() + timeout_s
    while run.counter("learner", "consumed_steps") == before:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no update for {timeout_s:g} s")
        time.sleep(LOOK_S)
    return seen(run, parents)


def figures(first: Seen, last: Seen) -> dict[str, Any]:
    """Rates between the two, and milliseconds of CPU that an agent step takes of each."""
    steps = last.mark.steps - first.mark.steps
    taken = {f"{who}_cpu_ms": 1e3 * (last.cpu_s[who] - first.cpu_s[who]) / steps for who in WHO} if steps else {}
    return product.rates(first.mark, last.mark) | taken
