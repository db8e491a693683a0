"""Trainers of one task in turns of a second: one computes while the others are stopped.

A machine that others share gives now more and now less. What lasts longer than a round of turns hits all alike, so the
ratio of two trainers stands where figures of one after the other would not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Protocol

from benchmarks.peers.window import START_S, CannotDo, Child
from benchmarks.shared import processes, product
from benchmarks.shared.product import Mark, Run

TURN_S = 1.0
LOOK_S = 0.05
LIMIT_S = 600.0
"""Of its own time: longer than the slowest peer takes from its first update to the end of its window."""


class Trainer(Protocol):
    """A training that runs."""

    def roots(self) -> list[int]:
        """Processes above all of it."""

    def await_update(self) -> None:
        """Wait for its first update.

        Raises:
            TimeoutError, RuntimeError: it makes none.
        """

    def look(self) -> Mark | None:
        """Progress at its newest update; None: it has made none since the last look.

        Raises:
            RuntimeError: it has ended.
        """


class Theirs:
    """A peer, which tells of updates itself."""

    def __init__(self, running: Child) -> None:
        self._running = running

    def roots(self) -> list[int]:
        return [self._running.pid]

    def await_update(self) -> None:
        while self._running.next(START_S)[0].steps == 0:  # it may talk before it learns
            pass

    def look(self) -> Mark | None:
        found = None
        with contextlib.suppress(TimeoutError):
            while True:
                line, cpu_s = self._running.next(0.0)
                found = Mark(line.at_s, line.steps, cpu_s)
        return found


class Ours:
    """A run of rlctl, whose learner is asked."""

    def __init__(self, run: Run) -> None:
        self._run, self._steps = run, -1.0
        self._roots: list[int] = []

    def roots(self) -> list[int]:
        return self._roots

    def await_update(self) -> None:
        product.wait_for_steps(self._run, 1, 120)
        self._roots = self._run.supervisor()

    def look(self) -> Mark | None:
        before, now = self._steps, self._run.counter("learner", "consumed_steps")
        if before in (-1.0, now):
            self._steps = now
            return None
        self._steps = -1.0  # the next one is looked for when it is due: what has come until then is no edge
        return Mark(time.monotonic(), now, processes.cpu_s(self._roots))


class _Turn:
    """One trainer with the time that it has had."""

    def __init__(self, trainer: Trainer, warm_s: float, window_s: float) -> None:
        self._trainer, self._warm_s, self._window_s = trainer, warm_s, window_s
        self._own_s = 0.0  # since its first update, while it was not stopped
        self._first: Mark | None = None
        self.figures: dict[str, Any] = {}
        """Once its window is over, or it has failed."""

    def take(self) -> None:
        """Compute for TURN_S. Progress is looked at only where the window may begin or end: a look costs, too."""
        began = time.monotonic()
        _signal(self._trainer, signal.SIGCONT)
        try:
            while (now := time.monotonic()) < began + TURN_S and not self.figures:
                begin_s = self._warm_s if self._first is None else self._first.at_s + self._window_s
                seen = self._trainer.look() if self._own_s + now - began >= begin_s else None
                if seen is not None and seen.at_s >= began:  # else it is of an earlier turn
                    self._mark(seen._replace(at_s=self._own_s + seen.at_s - began))
                time.sleep(LOOK_S)
            if self._own_s > LIMIT_S:
                raise TimeoutError(f"no window of {self._window_s:g} s within {LIMIT_S:g} s")
        except Exception as error:  # it is told, and the others are measured
            self.figures = {"failed": f"{type(error).__name__}: {error}"}
        finally:
            _signal(self._trainer, signal.SIGSTOP)
            self._own_s += time.monotonic() - began

    def _mark(self, seen: Mark) -> None:
        if self._first is None:
            if seen.at_s >= self._warm_s:
                self._first = seen
        elif seen.at_s >= self._first.at_s + self._window_s:
            self.figures = product.rates(self._first, seen)


def in_turns(
    starts: Mapping[str, Callable[[], AbstractContextManager[Trainer]]], *, warm_s: float, window_s: float
) -> dict[str, dict[str, Any]]:
    """Figures of a window of each trainer, by its label. All are started, one after another, before the turns begin.

    Args:
        starts: begin a trainer, and end it.
        warm_s: of its own time, from its first update on.
        window_s: of its own time at least.
    """
    found: dict[str, dict[str, Any]] = {}
    turns: dict[str, _Turn] = {}
    with ExitStack() as stack:
        for label, start in starts.items():
            trainer: Trainer | None = None
            try:
                trainer = stack.enter_context(start())
                stack.callback(partial(_signal, trainer, signal.SIGCONT))  # before it is ended
                trainer.await_update()
                _signal(trainer, signal.SIGSTOP)
            except CannotDo:
                found[label] = {"missing": "has no such task"}
            except product.LeftOver:  # nothing may be measured beside it
                raise
            except Exception as error:  # it is told, and the others are measured
                found[label] = {"failed": f"{type(error).__name__}: {error}"}
                if trainer is not None:
                    _signal(trainer, signal.SIGSTOP)
            else:
                turns[label] = _Turn(trainer, warm_s, window_s)
        while left := [turn for turn in turns.values() if not turn.figures]:
            for turn in left:
                turn.take()
    return found | {label: turn.figures for label, turn in turns.items()}


@contextlib.contextmanager
def theirs(child: Callable[[], AbstractContextManager[Child]]) -> Iterator[Trainer]:
    """A peer until the block ends."""
    with child() as running:
        yield Theirs(running)


@contextlib.contextmanager
def ours(spec: dict[str, Any]) -> Iterator[Trainer]:
    """A run of rlctl until the block ends."""
    with product.running({"run": "bench", **spec}) as run:
        yield Ours(run)


def _signal(trainer: Trainer, number: signal.Signals) -> None:
    """Send it to every process of a trainer, also to those that come into being meanwhile."""
    told: set[int] = set()
    while left := set(processes.tree(trainer.roots())) - told:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        told |= left
