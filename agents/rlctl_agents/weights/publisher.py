"""Publication of new weights to the modelpool: packed, checksummed and sent in a thread of its own. All that it costs
learning is a copy of the parameters."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from msgspec import Struct

from rlctl_agents.models.weights import digest
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.control import Channels, GetModel, GotModel, PutModel, Reply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.rpc.bulk import MAX_BYTES, BulkClient, in_pieces
from rlctl_agents.wire.rpc.client import RemoteError
from rlctl_agents.wire.sockets import Wire

PUT_S = 2.0
"""Time without a connection to a pool after which publishing starts over, with what is newest then."""
LOOK_S = 1.0
"""Time between two checks whether a pool was restarted and holds nothing."""
LOCK_STEP_VERSIONS = 3
"""Newest versions that are kept in lock-step: actors are at most two updates apart from the learner, and ask for exact
versions."""

MOST_BYTES = MAX_BYTES - (1 << 20)
"""Bytes of the largest weights; the rest of a message is for their names."""

T = TypeVar("T", bound=Struct)

log = logging.getLogger(__name__)


def require_size(policy: str, weights_bytes: int) -> None:
    """Check that weights fit into a message.

    Raises:
        UserFault: they are too large.
    """
    if weights_bytes > MOST_BYTES:
        raise UserFault(
            f"policy {policy}: its network has {weights_bytes >> 20} MiB of weights, and more than {MOST_BYTES >> 20} "
            "MiB cannot be brought to actors: choose a smaller `model`"
        )


class _Weights:
    """Weights of one version, packed once, when they are first sent."""

    def __init__(self, ref: ModelRef, pack: Callable[[], bytes]) -> None:
        self.ref = ref
        self._pack = pack

    @cached_property
    def data(self) -> bytes:
        data = self._pack()
        del self._pack  # and with it the copy of the parameters
        return data

    @cached_property
    def sha256(self) -> str:
        return digest(self.data)


class _Pool:
    """A modelpool, and the newest of this learner's weights that it holds."""

    def __init__(self, address: str, client: BulkClient) -> None:
        self.address = address
        self.client = client
        self.boot = ""
        self.newest: ModelRef | None = None
        self.doubtful = False  # True: it may have been restarted since


class Publisher:
    """Puts the newest weights into a pool, and again when it has been restarted or another one is assigned.

    Args:
        wire: of this process.
        boot: of this process.
        pools: index -> channels of the pool, as it is now; called from the thread.
        term: of the manager, as known to this process.
        policy: description that goes with every version.
        every_version: lock-step: no version is left out, and the last few are put again into a restarted pool.
        every: versions from one publication to the next.
        most_ahead: versions that the pool may be behind before learning waits for it; None: it never does.
    """

    def __init__(
        self,
        wire: Wire,
        boot: str,
        *,
        pools: Callable[[], Mapping[int, Channels]],
        term: Callable[[], int],
        policy: bytes = b"",
        every_version: bool = False,
        every: int = 1,
        most_ahead: int | None = None,
    ) -> None:
        self._wire, self._boot = wire, boot
        self._named, self._term = pools, term
        self._policy, self._every_version = policy, every_version
        self._recent: deque[_Weights] = deque(maxlen=LOCK_STEP_VERSIONS if every_version else 1)
        self._pool: _Pool | None = None
        self._changed = threading.Event()
        self._busy = False  # weights are on their way
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self.newest: ModelRef | None = None
        """Newest weights that a pool has taken."""
        self._every, self._most_ahead = every, most_ahead
        self._first = 0  # version since which this learner leads, or follows
        self._published = -every  # newest version that was to be published

    def start(self) -> None:
        """Begin to publish."""
        self._thread.start()

    def wants(self) -> bool:
        """True if no weights are being sent or wait for it: what is put now goes at once. Always True in lock-step."""
        return self._every_version or not (self._busy or self._changed.is_set())

    def put(self, ref: ModelRef, pack: Callable[[], bytes]) -> None:
        """Publish weights as soon as possible; newer ones replace those that wait. Does not wait.

        Args:
            pack: returns the weights as bytes; called in the thread, once at most.
        """
        self._recent.append(_Weights(ref, pack))
        self._changed.set()

    def require_life(self) -> None:
        """Check that the thread is alive.

        Raises:
            RuntimeError: it has ended, by a defect in rlctl that the log shows.
        """
        if not self._thread.is_alive():
            raise RuntimeError("weights are not published any more")

    def rest(self) -> None:
        """Publish nothing until the next put: other learners do, and what was put here is older."""
        self._recent.clear()

    def begin(self, version: int, *, leads: bool) -> None:
        """Publish from this version on, that version at once, or leave it to others."""
        self._first, self._published = version, version - self._every
        if not leads:
            self.rest()

    def publish(self, ref: ModelRef, copied: Callable[[], Callable[[], bytes]], *, last: bool) -> None:
        """Publish weights if that is due.

        Args:
            copied: copies the weights as they are now; returns what packs the copy later.
            last: none will follow, so these are due whatever their version.

        Raises:
            RuntimeError: as `require_life`.
        """
        self.require_life()
        if ref.version - self._published >= (1 if last else self._every) and self.wants():
            self._published = ref.version
            self.put(ref, copied())

    def far_ahead(self, version: int) -> bool:
        """True if the pool is so many versions behind that experience would be stale before it is made."""
        if self._most_ahead is None:
            return False
        reached = self.newest.version if self.newest is not None else self._first
        return version - reached >= self._most_ahead

    def close(self) -> None:
        """Stop publishing."""
        self._stop.set()
        self._changed.set()
        if self._thread.ident is not None:
            self._thread.join(PUT_S + 1.0)
        if self._pool is not None and not self._thread.is_alive():  # else it packs, and has its socket until the end
            self._pool.client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            fresh = self._changed.wait(LOOK_S)
            self._busy = True
            self._changed.clear()
            recent = list(self._recent)
            pool = self._present() if recent else None
            reached = pool is None or self._serve(pool, recent, look=not fresh)
            self._busy = False
            if not reached:
                self._stop.wait(LOOK_S / 4)  # newer ones may come meanwhile
                self._changed.set()

    def _present(self) -> _Pool | None:
        address = self._address()
        if self._pool is not None and self._pool.address != address:
            self._pool.client.close()
            self._pool = None
        if self._pool is None and address:
            self._pool = _Pool(address, BulkClient(self._wire, address, self._boot, again=False))
        return self._pool

    def _serve(self, pool: _Pool, recent: list[_Weights], *, look: bool) -> bool:
        """Bring the pool up to date; False when it did not reply, or refused.

        In lock-step it is polled first: a restarted pool has to get the last few versions in their order, because it
        takes nothing older than what it has.
        """
        doubtful, pool.doubtful = pool.doubtful, True
        try:
            if look or doubtful or self._every_version:
                self._look(pool, recent[-1].ref)
            for weights in recent:
                if pool.newest is None or weights.ref > pool.newest:
                    self._put(pool, weights)
        except TimeoutError:
            return False
        except RemoteError as error:
            log.warning("the modelpool refuses: %s", error)
            return False
        pool.doubtful = False
        return True

    def _look(self, pool: _Pool, newest: ModelRef) -> None:
        """Find out whether a pool that has been up to date has lost what it had."""
        got = self._ask(pool, GetModel(newest.policy, have=newest), GotModel)
        if pool.newest is not None and (pool.boot not in ("", got.pool) or got.state == "missing"):
            log.info("the modelpool was started anew: it gets the newest weights again")
            pool.newest = None
        pool.boot = got.pool

    def _put(self, pool: _Pool, weights: _Weights) -> None:
        request = PutModel(weights.ref, self._term(), weights.sha256, self._policy)
        said = self._ask(pool, request, Reply, in_pieces(weights.data))
        if not said.ok:
            raise RemoteError(said.why)
        pool.newest = self.newest = weights.ref

    def _ask(self, pool: _Pool, request: Struct, reply: type[T], buffers: Sequence[memoryview] = ()) -> T:
        """Send a request to the pool; returns the reply, however long it takes.

        Raises:
            TimeoutError: there is no connection or it was lost, the pool is not assigned any more, or the publisher
                stops.
            RemoteError: it refuses.
        """

        def wanted() -> bool:
            return not self._stop.is_set() and pool.address == self._address()

        pool.client.ask(request, buffers)
        while True:
            try:
                return pool.client.answer(reply, PUT_S, wanted)[0]
            except TimeoutError:
                if pool.client.lost or not pool.client.connected or not wanted():
                    raise

    def _address(self) -> str:
        return next((channels["rpc"] for channels in self._named().values()), "")
