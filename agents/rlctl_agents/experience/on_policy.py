"""The on-policy source: its own thread makes batches of blocks while the learner learns; each row is used once."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import Batch
from rlctl_agents.experience.batching import ArrivalOrder, Assembler, BatchMemory, LockStep, Settled
from rlctl_agents.experience.sources import QUEUED_BATCHES, BatchSource, Needs, Receiver
from rlctl_agents.experience.staging import Staging
from rlctl_agents.types.experience import ModelRef, Schema

POLL_S = 0.5
"""Longest wait for segments, in seconds; a message of the learner ends it."""
BATCHES = 2
"""Number of preallocated batches: one is learned from while the other is filled."""


def on_policy(needs: Needs) -> OnPolicySource:
    """Make the on-policy source: batches in the order of streams in lock-step, else in the order of arrival."""
    schema, config, streams = needs.schema, needs.config, needs.streams
    assert needs.receiver is not None, "an on-policy learner receives from actors"
    return OnPolicySource(
        needs.receiver,
        LockStep(schema, streams) if needs.lock_step else ArrivalOrder(schema, config.max_lag_versions),
        Staging(needs.device),
        schema,
        streams=streams,
        weights=needs.weights,
        limits=partial(limits, config, lock_step=needs.lock_step),
    )


def limits(config: specs.Algorithm, rows: int, *, lock_step: bool = False) -> tuple[int, int]:
    """Limits for batches of `rows` rows: rows of the budget, and queued rows above which no new segment is begun (0:
    no such limit)."""
    return config.budget_rows // config.batch_size * rows, 0 if lock_step else QUEUED_BATCHES * rows


class OnPolicySource(BatchSource):
    """Source that owns the receiver: fills one batch while the learner has the other, and settles every row.

    Args:
        receiver, assembler: used by the source's thread alone.
        staging: allocates the memory of batches, and copies them to the device.
        streams: columns of a batch.
        weights: returns the reference of the learner's current weights.
        limits: rows of a batch -> rows of the budget, and of the queue.
    """

    def __init__(
        self,
        receiver: Receiver,
        assembler: Assembler,
        staging: Staging,
        schema: Schema,
        *,
        streams: int,
        weights: Callable[[], ModelRef],
        limits: Callable[[int], tuple[int, int]],
    ) -> None:
        self._receiver = receiver
        self._assembler = assembler
        self._staging = staging
        self._schema = schema
        self._weights = weights
        self._limits_of = limits
        self._free = deque(self._allocate(streams))
        self._taken: list[tuple[Batch, BatchMemory]] = []  # batches that the learner has
        self._hear(weights())
        self._ahead = 0  # batches that will be learned before the one being filled
        self._ready: queue.SimpleQueue[BatchMemory | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # messages of the learner, in order
        self._instead: deque[BatchMemory] = deque()  # replaces memories that are given back
        self._limits = (0, 0, 0)  # rows of the budget, a batch and the queue, by the newest resize
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._waiting_rows = 0

    def start(self) -> None:
        self._thread.start()

    def take(self, timeout_s: float) -> Batch | None:
        try:
            memory = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if memory is None:
            assert self._failure is not None
            raise self._failure
        batch = self._staging.batch(memory)
        self._taken.append((batch, memory))
        return batch

    def give_back(self, batch: Batch) -> None:
        at = next(number for number, (taken, _) in enumerate(self._taken) if taken is batch)
        memory = self._taken.pop(at)[1]
        self._staging.release(memory)
        self._tell(partial(self._take_back, memory, self._weights()))

    def update_priorities(self, batch: Batch, priorities: Tensor) -> None:
        """Do nothing: no row is used twice."""

    def passed_by(self) -> None:
        self._tell(partial(self._pass, self._weights()))

    def resize(self, streams: int) -> None:
        """Set the columns of batches; filled ones stay, and the receiver's limits stay wide enough for them."""
        memory = self._allocate(streams)
        rows = memory[0].version.size
        budget_rows, queue_rows = self._limits_of(rows)
        self._tell(partial(self._move, self._weights(), memory, (budget_rows, rows, queue_rows)))

    def example(self) -> Batch:
        return self._staging.batch(self._free[0])

    @property
    def waiting_rows(self) -> int:
        return self._waiting_rows

    def waits_for(self) -> str:
        return self._assembler.missing() or super().waits_for()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._receiver.wake()
            self._thread.join(5.0)

    def _allocate(self, streams: int) -> list[BatchMemory]:
        return [self._staging.allocate(self._schema, streams) for _ in range(BATCHES)]

    def _tell(self, said: Callable[[], None]) -> None:
        self._told.put(said)
        self._receiver.wake()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step(POLL_S)
        except Exception as error:
            self._failure = error
            self._ready.put(None)
        finally:
            self._receiver.close()

    def step(self, timeout_s: float) -> None:
        """One iteration of the thread: receive, take back, fill, settle."""
        for segment in self._receiver.poll(timeout_s):
            self._assembler.add(segment)
            self._waiting_rows += segment.rows
        while not self._told.empty():
            self._told.get()()
        self._fill()

    def _take_back(self, memory: BatchMemory, present: ModelRef) -> None:
        self._hear(present)
        self._ahead -= 1
        self._settle(memory.clear())
        if self._instead:
            self._free.append(self._instead.popleft())
            self._limit()
        else:
            self._free.append(memory)

    def _hear(self, present: ModelRef) -> None:
        self._present = present  # weights with which the next batch will be learned
        self._receiver.least_version = self._assembler.least_version(present)

    def _pass(self, present: ModelRef) -> None:
        self._hear(present)
        if self._free and self._free[0].used:
            self._settle(self._assembler.rejudge(self._free[0], self._next))

    @property
    def _next(self) -> ModelRef:
        """Weights with which a batch filled now will be learned: each batch before it makes one version."""
        return ModelRef(self._present.policy, self._present.lineage, self._present.version + self._ahead)

    def _move(self, present: ModelRef, memories: Sequence[BatchMemory], rows: tuple[int, int, int]) -> None:
        self._hear(present)
        self._instead = deque(memories)
        for place, memory in enumerate(self._free):
            if memory.used == 0:
                self._free[place] = self._instead.popleft()
        self._limits = rows
        self._limit()

    def _limit(self) -> None:
        """Set the receiver's limits as requested, but wide enough to fill a batch of before the resize."""
        budget_rows, rows, queue_rows = self._limits
        batch_size = max(rows, *(memory.version.size for memory in (*self._free, *self._instead)))
        batches = min(budget_rows // max(rows, 1), 2)
        queue_rows = max(queue_rows, 2 * batch_size) if queue_rows else 0
        self._receiver.resize(max(budget_rows, batches * batch_size), batch_size, queue_rows)

    def _fill(self) -> None:
        while self._free:
            memory = self._free[0]
            self._settle(self._assembler.fill(memory, self._next))
            if memory.used < memory.version.shape[1]:
                return
            self._free.popleft()
            self._ahead += 1
            self._staging.begin(memory)
            self._ready.put(memory)

    def _settle(self, settled: Sequence[Settled]) -> None:
        for segment, outcome, rows in settled:
            self._receiver.settle(segment, outcome, rows)
            self._waiting_rows -= rows
