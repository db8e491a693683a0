"""Client of a modelpool: serialised weights, the newest or one version."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from rlctl_agents.types.control import Channels, GetModel, GotModel, KeepModel, KeepReply
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.notice import NoticeSubscriber
from rlctl_agents.wire.rpc.bulk import SAID_EVERY_S, BulkClient, in_pieces, joined
from rlctl_agents.wire.rpc.client import RemoteError
from rlctl_agents.wire.sockets import Wire

PULL_S = 2.0
"""Longest wait of an actor for a reply of the pool: it makes further segments with the old weights until the new ones
are here."""
POLL_S = (5.0, 10.0)
"""Shortest and longest time between two polls for newer weights, when there is no notice."""
ASK_AGAIN_S = 0.25
"""Time between two requests for a version that is not there yet."""
REFUSED_S = 1.0
"""Backoff after a refusal."""
LISTEN_S = 0.002
"""Time between two polls for a notice, while waiting for a version."""

log = logging.getLogger(__name__)


class Model(NamedTuple):
    """Serialised weights of one version."""

    ref: ModelRef
    sha256: str  # 64 hex digits, of `data`
    data: bytes  # the same object for every reader in a process
    policy: bytes = b""  # description of the policy by its learner, `policy.json`


class Pool:
    """Client of a modelpool.

    A request without a reply in time stays in flight: made again it goes on waiting for that reply, and another request
    replaces it.

    Args:
        channels: addresses of its channels `rpc` and `notice`.
        policy: name of the policy whose notices are subscribed to.
        keep_waiting: checked every 0.1 s of a wait for a reply; False ends it.
    """

    def __init__(
        self, wire: Wire, channels: Channels, policy: str, boot: str, keep_waiting: Callable[[], bool]
    ) -> None:
        self._client = BulkClient(wire, channels["rpc"], boot)
        self._subscriber = NoticeSubscriber(wire, channels["notice"], policy)
        self._keep_waiting = keep_waiting
        self._under_way: GetModel | None = None
        self._throttle = LogThrottle(every_s=SAID_EVERY_S)

    def newer(self, policy: str, have: ModelRef | None, wait_s: float | None = None) -> Model | None:
        """The newest model of a policy; None when it is the one we have, or there is none.

        Args:
            wait_s: longest wait in seconds; 0: poll once; None: `PULL_S`.

        Raises:
            TimeoutError: no reply yet.
            RemoteError: the pool refuses.
        """
        return self._ask(GetModel(policy, have=have), PULL_S if wait_s is None else wait_s)

    def exact(self, policy: str, version: int, lineage: int = 0) -> Model | None:
        """One version: of the live lineage, or of the given one with its description. None when the pool lacks it.

        Raises:
            TimeoutError: no reply within `PULL_S`.
            RemoteError: the pool refuses.
        """
        return self._ask(GetModel(policy, version=version, lineage=lineage), PULL_S)

    def keep(self, model: Model, wait_s: float) -> str:
        """Have the pool store a model on the volume; returns the name of the file there that describes it.

        Raises:
            TimeoutError: not done within `wait_s`.
            RemoteError: it cannot be stored, and why.
        """
        self._under_way = None
        self._client.ask(KeepModel(model.ref, model.sha256, model.policy), in_pieces(model.data))
        kept, _ = self._client.answer(KeepReply, wait_s, self._keep_waiting)
        if kept.why:
            raise RemoteError(kept.why)
        return kept.file

    def notice(self) -> ModelRef | None:
        """The newest model announced since the last call."""
        return self._subscriber.latest()

    def wait_for_notice(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for a model to be announced."""
        self._subscriber.wait(timeout_s)

    def close(self) -> None:
        """Close the sockets."""
        self._client.close()
        self._subscriber.close()

    def _ask(self, question: GetModel, wait_s: float) -> Model | None:
        if question != self._under_way:
            self._client.ask(question)
            self._under_way = question
        try:
            got, buffers = self._client.answer(GotModel, wait_s, self._keep_waiting)
        except RemoteError as error:
            self._under_way = None
            if self._throttle.due("refused"):
                log.warning("the modelpool refuses: %s", error)
            raise
        self._under_way = None
        if got.state != "new" or got.ref is None or not buffers:
            return None
        return Model(got.ref, got.sha256, joined(buffers), got.policy)


class Follower:
    """Follows the newest weights of a policy.

    A notice is a hint that something newer is there; because notices get lost, the pool is also polled, each `POLL_S`.

    Args:
        load: loads the weights; what it raises is passed on, and the present ones stay.
        policy: name of the policy.
        source: pool to pull from; may be replaced when another one is assigned.
        pinned: exactly this version of the live lineage, for ever; None: the newest.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        load: Callable[[Model], None],
        policy: str,
        source: Pool,
        *,
        pinned: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.ref: ModelRef | None = None
        self._take = load
        self.policy = policy
        self._pinned = pinned
        self._clock = clock
        self._next_poll = clock()
        self._asks = False  # the last request had no reply in time and is in flight
        self._refused_until = -float("inf")
        self._chance = random.Random()

    def refresh(self) -> bool:
        """Pull newer weights if a notice was received or a poll is due; returns whether the weights changed.

        Raises what `load` does.
        """
        if self._pinned is not None:
            return False
        heard = self.source.notice()
        announced = heard is not None and (
            self.ref is None or (heard.lineage, heard.version) > (self.ref.lineage, self.ref.version)
        )
        now = self._clock()
        if now < self._refused_until or (not announced and not self._asks and now < self._next_poll):
            return False
        try:
            model = self.source.newer(self.policy, self.ref, 0.0 if self._asks else None)
        except TimeoutError:
            self._asks = True
            return False
        except RemoteError:
            self._asks, self._refused_until, self._next_poll = False, now + REFUSED_S, now
            return False
        self._asks = False
        self._next_poll = self._clock() + self._chance.uniform(*POLL_S)
        return self._load(model)

    def wait_for_any(self, keep_waiting: Callable[[], bool], sleep: Callable[[float], object]) -> bool:
        """Poll until the pool has weights, or the pinned version; False when given up."""
        loaded = self.ref is not None
        while not loaded and keep_waiting():
            loaded = self._load(self._patiently(self._first, keep_waiting))
            if not loaded:
                sleep(ASK_AGAIN_S)
        return loaded

    def wait_for_least(self, version: int, keep_waiting: Callable[[], bool], sleep: Callable[[float], object]) -> None:
        """Wait until the weights are at least this version of the live lineage, or of a newer lineage."""
        assert self.ref is not None, "wait_for_any comes first"
        lineage = self.ref.lineage
        while self.ref.version < version and self.ref.lineage == lineage and keep_waiting():
            if not self.refresh():
                sleep(LISTEN_S)

    def wait_for(self, version: int, keep_waiting: Callable[[], bool], sleep: Callable[[float], object]) -> bool:
        """Wait until the weights are exactly this version of the live lineage.

        Returns:
            False when given up, or when another lineage than that of the present weights has become live; then its
            newest weights are loaded.
        """
        assert self.ref is not None, "wait_for_any comes first"
        ask_at = self._clock()
        while self.ref.version != version and keep_waiting():
            heard = self.source.notice()
            if heard is None and self._clock() < ask_at:
                sleep(LISTEN_S)
                continue
            ask_at = self._clock() + ASK_AGAIN_S
            model = self._patiently(lambda: self.source.exact(self.policy, version), keep_waiting)
            if model is None or model.ref.lineage != self.ref.lineage:
                model = self._patiently(lambda: self.source.newer(self.policy, self.ref), keep_waiting)
                if model is None or model.ref.lineage == self.ref.lineage:
                    continue
                self._load(model)
                return False
            self._load(model)
        return self.ref.version == version

    def _first(self) -> Model | None:
        if self._pinned is None:
            return self.source.newer(self.policy, None)
        return self.source.exact(self.policy, self._pinned)

    def _patiently(self, ask: Callable[[], Model | None], keep_waiting: Callable[[], bool]) -> Model | None:
        """Retry until there is a reply; None, too, when it is given up or refused."""
        while keep_waiting():
            try:
                return ask()
            except TimeoutError:
                continue
            except RemoteError:
                return None
        return None

    def _load(self, model: Model | None) -> bool:
        if model is None:
            return False
        self._take(model)
        self.ref = model.ref
        return True
