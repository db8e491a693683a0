"""Session of one command on a cluster: API, clocks, identity of the user, and sinks of messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rlctl.backends.base import Process, RunState, Say
from rlctl.backends.kubernetes.api.interface import Api
from rlctl.backends.kubernetes.run_state.lock import Lock, LockHolder
from rlctl.waiting import Waiting, quiet, steady


@dataclass
class Session:
    """One command on one run of a cluster.

    Args:
        note: called with a sentence that is worth a line and no error.
        waiting: called with a line for every ten seconds of a wait.
        leave: True once a wait that holds no lock is to be left.
        trouble: returns the processes of a run that do not run; called while waiting for the first actors.
        ask: GET `path` from the manager of the run, or POST it with a body.
        force: take over fields of other field managers.
        home_uid: uid of the run of that name in the index of this user, wherever it is; None: none.
        take_over: change a run that another user has started.
        written: number of writes so far; after one, a refusal leaves the run partly changed.
        locking: called before the lock is taken, so before the first write.
        recorded: uid of the run of that name and place in the index of this user; "": none.
    """

    api: Api
    run: str
    ask: Callable[[str, dict[str, object] | None], dict[str, object]]
    me: LockHolder = field(default_factory=LockHolder.now)
    clock: Callable[[], float] = steady
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    note: Say = quiet
    waiting: Say = quiet
    leave: Callable[[], bool] = lambda: False
    trouble: Callable[[RunState], list[Process]] = lambda state: []
    force: bool = False
    home_uid: str | None = None
    take_over: bool = False
    recorded: str = ""
    written: int = 0
    locking: Callable[[], object] = lambda: None

    def lock(self, verb: str) -> Lock:
        self.locking()
        return Lock(
            self.api, self.run, verb, me=self.me, clock=self.clock, sleep=self.sleep, now=self.now, waiting=self.waiting
        )  # fmt: skip

    def patience(self, limit_s: float) -> Waiting:
        return Waiting(limit_s, self.waiting, self.clock)
