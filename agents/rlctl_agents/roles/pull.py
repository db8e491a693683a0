"""Weights from a modelpool, as the bytes that they are: the newest, or exactly one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from rlctl_agents.types.control import GetModel, GotModel
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.notice import NoticeSubscriber
from rlctl_agents.wire.rpc import RemoteError, RpcClient
from rlctl_agents.wire.sockets import Wire

PULL_S = 2.0
"""An answer of the pool that takes longer is not waited for: the old weights do for another segment."""
POLL_S = (5.0, 10.0)
"""Shortest and longest time between two questions for something newer, when there is no notice."""
ASK_AGAIN_S = 0.25
"""Between two questions for a version that is not there yet."""
LISTEN_S = 0.002
"""Between two looks for a notice, while waiting for a version."""


class Model(NamedTuple):
    """Weights as the pool holds them."""

    ref: ModelRef
    sha256: str
    data: memoryview


class Source(Protocol):
    """Where models come from."""

    def newer(self, policy: str, have: ModelRef | None) -> Model | None:
        """The newest model of a policy; None when it is the one we have, or there is none.

        Raises:
            TimeoutError: nobody answers.
        """

    def exact(self, policy: str, version: int) -> Model | None:
        """One version of the live lineage; None when the pool has not got it.

        Raises:
            TimeoutError: nobody answers.
        """

    def notice(self) -> ModelRef | None:
        """What has been announced since the last call."""


class Pool:
    """A modelpool, asked over the wire.

    Args:
        rpc, notice: its two addresses.
        policy: whose notices are heard.
        keep_waiting: a question is given up when this says no.
        pull_s: longest wait for an answer; None: `PULL_S`.
    """

    def __init__(
        self,
        wire: Wire,
        rpc: str,
        notice: str,
        policy: str,
        boot: str,
        keep_waiting: Callable[[], bool],
        *,
        pull_s: float | None = None,
    ) -> None:
        self._client = RpcClient(wire, rpc, boot)
        self._subscriber = NoticeSubscriber(wire, notice, policy)
        self._keep_waiting = keep_waiting
        self._pull_s = pull_s

    def newer(self, policy: str, have: ModelRef | None) -> Model | None:
        return self._ask(GetModel(policy, have=have))

    def exact(self, policy: str, version: int) -> Model | None:
        return self._ask(GetModel(policy, version=version))

    def notice(self) -> ModelRef | None:
        return self._subscriber.latest()

    def wait_for_notice(self, timeout_s: float) -> None:
        """Until something is announced, so long at most."""
        self._subscriber.wait(timeout_s)

    def close(self) -> None:
        """Close the sockets."""
        self._client.close()
        self._subscriber.close()

    def _ask(self, question: GetModel) -> Model | None:
        pull_s = PULL_S if self._pull_s is None else self._pull_s
        try:
            got, buffers = self._client.call(question, GotModel, deadline_s=pull_s, keep_waiting=self._keep_waiting)
        except RemoteError as error:
            raise TimeoutError(f"the modelpool refuses: {error}") from error
        if got.state != "new" or got.ref is None or not buffers:
            return None
        return Model(got.ref, got.sha256, buffers[0])


class Follower:
    """Keeps somebody at the newest weights of a policy.

    A notice is a hint that something newer is there; because notices get lost, the pool is asked now and then anyway.

    Args:
        load: takes the weights; what it raises leaves the present ones in their place.
        policy: which policy.
        source: where from; may be replaced when another pool is assigned.
        pinned: exactly this version of the live lineage, for ever; None: the newest.
        clock: monotonic seconds.
        poll_s: shortest and longest time between two questions without a notice; None: `POLL_S`.
    """

    def __init__(
        self,
        load: Callable[[Model], None],
        policy: str,
        source: Source,
        *,
        pinned: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: tuple[float, float] | None = None,
    ) -> None:
        self.source = source
        self.ref: ModelRef | None = None
        self._take = load
        self.policy = policy
        self._pinned = pinned
        self._clock = clock
        self._poll_s = poll_s or POLL_S
        self._next_poll = clock()
        self._chance = random.Random()

    def refresh(self) -> bool:
        """Pull when there is reason to believe that there is something newer; whether the weights changed.

        Raises what `load` does.
        """
        if self._pinned is not None:
            return False
        heard = self.source.notice()
        announced = heard is not None and (
            self.ref is None or (heard.lineage, heard.version) > (self.ref.lineage, self.ref.version)
        )
        if not announced and self._clock() < self._next_poll:
            return False
        try:
            model = self.source.newer(self.policy, self.ref)
        except TimeoutError:
            self._next_poll = self._clock() + 1.0
            return False
        self._next_poll = self._clock() + self._chance.uniform(*self._poll_s)
        return self._load(model)

    def wait_for_any(self, keep_waiting: Callable[[], bool], sleep: Callable[[float], object]) -> bool:
        """Ask until the pool has weights, the pinned ones if so; False when given up."""
        loaded = self.ref is not None
        while not loaded and keep_waiting():
            try:
                if self._pinned is None:
                    loaded = self._load(self.source.newer(self.policy, None))
                else:
                    loaded = self._load(self.source.exact(self.policy, self._pinned))
            except TimeoutError:
                continue
            if not loaded:
                sleep(ASK_AGAIN_S)
        return loaded

    def wait_for(self, version: int, keep_waiting: Callable[[], bool], sleep: Callable[[float], object]) -> bool:
        """Have exactly this version of the live lineage, as soon as it is there.

        Returns:
            False when given up, or when the lineage is another one than that of the present weights by now; the
            newest weights of the new lineage are loaded then.
        """
        assert self.ref is not None, "wait_for_any comes first"
        ask_at = self._clock()
        while self.ref.version != version and keep_waiting():
            heard = self.source.notice()
            if heard is None and self._clock() < ask_at:
                sleep(LISTEN_S)
                continue
            ask_at = self._clock() + ASK_AGAIN_S
            try:
                model = self.source.exact(self.policy, version)
                if model is None or model.ref.lineage != self.ref.lineage:
                    model = self.source.newer(self.policy, self.ref)
                    if model is None or model.ref.lineage == self.ref.lineage:
                        continue
                    self._load(model)
                    return False
            except TimeoutError:
                continue
            self._load(model)
        return self.ref.version == version

    def _load(self, model: Model | None) -> bool:
        if model is None:
            return False
        self._take(model)
        self.ref = model.ref
        return True
