"""A process that kills itself at one of its steps, so that a test can kill it at each of them in turn."""

from __future__ import annotations

import os
import signal


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
