"""Replay source: batches for one learner, drawn from all shards in proportion to their masses, ahead of the learner."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import AlgorithmError, Batch, Delivery
from rlctl_agents.experience.batching import BatchMemory
from rlctl_agents.experience.frame_stacking import rebuild
from rlctl_agents.experience.replay.limiter import SampleLimit, ShardCounts
from rlctl_agents.experience.replay.memory import shard_settings
from rlctl_agents.experience.replay.messages import (
    CHANGES,
    Draw,
    Drawn,
    ShardState,
    drawn_schema,
    from_buffers,
    layout,
    to_buffers,
    unit_bytes,
)
from rlctl_agents.experience.replay.priorities import ReplaySettings
from rlctl_agents.experience.sources import BatchSource, Needs
from rlctl_agents.experience.staging import Staging
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.control import Channels
from rlctl_agents.types.experience import Arrays, Schema
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.rpc.client import RemoteError, RpcClient

AHEAD = 2
"""Batches drawn ahead: one is learned from while the next ones are made."""
ASK_S = 0.02
"""Seconds between two requests to the shards while there is nothing to draw, or the learner is ahead of the actors."""
ANSWER_S = 3.0
"""Timeout of a request to a shard, in seconds, after which it counts as dead until it replies again; the time of a draw
over a slow link is added."""
SLOW_BYTES_PER_S = 1e7
"""Bytes per second of a slow link."""
AGAIN_S = 1.0
"""Seconds between two requests to a shard that counts as dead."""

log = logging.getLogger(__name__)


def replay(needs: Needs) -> ReplaySource:
    """Make the source of an algorithm that learns from a replay.

    Raises:
        AlgorithmError: its settings are no `Replayed`, or there is no wire.
    """
    config = needs.config
    if not isinstance(config, specs.Replayed) or needs.wire is None:
        raise AlgorithmError(f"{config.name} learns from a replay, but its settings are no `Replayed`")
    wire, boot = needs.wire, needs.boot
    drawer = Drawer(
        Shards(
            needs.shards,
            lambda channels: RpcClient(wire, channels["rpc"], boot),
            unit_bytes=unit_bytes(needs.schema, shard_settings(config)),
        ),
        needs.schema,
        settings=shard_settings(config),
        beta=config.priority_beta if config.prioritized else 0.0,
        rng=np.random.default_rng([needs.seed, int(boot or "0", 16)]),
    )
    return ReplaySource(drawer, Staging(needs.device), needs.streams)


Answer = tuple[int, Drawn, list[memoryview]]
"""Index of a shard, its reply, and the arrays that came with it."""


class ShardPart(NamedTuple):
    """Units of one shard in a batch."""

    shard: int
    boot: str
    units: int
    arrays: Arrays
    chance: float  # probability with which a unit of the batch was requested from this shard
    mass: float  # total mass of the shard when it drew


class RemoteShard:
    """Learner's connection to a shard, with the state that it last reported."""

    def __init__(self, client: RpcClient, channels: Channels) -> None:
        self.client, self.channels = client, channels
        self.boot = ""
        self.standing: ShardState | None = None  # None: it has not replied yet, or counts as dead
        self.changes: list[Arrays] = []
        """Priority updates to be sent with the next draw."""
        self.counted = -1  # agent steps since its start that this learner has counted
        self.asked_again: Future[Answer | None] | None = None
        self.silent_until = 0.0


class Shards:
    """Connections to the live shards.

    Args:
        named: returns the channels of the shards that the manager names, by index.
        connect: opens a connection to the channels of a shard.
        unit_bytes: bytes of a drawn unit in a message.
        beside: executor of requests to silent shards, while the others are drawn from.
    """

    def __init__(
        self,
        named: Callable[[], Mapping[int, Channels]],
        connect: Callable[[Channels], RpcClient],
        *,
        unit_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        beside: Executor | None = None,
    ) -> None:
        self._named, self._connect, self._unit_bytes = named, connect, unit_bytes
        self.known: dict[int, RemoteShard] = {}
        self._pool = ThreadPoolExecutor(8, "shards")
        self._beside = beside or ThreadPoolExecutor(4, "silent")
        self._throttle = LogThrottle()
        self._clock = clock
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Give up the requests that wait for a reply, and all later ones; from any thread."""
        self._stopping.set()

    def look(self) -> list[Answer]:
        """Connect to new shards, close those that are no longer named, and poll silent ones.

        Returns:
            Replies of shards that were silent.
        """
        named = dict(self._named())
        for index, shard in list(self.known.items()):
            if named.get(index) != shard.channels:
                self._give_up(shard)
                del self.known[index]
        answers = []
        for index, channels in named.items():
            if index not in self.known:
                self.known[index] = RemoteShard(self._connect(channels), channels)
            shard = self.known[index]
            if shard.asked_again is not None and shard.asked_again.done():
                answers.append(shard.asked_again.result())
                shard.asked_again = None
            elif shard.standing is None and shard.asked_again is None and self._clock() >= shard.silent_until:
                shard.asked_again = self._beside.submit(self._ask, index, shard, 0, -1)
        return [one for one in answers if one is not None]

    @property
    def live(self) -> dict[int, ShardState]:
        """Standing of the shards that reply, by index; from any thread."""
        found = {index: one.standing for index, one in sorted(self.known.items()) if one.asked_again is None}
        return {index: standing for index, standing in found.items() if standing is not None}

    def ask(self, counts: Mapping[int, int], may_insert: Mapping[int, int]) -> list[Answer]:
        """Send requests to live shards in parallel, and return the replies that came.

        Args:
            counts: units to draw, by index.
            may_insert: limit of inserted rows, by index; without one it stays as before.
        """
        asked = [(index, self.known[index], count, may_insert.get(index, -1)) for index, count in counts.items()]
        answers = [self._ask(*asked[0])] if len(asked) == 1 else self._pool.map(lambda one: self._ask(*one), asked)
        return [one for one in answers if one is not None]

    def _ask(self, index: int, shard: RemoteShard, count: int, may_insert: int) -> Answer | None:
        told, shard.changes = shard.changes, []
        told = list(told)  # the thread that draws may still append to it
        arrays = {
            name: np.concatenate([one[name] for one in told]) if told else np.zeros(0, dtype) for name, dtype in CHANGES
        }
        size, more_s = int(arrays["slot"].size), count * self._unit_bytes / SLOW_BYTES_PER_S
        try:
            drawn, buffers = shard.client.call(
                Draw(count, shard.boot, may_insert, shard.counted, size),
                Drawn,
                to_buffers(arrays, list(arrays)) if size else (),
                deadline_s=ANSWER_S + more_s,
                attempt_s=1.0 + more_s,
                keep_waiting=lambda: not self._stopping.is_set(),
            )
        except (TimeoutError, RemoteError) as error:
            self.leave_out(index, shard, error)
            return None
        if shard.standing is None:
            log.info("replay shard %d answers: %d rows", index, drawn.standing.rows)
        if shard.boot != drawn.boot:
            shard.boot, shard.counted = drawn.boot, -1
        shard.standing = drawn.standing
        return index, drawn, buffers

    def leave_out(self, index: int, shard: RemoteShard, why: Exception) -> None:
        """Draw nothing from a shard until it replies again."""
        told = shard.standing is not None or self._throttle.due(f"shard {index}")
        if told and not self._stopping.is_set():
            log.warning("replay shard %d does not answer, its rows are left out: %s", index, why)
        shard.standing, shard.silent_until = None, self._clock() + AGAIN_S

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown()
        for shard in self.known.values():
            self._give_up(shard)
        self._beside.shutdown()

    def _give_up(self, shard: RemoteShard) -> None:
        if shard.asked_again is None:
            shard.client.close()
        else:  # its socket is another thread's until then
            shard.asked_again.add_done_callback(lambda _: shard.client.close())


class Drawer:
    """Sampler of batches from shards: the number of units of each is drawn from a multinomial over the shards' masses.
    A unit is a row with its window, or a sequence.

    A unit's probability P is that of its shard, as used, times its part of the shard's mass when it was drawn: exact
    even where the learner's masses are stale, or a shard has crashed. Weights are (N P)^-beta, of Schaul et al. 2016,
    arXiv:1511.05952, over the largest of the batch.
    """

    def __init__(
        self,
        shards: Shards,
        schema: Schema,
        *,
        settings: ReplaySettings,
        beta: float,
        rng: np.random.Generator,
    ) -> None:
        self.shards, self.schema, self.settings = shards, drawn_schema(schema, settings), settings
        self._met: set[int] = set()
        self._from, self._beta, self._rng = schema, beta, rng
        self._counted = 0
        self.limit: SampleLimit | None = None
        """Limit of the run, from the first shard that replies; None: none has."""
        self._boots: dict[int, str] = {}

    @property
    def held(self) -> bool:
        """True while a draw waits for actors: there are no rows, or the limit is reached. False while no shard replies,
        unless none ever has."""
        live = self.shards.live.values()
        if not live:
            return self.limit is None
        return self.limit is None or not self.limit.may_sample() or not any(one.mass > 0 for one in live)

    def fresh(self, *, counts: bool = True) -> int:
        """Agent steps inserted into any shard since the last call, except those that an earlier learner has counted.

        Args:
            counts: True if this learner counts them; shards record it for the next learner.
        """
        if self.limit is None:
            return 0
        steps = self.limit.steps
        fresh, self._counted = steps - self._counted, steps
        for shard in self.shards.known.values() if counts else ():
            if shard.standing is not None:
                shard.counted = shard.standing.steps
        return fresh

    def draw(self, units: int) -> list[ShardPart] | None:
        """Draw the units of one batch; None: there is nothing to draw, or the limit is reached."""
        shards = self.shards
        for index, drawn, _ in shards.look():
            self._hear(index, drawn)
        if self.limit is not None:
            self.limit.relax(sum(one.rows for one in shards.live.values()))
        ready = self.limit is not None and self.limit.may_sample()
        if not ready or not any(one.mass > 0 for one in shards.live.values()):
            self._ask(dict.fromkeys(shards.live, 0), units)
            return None
        parts: list[ShardPart] = []
        # the first round asks all shards, some for no units: they report their standing, and get their limits
        besides = [index for index, one in shards.live.items() if not one.mass > 0]
        while (left := units - sum(one.units for one in parts)) > 0:
            live = {index: one for index, one in shards.live.items() if one.mass > 0}
            if not live:
                return None  # the drawn units are dropped: another draw is as good
            masses = np.array([one.mass for one in live.values()])
            chances = masses / masses.sum()
            counts = self._rng.multinomial(left, chances)
            chance = dict(zip(live, chances.tolist(), strict=True))
            asked = {index: int(count) for index, count in zip(live, counts, strict=True) if count or not parts}
            asked |= dict.fromkeys(besides, 0)
            besides = []
            for index, drawn, arrays in self._ask(asked, units):
                if drawn.count:
                    mass = drawn.standing.mass
                    parts.append(ShardPart(index, drawn.boot, drawn.count, arrays, chance[index], mass))
        return parts

    def _ask(self, counts: Mapping[int, int], units: int) -> list[tuple[int, Drawn, Arrays]]:
        live = dict.fromkeys(self.shards.live, 1)
        drawable, rows = any(one.mass > 0 for one in self.shards.live.values()), units * self.settings.unit_rows
        may_insert = {} if self.limit is None else self.limit.may_insert(live, rows, drawable=drawable)
        found = []
        for index, drawn, buffers in self.shards.ask(counts, may_insert):
            self._hear(index, drawn)
            try:
                arrays = from_buffers(buffers, layout(self._from, self.settings, drawn.count)) if drawn.count else {}
            except ValueError as error:  # of an earlier spec: the shard will be restarted soon
                self.shards.leave_out(index, self.shards.known[index], error)
                continue
            found.append((index, drawn, arrays))
        return found

    def _hear(self, index: int, drawn: Drawn) -> None:
        now = drawn.standing
        before = self._boots.get(index)
        if self.limit is None:
            self.limit = SampleLimit(now.ratio, now.starts)
        elif before != drawn.boot:  # a shard that was started anew has the newest settings
            self.limit.change(now.ratio, now.starts)
        self._boots[index] = drawn.boot
        if index not in self._met:  # once: the agent steps that an earlier learner has counted
            self._met.add(index)
            self._counted += now.counted
        counts = ShardCounts(
            drawn.boot, now.inserted, now.sampled, now.steps, now.began_inserted, now.began_sampled, now.began_steps
        )
        if before not in (None, drawn.boot):
            stored = sum(one.rows for one in self.shards.live.values())
            self.limit.refill(stored - min(now.rows, now.inserted - now.began_inserted))
        self.limit.hear(index, counts)

    def fill(self, memory: BatchMemory, parts: Sequence[ShardPart]) -> None:
        """Copy parts side by side into the memory of a batch, with their weights."""
        first, weights = 0, np.ones(memory.version.shape[1], np.float64)
        size = sum(one.size for one in self.shards.live.values())
        for part in parts:
            columns = slice(first, first + part.units)
            first += part.units
            for name, values in memory.fields.items():
                if name == "weight":
                    continue
                if name == "valid" and name not in part.arrays:
                    values[:, columns] = True
                elif name == "rewards":
                    values[columns] = part.arrays[name].T
                elif name in memory.stacked:
                    rebuild(values[:, columns], part.arrays[name], part.arrays["first"])
                else:
                    place = values[columns] if name in memory.segment_fields else values[:, columns]
                    place[...] = part.arrays[name]
            memory.version[:, columns] = part.arrays["version"]
            if self._beta:
                chance = part.chance * part.arrays["mass"].astype(np.float64) / part.mass
                weights[columns] = (size * chance) ** -self._beta
        memory.fields["weight"][:] = weights / weights.max()


class ReplaySource(BatchSource):
    """Source whose thread draws batches ahead of the learner.

    Args:
        drawer: used by the thread alone; others only read its `limit` and the `live` shards.
        staging: allocates the memory of batches, and copies them to the device.
        units: units of a batch of this learner.
    """

    def __init__(
        self, drawer: Drawer, staging: Staging, units: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._drawer, self._staging, self._units = drawer, staging, units
        self._free: deque[BatchMemory] = deque()
        self._allocate()
        self._ready: queue.SimpleQueue[tuple[BatchMemory, list[ShardPart], int, float] | None] = queue.SimpleQueue()
        self._taken: list[tuple[Batch, BatchMemory, list[ShardPart]]] = []
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._woken, self._stop = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self._drawing_since: float | None = None  # start of requests for the next batch; None: it waits for actors
        self._draw_wait_s = self._told_s = 0.0
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, timeout_s: float) -> Batch | None:
        began = self._clock()
        try:
            found = self._ready.get(timeout=timeout_s) if timeout_s > 0 else self._ready.get_nowait()
        except queue.Empty:
            self._count_wait(began, self._drawing_since)
            return None
        if found is None:
            assert self._failure is not None
            raise self._failure
        memory, parts, fresh, drawn_since = found
        self._count_wait(began, drawn_since)
        versions = memory.version[memory.fields["valid"]]
        batch = self._staging.batch(memory)._replace(delivery=Delivery(versions, fresh, fresh))
        self._taken.append((batch, memory, parts))
        return batch

    def update_priorities(self, batch: Batch, priorities: Tensor) -> None:
        parts = next(parts for taken, _, parts in self._taken if taken is batch)
        told = priorities.detach().to("cpu", torch.float32).numpy()
        self._told.put(lambda: self._change(parts, told))

    def give_back(self, batch: Batch) -> None:
        at = next(number for number, (taken, *_) in enumerate(self._taken) if taken is batch)
        memory = self._taken.pop(at)[1]
        self._staging.release(memory)
        self._told.put(lambda: self._take_back(memory))
        self._woken.set()

    def passed_by(self) -> None:
        """Do nothing: draws do not depend on the weights."""

    def resize(self, streams: int) -> None:
        self._told.put(lambda: self._move(streams))
        self._woken.set()

    @property
    def waiting_rows(self) -> int:
        return self._ready.qsize() * self._units * self._drawer.schema.unroll_length

    def waits_for(self) -> str:
        live = self._drawer.shards.live
        if not live:
            return "no replay shard answers"
        limit = self._drawer.limit
        if limit is None or limit.missing:
            wanted = limit.missing if limit else max(one.starts for one in live.values())
            return f"{wanted} more rows are to come into the replay first (replay.learning_starts)"
        if not any(one.mass > 0 for one in live.values()):
            return f"{limit.inserted} rows are in the replay, none of which can be drawn yet"
        return f"{limit.sampled:.0f} rows were drawn of {limit.inserted}: actors are behind replay.samples_per_insert"

    def measure(self, metrics: Metrics) -> None:
        """Report the number of shards that reply, rows drawn for each inserted one, and the part of the learner's wait
        that went to draws in flight."""
        metrics.set("shards", len(self._drawer.shards.live))
        limit = self._drawer.limit
        if limit is not None and (held := limit.samples_per_insert) is not None:
            metrics.set("sampled_per_insert", held)
        waited_s = self._draw_wait_s
        metrics.add("wait_draw_seconds", waited_s - self._told_s)
        self._told_s = waited_s

    def close(self) -> None:
        self._stop.set()
        self._drawer.shards.stop()
        self._woken.set()
        if self._thread.ident is not None:
            self._thread.join(ANSWER_S + 2.0)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if not self.step():
                    self._woken.wait(ASK_S)
                self._woken.clear()
        except Exception as error:
            self._failure = error
            self._ready.put(None)
        finally:
            self._drawer.shards.close()

    def step(self) -> bool:
        """Draw one batch, if there is memory for one; True if one was drawn."""
        while not self._told.empty():
            self._told.get()()
        if not self._free:
            return False
        memory = self._free[0]
        if self._drawer.held:
            self._drawing_since = None
        elif self._drawing_since is None:
            self._drawing_since = self._clock()
        since = self._clock() if self._drawing_since is None else self._drawing_since
        parts = self._drawer.draw(memory.version.shape[1])
        if parts is None:
            return False
        self._free.popleft()
        self._drawer.fill(memory, parts)
        self._staging.begin(memory)
        leads = self.leads
        fresh = self._drawer.fresh(counts=leads)
        self._drawing_since = None
        self._ready.put((memory, parts, fresh if leads else 0, since))
        return True

    def _count_wait(self, began: float, drawn_since: float | None) -> None:
        if drawn_since is not None:
            self._draw_wait_s += max(self._clock() - max(began, drawn_since), 0.0)

    def _allocate(self) -> None:
        self._free = deque(self._staging.allocate(self._drawer.schema, self._units) for _ in range(1 + AHEAD))

    def _take_back(self, memory: BatchMemory) -> None:
        if memory.version.shape[1] == self._units:
            self._free.append(memory)
        else:
            self._free.append(self._staging.allocate(self._drawer.schema, self._units))

    def _move(self, units: int) -> None:
        if units != self._units:
            self._units = units
            self._free = deque(self._staging.allocate(self._drawer.schema, units) for _ in self._free)

    def _change(self, parts: Sequence[ShardPart], told: NDArray[np.float32]) -> None:
        first = 0
        for part in parts:
            delta = told[first : first + part.units]
            first += part.units
            shard = self._drawer.shards.known.get(part.shard)
            seen = ~np.isnan(delta)
            if shard is not None and shard.boot == part.boot and seen.any():
                changes = {"slot": part.arrays["slot"], "generation": part.arrays["generation"], "delta": delta}
                shard.changes.append({name: values[seen] for name, values in changes.items()})
