"""Heartbeat: renews the lease of a build while a worker has it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from rlctl.errors import RlctlError
from rlctl_ci.core.errors import Cancelled, LostLease, ShuttingDown
from rlctl_ci.store.queue import Queue

BEAT_S: Final = 10.0


class LeaseHeartbeat:
    """Heartbeat of a worker: renews the lease of its build, and receives a cancellation.

    Args:
        queue, build, owner: queue, build and holder of the lease.
        every_s: seconds between two renewals.
        ends: whether the service shuts down.
    """

    def __init__(
        self, queue: Queue, build: int, owner: str, every_s: float = BEAT_S, ends: Callable[[], bool] = lambda: False
    ) -> None:
        self._ends = ends
        self._queue, self._build, self._owner, self._every_s = queue, build, owner, every_s
        self._why = ""
        self._lost = False
        self._over = threading.Event()
        self._ignores = False
        self._thread = threading.Thread(target=self._run, name=f"lease-{build}", daemon=True)

    def __enter__(self) -> LeaseHeartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def stop(self) -> None:
        """Raise if the attempt has to end.

        Raises:
            ShuttingDown: the service shuts down; the attempt ends wherever it is, as if it were killed.
            LostLease: another worker has the build.
            Cancelled: by a person or a newer commit.
        """
        if self._ends():
            raise ShuttingDown("the service ends; its next life goes on with this build")
        if self._lost:
            raise LostLease(f"build {self._build} is not ours any more")
        if self._why and not self._ignores:
            raise Cancelled(self._why)

    def ignore_cancellation(self) -> None:
        """Ignore cancellations from here on: the deployment that has begun is undone first."""
        self._ignores = True

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Renew the lease now."""
        try:
            self._why = self._queue.beat(self._build, self._owner) or self._why
        except LostLease:
            self._lost = True
        except RlctlError:
            pass  # the database is busy; the lease lasts for several beats
