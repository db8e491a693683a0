"""Relay: mirrors the newest weights of an upstream modelpool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from rlctl_agents.types.control import Channels
from rlctl_agents.weights.client import Follower, Model, Pool
from rlctl_agents.weights.memory_store import RefusedModel
from rlctl_agents.wire.sockets import Wire

LISTEN_S = 0.1
"""Longest wait for a notice, between two checks whether another upstream pool is assigned."""

log = logging.getLogger(__name__)


class Relay:
    """Mirrors the newest weights of one policy from the upstream pool, in a thread of its own: no client waits for it.

    While that pool is silent, or has nothing, the relay keeps its weights, and retries.

    Args:
        wire, boot: of this process.
        policy: name of the policy that is followed.
        above: index -> channels of the upstream pool, as it is now; called from the thread.
        take: serves weights from now on; raises RefusedModel. Called from the thread.
    """

    def __init__(
        self,
        wire: Wire,
        boot: str,
        policy: str,
        *,
        above: Callable[[], Mapping[int, Channels]],
        take: Callable[[Model], None],
    ) -> None:
        self._wire, self._boot, self._policy = wire, boot, policy
        self._above, self._take = above, take
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relay of {policy}", daemon=True)

    def start(self) -> None:
        """Start to follow."""
        self._thread.start()

    def require_life(self) -> None:
        """Check that the thread is alive.

        Raises:
            RuntimeError: it has ended, by a defect in rlctl that the log shows.
        """
        if not self._thread.is_alive():
            raise RuntimeError(f"{self._policy} is not followed any more")

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        at: Channels = {}
        pool: Pool | None = None
        follower: Follower | None = None
        while not self._stop.is_set():
            channels = self._named(at)
            if channels != at:
                log.info("%s comes from %s", self._policy, channels["rpc"])
                before, pool, at = pool, self._connect(channels), channels
                if before is not None:
                    before.close()
                if follower is None:
                    follower = Follower(self._take, self._policy, pool)
                follower.source = pool
            if pool is None or follower is None:
                self._stop.wait(LISTEN_S)
                continue
            try:
                follower.refresh()
            except RefusedModel:  # counted and logged where it was refused; requested again at the next poll
                self._stop.wait(LISTEN_S)
            pool.wait_for_notice(LISTEN_S)
        if pool is not None:
            pool.close()

    def _connect(self, channels: Channels) -> Pool:
        return Pool(
            self._wire, channels, self._policy, self._boot,
            lambda: not self._stop.is_set() and self._named(channels) == channels,
        )  # fmt: skip

    def _named(self, present: Channels) -> Channels:
        """Channels of the upstream pool; the present ones while none is assigned."""
        return next(iter(self._above().values()), present)
