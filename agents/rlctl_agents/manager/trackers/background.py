"""Tracker in a thread of its own: neither its waits nor its errors reach the manager."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from rlctl_agents.manager.trackers.base import ManagerEnd, Point, Tracker, redacted

ROOM = 1000
"""Points in the queue, at most: over an hour of curves."""
RETRY_S = 30.0
"""Seconds between two attempts to open a tracker."""

log = logging.getLogger(__name__)


class Background:
    """Tracker behind a bounded queue. Points that do not fit, or are refused, are counted and lost.

    Args:
        name: name of the tracker.
        open_run: opens it; may take long, and is retried when it fails.
        room: points in the queue, at most.
        retry_s: seconds between two attempts to open it.
    """

    def __init__(
        self, name: str, open_run: Callable[[], Tracker], *, room: int = ROOM, retry_s: float = RETRY_S
    ) -> None:
        self.name = name
        self._open_run, self._room, self._retry_s = open_run, room, retry_s
        self._waiting: deque[Point] = deque()
        self._config: Mapping[str, Any] | None = None  # spec that the tracker has not taken yet
        self._refused: Mapping[str, Any] | None = None
        self._changed = threading.Condition()
        self._outcome: ManagerEnd | None = None  # set when no more points come
        self._failure = ""
        self._told: set[str] = set()
        self.where = ""
        """Location of the run at the tracker; "" until it is open."""
        self.lost = 0
        """Points that were lost."""
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Present failure in words; "" without one."""
        lost = f"; {self.lost} points are lost" if self.lost else ""
        return f"tracker {self.name}: {self._failure}{lost}" if self._failure else ""

    def news(self) -> list[str]:
        """New messages, each given once per life of this manager: where the run is, and that points are lost or the
        tracker cannot be opened. `problem` keeps reporting how many.
        """
        now = {"where": f"tracker {self.name}: {self.where}" if self.where else "", "problem": self.problem}
        found = {kind: text for kind, text in now.items() if text and kind not in self._told}
        self._told |= found.keys()
        return list(found.values())

    def configure(self, config: Mapping[str, Any]) -> None:
        """Queue another resolved spec; if it fails, it is retried with the next point. Never blocks."""
        with self._changed:
            self._config = config
            self._changed.notify()

    def put(self, item: Point) -> None:
        """Queue a point. Never blocks."""
        with self._changed:
            if len(self._waiting) < self._room:
                self._waiting.append(item)
                self._changed.notify()
            else:
                self.lost += 1
                self._failure = f"it is slow: {self._room} points wait for it"

    def close(self, outcome: ManagerEnd) -> None:
        """Accept nothing more; queued points are still sent."""
        with self._changed:
            self._outcome = outcome
            self._changed.notify()

    def ended(self, within_s: float) -> bool:
        """Wait for the end of a closed tracker; True if it has ended."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Discard queued points, and count them as lost."""
        with self._changed:
            self.lost += len(self._waiting)
            self._waiting.clear()

    def _work(self) -> None:
        tracker = self._open()
        while tracker is not None and self._waits():
            if (config := self._config) is not None:
                self._refused = None if self._attempt(tracker.configure, config) else config
                with self._changed:
                    self._config = None if self._config is config and self._refused is None else self._config
            with self._changed:
                item = self._waiting.popleft() if self._waiting else None
            if item is not None and not self._attempt(tracker.add, item):
                with self._changed:
                    self.lost += 1
        if tracker is None:
            self.give_up()
        else:
            assert self._outcome is not None
            self._attempt(tracker.end, self._outcome)

    def _open(self) -> Tracker | None:
        """Open the tracker, with retries; None: it was closed before."""
        while True:
            try:
                tracker = self._open_run()
            except (Exception, SystemExit) as error:
                self._fail(error)
            else:
                self.where, self._failure = tracker.where, ""
                return tracker
            with self._changed:
                if self._changed.wait_for(lambda: self._outcome is not None, self._retry_s):
                    return None

    def _waits(self) -> bool:
        """Wait until there is something to send; False: nothing is left, and nothing will come."""
        with self._changed:  # a spec that was refused comes again with the next point
            self._changed.wait_for(
                lambda: self._waiting or self._config is not self._refused or self._outcome is not None
            )
            return bool(self._waiting) or self._config is not self._refused

    def _attempt(self, act: Callable[..., object], *values: object) -> bool:
        try:
            act(*values)
        except (Exception, SystemExit) as error:
            self._fail(error)
            return False
        self._failure = ""
        return True

    def _fail(self, error: BaseException) -> None:
        if not self._failure:
            log.error("tracker %s: %s", self.name, redacted(error))
        self._failure = redacted(error)


def await_end(trackers: list[Background], allowed_s: Callable[[], float], beat: Callable[[], None]) -> None:
    """Wait for the end of closed trackers.

    Args:
        allowed_s: seconds for all of them together, from now on; fewer once the process is told to leave.
        beat: sends a heartbeat of this process.
    """
    until = math.inf
    for tracker in trackers:
        while not tracker.ended(min(0.5, max(until - time.monotonic(), 0.0))):
            beat()
            until = min(until, time.monotonic() + allowed_s())
            if time.monotonic() >= until:
                tracker.give_up()
                break
