"""Kills at every step of something that changes what lasts: what is started again afterwards goes on.

Whatever is killed (a command beside a supervisor, a command beside a cluster, a service), the loop is the same: count
the steps of one that is left alone, then kill another at each of them and look at what comes of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from tests.support.samples import sample


class Fuse:
    """Counts the steps of this process, and kills it with SIGKILL at one of them.

    Args:
        kill_at: number of the step, from 1; 0 only counts.
    """

    def __init__(self, kill_at: int) -> None:
        self.kill_at = kill_at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class Kills(NamedTuple):
    """Kills that were tried."""

    steps: int
    """Of what was left alone."""
    tried: list[int]
    """The steps at which one was killed, in their order; the last is always among them."""


def killed_at_every_step(name: str, most: int, whole: Callable[[], int], killed: Callable[[int], object]) -> Kills:
    """Kill something at each of its steps in turn; a sample of them, unless every point is to be tried.

    Args:
        name: of the test, for the sample.
        most: steps of a sample.
        whole: does it undisturbed, once; returns the number of its steps.
        killed: does it anew, killed at that step, and checks what comes of it.
    """
    steps = whole()
    tried = sample(name, range(1, steps + 1), most)
    for at in tried:
        try:
            killed(at)
        except BaseException as error:
            error.add_note(f"killed at step {at} of {steps}")
            raise
    return Kills(steps, tried)
