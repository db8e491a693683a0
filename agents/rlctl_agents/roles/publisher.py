"""New weights to every modelpool, in a thread of its own: learning never waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlctl_agents.models.weights import digest
from rlctl_agents.types.control import Channels, GetModel, GotModel, PutModel, Said
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.rpc import RemoteError, RpcClient
from rlctl_agents.wire.sockets import Wire

PUT_S = 2.0
"""Deadline of one put; a pool that takes longer is tried again with what is newest then."""
LOOK_S = 1.0
"""Between two looks whether a pool has been started anew and holds nothing."""
LOCK_STEP_VERSIONS = 3
"""Actors in lock-step are at most two updates apart from the learner, and ask for exact versions."""

log = logging.getLogger(__name__)


class Packed(NamedTuple):
    """Weights, ready to be sent."""

    ref: ModelRef
    sha256: str
    data: bytes


class _Pool:
    """What one pool holds of ours."""

    def __init__(self, client: RpcClient) -> None:
        self.client = client
        self.boot = ""
        self.newest: ModelRef | None = None


class Publisher:
    """Puts the newest weights into every pool, and again into one that has been started anew.

    Args:
        wire: of this process.
        boot: of this process.
        pools: index -> channels of the modelpools, as they are now; called from the thread.
        term: of the manager that we know.
        every_version: no version is left out, and the last few are put again into a new pool (lock-step).
    """

    def __init__(
        self,
        wire: Wire,
        boot: str,
        *,
        pools: Callable[[], Mapping[int, Channels]],
        term: Callable[[], int],
        every_version: bool = False,
    ) -> None:
        self._wire, self._boot = wire, boot
        self._targets, self._term = pools, term
        self._every_version = every_version
        self._recent: deque[Packed] = deque(maxlen=LOCK_STEP_VERSIONS if every_version else 1)
        self._pools: dict[str, _Pool] = {}
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.newest: ModelRef | None = None
        """The newest that some pool holds."""

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def wants(self) -> bool:
        """The last weights have been taken: packing new ones is worth it. In lock-step it always is."""
        return self._every_version or not self._changed.is_set()

    def put(self, ref: ModelRef, data: bytes) -> None:
        """Publish these as soon as possible; weights that wait give way to newer ones. Does not wait."""
        self._recent.append(Packed(ref, digest(data), data))
        self._changed.set()

    def rest(self) -> None:
        """Publish nothing until the next put: others do, and what was put here is older."""
        self._recent.clear()

    def close(self) -> None:
        """Stop publishing."""
        self._stop.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(PUT_S + 1.0)
        for pool in self._pools.values():
            pool.client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            fresh = self._changed.wait(LOOK_S)
            self._changed.clear()
            recent = list(self._recent)
            if not recent:
                continue
            reached = [self._serve(pool, recent, look=not fresh) for pool in self._reachable()]
            if not all(reached):
                self._stop.wait(LOOK_S / 4)
                self._changed.set()

    def _reachable(self) -> list[_Pool]:
        addresses = [channels["rpc"] for channels in self._targets().values()]
        for address in addresses:
            if address not in self._pools:
                self._pools[address] = _Pool(RpcClient(self._wire, address, self._boot))
        for gone in self._pools.keys() - set(addresses):
            self._pools.pop(gone).client.close()
        return list(self._pools.values())

    def _serve(self, pool: _Pool, recent: list[Packed], *, look: bool) -> bool:
        """Bring one pool up to date; False when it did not answer."""
        try:
            if look:
                self._look(pool, recent[-1].ref)
            for packed in recent:
                if pool.newest is None or packed.ref > pool.newest:
                    self._put(pool, packed)
        except TimeoutError:
            return False
        except RemoteError as error:
            log.warning("the modelpool refuses: %s", error)
            return False
        return True

    def _look(self, pool: _Pool, newest: ModelRef) -> None:
        """Whether a pool that has been up to date has lost what it had."""
        got, _ = pool.client.call(
            GetModel(newest.policy, have=newest), GotModel, deadline_s=PUT_S, keep_waiting=self._waiting
        )
        if pool.boot not in ("", got.pool) or got.state == "missing":
            log.info("the modelpool was started anew: it gets the newest weights again")
            pool.newest = None
        pool.boot = got.pool

    def _put(self, pool: _Pool, packed: Packed) -> None:
        said, _ = pool.client.call(
            PutModel(packed.ref, self._term(), packed.sha256),
            Said,
            [packed.data],
            deadline_s=PUT_S,
            keep_waiting=self._waiting,
        )
        if not said.ok:
            raise RemoteError(said.why)
        pool.newest = self.newest = packed.ref

    def _waiting(self) -> bool:
        return not self._stop.is_set()
