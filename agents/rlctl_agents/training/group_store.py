"""Store of torch.distributed over the manager's RPC, in which the members of a group exchange their addresses.

torch's own stores are a port without authentication, which every user of the machine and every pod that reaches it may
read and write, or a file that both machines see. The manager's RPC is a socket in a private folder on one machine, and
encrypted for processes with the core key on a cluster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from rlctl_agents.types.control import Note, NoteAction, StoreReply
from rlctl_agents.wire.rpc.client import RemoteError

log = logging.getLogger(__name__)

LOOK_S, LOOK_MOST_S = 0.01, 0.2
"""Shortest and longest interval of polls for another member's value, in seconds; each is 1.5 times the last."""


class GroupStore(Store):
    """Key-value store that the members of the newest group share. Called by torch, in several threads.

    Args:
        call: sends a request to the manager; raises TimeoutError or RemoteError.
        boot: of this process.
        group: number of the group.
        wait_s: longest wait for another member's value.
        over: returns True once the group is over or the process stops: waits end then.
    """

    def __init__(
        self,
        call: Callable[[Note], StoreReply],
        boot: str,
        group: int,
        *,
        wait_s: float,
        over: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._call, self._boot, self._group = call, boot, group
        self._wait_s, self._over, self._sleep, self._clock = wait_s, over, sleep, clock

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._await([key], self._wait_s)[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._await(keys, self._wait_s if timeout is None else min(timeout.total_seconds(), self._wait_s))

    def check(self, keys: list[str]) -> bool:
        """True if all keys are set. Never raises: in NCCL's watchdog thread, which polls, it would end the process."""
        try:
            return None not in self._ask("get", keys).values
        except Exception as error:
            log.debug("group %d: %s", self._group, error)
            return False

    def add(self, key: str, value: int) -> int:
        return self._ask("add", [key], amount=value).count

    def deleteKey(self, key: str) -> bool:  # as torch's C++ calls it
        return self._ask("delete", [key]).count > 0

    def getNumKeys(self) -> int:
        return self._ask("count", []).count

    def _await(self, keys: Sequence[str], wait_s: float) -> list[bytes]:
        until, pause_s = self._clock() + wait_s, LOOK_S
        while None in (values := self._ask("get", keys).values):
            if self._over():
                raise RuntimeError(f"group {self._group} is not waited for any more")
            if self._clock() >= until:
                absent = next(key for key, value in zip(keys, values, strict=True) if value is None)
                raise RuntimeError(f"group {self._group}: no member has written {absent} within {wait_s:g} s")
            self._sleep(pause_s)
            pause_s = min(1.5 * pause_s, LOOK_MOST_S)
        return [value for value in values if value is not None]

    def _ask(self, action: NoteAction, keys: Sequence[str], value: bytes = b"", amount: int = 0) -> StoreReply:
        try:
            answer = self._call(Note(self._boot, self._group, action, list(keys), value, amount))
        except (TimeoutError, RemoteError) as error:
            raise RuntimeError(f"group {self._group}: {error}") from error
        return answer
