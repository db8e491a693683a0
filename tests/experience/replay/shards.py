"""Shards in this process, and the learner's end of their channels: no sockets, no threads, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import msgspec
import numpy as np

from rlctl_agents.experience.replay.messages import Draw, Drawn
from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.replay.server import SharedShard
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.replay.source import Drawer, Shards
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import Channels
from rlctl_agents.types.experience import Schema, SegmentBlock
from rlctl_agents.wire.rpc.client import RemoteError
from tests.experience.replay.reference import Stream, block, schema

T, N_STEP = 5, 2
AGREED = schema(T)
SETTINGS = ReplaySettings(N_STEP, prioritized=True, alpha=1.0)


class Here(Executor):
    """Does at once what is given to it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Place:
    """Place of a shard, which can be killed, started again with another boot, and fed."""

    def __init__(
        self, number: int, *, starts: int = 0, shards: int = 1, ratio: float = 0.0, columns: int = 80,
        agreed: Schema = AGREED, settings: ReplaySettings = SETTINGS, streams: int = 4,
    ) -> None:  # fmt: skip
        self.number, self._starts, self._shards, self._ratio, self._columns = number, starts, shards, ratio, columns
        self._agreed, self._settings, self._streams = agreed, settings, streams
        self.lives, self.alive = 0, True
        self.heard: list[Draw] = []
        self.kill_at_draw = False
        self.answer: Callable[[Drawn, list[memoryview]], tuple[Drawn, list[memoryview]]] | None = None
        self.start()

    def start(self, ratio: float | None = None) -> None:
        """Begin anew, with nothing; perhaps with another ratio."""
        self._ratio = self._ratio if ratio is None else ratio
        self.lives += 1
        self._held: SegmentBlock | None = None
        self.alive, self.boot = True, f"{self.number}-{self.lives}"
        rng = np.random.default_rng([self.number, self.lives])
        actor, first = f"actor{self.number}.{self.lives}", 100 * self.number
        self.streams = [Stream(first + at, actor, rng) for at in range(self._streams)]
        self.shard = Shard(
            self._agreed, self._settings, capacity=self._columns * self._agreed.unroll_length, seed=self.number
        )
        self.shared = SharedShard(
            self.shard, self.boot, starts=self._starts, share=-(-self._starts // self._shards),
            ratio=self._ratio, metrics=Metrics(),
        )  # fmt: skip

    def feed(self, rows: int, scale: float = 0.0) -> int:
        """Rows of actors as long as they may be inserted; with a scale, of uneven masses."""
        put, steps = 0, self._agreed.unroll_length
        while put < rows:
            held = self._held or block(self._agreed, [one.segment(steps) for one in self.streams])
            self._held = None if self.shared.insert(held) else held
            if self._held is not None:  # its senders wait
                break
            put += held.rows
        if scale:
            units, rng = self.shard._units, np.random.default_rng(self.number)
            slot = np.arange(units.count)
            generation = self.shard._ring.generation[units.columns(slot)]
            self.shard.update(slot, generation, scale * rng.pareto(2.0, slot.size) + 0.1)
        return put

    def call(
        self,
        request: Draw,
        reply: type[Drawn],
        buffers: Sequence[Any] = (),
        *,
        deadline_s: float,
        attempt_s: float = 1.0,
        keep_waiting: Callable[[], bool] = lambda: True,
    ) -> tuple[Drawn, list[memoryview]]:
        """As an `RpcClient` does it, over a server that answers in the same thread."""
        if self.kill_at_draw and request.count:
            self.kill_at_draw, self.alive = False, False
        if not self.alive or not keep_waiting():
            raise TimeoutError(f"no answer within {deadline_s} s")
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Draw)
        self.heard.append(read)
        try:
            drawn, arrays = self.shared.draw(read, [memoryview(bytes(one)) for one in buffers])
        except ValueError as error:
            raise RemoteError(str(error)) from error
        if self.answer is not None:
            drawn, arrays = self.answer(drawn, arrays)
        return drawn, [memoryview(bytes(one)) for one in arrays]

    def close(self) -> None:
        """Nothing is open."""


class Run:
    """Shards, and one learner that draws from them."""

    def __init__(
        self, shards: int = 2, *, agreed: Schema = AGREED, settings: ReplaySettings = SETTINGS, **places: Any
    ) -> None:
        self._agreed, self._settings = agreed, settings
        self.places = [Place(at, shards=shards, agreed=agreed, settings=settings, **places) for at in range(shards)]
        self.named: dict[int, Channels] = {at: {"rpc": str(at)} for at in range(shards)}
        self.now = 0.0
        self.learner()

    def learner(self, beta: float = 0.5, seed: int = 1) -> None:
        """A learner that is started again knows nothing."""
        shards = Shards(
            lambda: self.named,
            lambda channels: self.places[int(channels["rpc"])],  # type: ignore[arg-type, return-value]
            clock=lambda: self.now,
            beside=Here(),
        )
        self.drawer = Drawer(shards, self._agreed, settings=self._settings, beta=beta, rng=np.random.default_rng(seed))

    def meet(self) -> None:
        """Ask until all that live have answered."""
        for _ in range(3):
            self.now += 2.0
            self.drawer.draw(1)
