"""Attachment to a run until it is over, Ctrl-C detaches, or a timeout."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from rlctl.cli.apply.stuck import StuckDetector
from rlctl.cli.context import Signalled, World
from rlctl.cli.display import progress as showing
from rlctl.cli.run.snapshot import Observer, Snapshot

if TYPE_CHECKING:
    from rlctl.backends.base import Backend, Process


class Interrupts:
    """Handler of signals: the first is remembered, so that nothing is left half written; the second exits at once.

    Args:
        numbers: signals to handle; default: SIGINT (Ctrl-C).
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.asked = False
        self._numbers = numbers or (signal.SIGINT,)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in self._numbers:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # started with & by a script, or with nohup: not meant for us
                self._before[number] = before
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *ended: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise Signalled(128 + number)
        self.asked = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of an attachment, and the last snapshot; `gone`: the run was removed; `hopeless`: `culprit` is why."""

    why: Literal["over", "ready", "hopeless", "detached", "timeout", "gone"]
    snapshot: Snapshot | None
    culprit: Process | None = None


def attach(
    world: World,
    backend: Backend,
    run: str,
    *,
    interrupts: Interrupts,
    progress: showing.Progress,
    timeout_s: float | None,
    until_ready: bool = False,
) -> Outcome:
    """Display a run until it is over, removed, detached or timed out; changes nothing.

    Args:
        until_ready: return as soon as every replica runs, or one never will.
    """
    deadline_s = None if timeout_s is None else world.clock() + timeout_s
    snapshot = None
    detector = StuckDetector(world.clock)
    with showing.make(world, progress) as shower:
        observer = Observer(world, backend, run)
        while (seen := observer.look()) is not None:
            snapshot = seen
            shower.show(snapshot)
            if snapshot.over:
                return Outcome("over", snapshot)
            if until_ready:
                if snapshot.ready:
                    return Outcome("ready", snapshot)
                culprit = detector.lost(snapshot.processes)
                if culprit is not None:
                    return Outcome("hopeless", snapshot, culprit)
            if interrupts.asked:
                return Outcome("detached", snapshot)
            if deadline_s is not None and world.clock() >= deadline_s:
                return Outcome("timeout", snapshot)
            left_s = backend.poll_every_s if deadline_s is None else max(0.0, deadline_s - world.clock())
            world.sleep(min(backend.poll_every_s, left_s))
    return Outcome("gone", snapshot)
