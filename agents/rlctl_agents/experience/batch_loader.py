"""Experience into batches, in a thread of its own, while the learner learns."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from rlctl_agents.experience.batching import Assembler, Columns, Outcome, Settled
from rlctl_agents.types.experience import ModelRef, Segment

POLL_S = 0.5
"""Longest wait for segments; what the learner says ends it."""


class Receiver(Protocol):
    """The receiving end of the wire; all other calls come from one thread."""

    def poll(self, timeout_s: float) -> list[Segment]:
        """Segments that have arrived; waits for the first at most so long, or until it is woken."""

    def wake(self) -> None:
        """End the wait; from any thread."""

    def settle(self, segment: Segment, outcome: Outcome, rows: int | None = None) -> None:
        """Rows of a segment are done with: their sender may send as many."""

    def resize(self, budget_rows: int, batch_rows: int, queue_rows: int) -> None:
        """Other limits from now on."""

    def close(self) -> None:
        """Stop listening."""


class Intake:
    """Owns the receiver: fills one batch while the learner has the other, and settles every row when its fate is known.

    Args:
        receiver: used by this thread alone.
        assembler: likewise.
        batches: memory for two batches, or more.
        present: the weights that the first batch will be learned with.
        stage: is told of each full batch by this thread: its way to a device begins while another is learned from.
    """

    def __init__(
        self,
        receiver: Receiver,
        assembler: Assembler,
        batches: Sequence[Columns],
        present: ModelRef,
        stage: Callable[[Columns], None] = lambda columns: None,
    ) -> None:
        self._receiver = receiver
        self._assembler = assembler
        self._free = deque(batches)
        self._present = present
        self._stage = stage
        self._ahead = 0  # batches that will be learned before the one being filled
        self._ready: queue.SimpleQueue[Columns | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # in the order in which it was said
        self._instead: deque[Columns] = deque()  # takes the place of batches that come back
        self._limits = (0, 0, 0)  # of rows, as asked for by the newest move; as the receiver has them
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self.waiting_rows = 0
        """Rows received, not learned from yet."""

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def take(self, timeout_s: float) -> Columns | None:
        """The next full batch, in order; None when there is none in time.

        Raises:
            Exception: whatever ended the thread.
        """
        try:
            columns = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if columns is None:
            assert self._failure is not None
            raise self._failure
        return columns

    def give_back(self, columns: Columns, present: ModelRef) -> None:
        """The batch has been learned from, and these are the weights now."""
        self._tell(partial(self._take_back, columns, present))

    def learned(self, present: ModelRef) -> None:
        """These are the weights now, and nothing from here was learned from."""
        self._tell(partial(self._hear, present))

    def move(self, present: ModelRef, batches: Sequence[Columns], budget_rows: int, queue_rows: int) -> None:
        """The learner's part of a batch, or its weights, are others from now on. What is filled already stays filled.

        Args:
            present: the weights now.
            batches: memory that replaces what there was, as soon as nothing lies in that.
            budget_rows, queue_rows: as the receiver has them; more for as long as a wider batch is being filled.
        """
        rows = batches[0].version.size
        self._tell(partial(self._move, present, batches, (budget_rows, rows, queue_rows)))

    def close(self) -> None:
        """Stop receiving; rows not learned from stay in flight."""
        self._stop.set()
        if self._thread.ident is not None:
            self._receiver.wake()
            self._thread.join(5.0)

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
        """One round of the thread: receive, take back, fill, settle."""
        for segment in self._receiver.poll(timeout_s):
            self._assembler.add(segment)
            self.waiting_rows += segment.rows
        while not self._told.empty():
            self._told.get()()
        self._fill()

    def _take_back(self, columns: Columns, present: ModelRef) -> None:
        self._present = present
        self._ahead -= 1
        self._settle(columns.clear())
        if self._instead:
            self._free.append(self._instead.popleft())
            self._limit()
        else:
            self._free.append(columns)

    def _hear(self, present: ModelRef) -> None:
        self._present = present

    def _move(self, present: ModelRef, batches: Sequence[Columns], rows: tuple[int, int, int]) -> None:
        self._present = present
        self._instead = deque(batches)
        for place, columns in enumerate(self._free):
            if columns.used == 0:
                self._free[place] = self._instead.popleft()
        self._limits = rows
        self._limit()

    def _limit(self) -> None:
        """Let in what is asked for, and what it takes to fill a batch from before the move."""
        budget_rows, batch_rows, queue_rows = self._limits
        batch_rows = max(batch_rows, *(columns.version.size for columns in (*self._free, *self._instead)))
        queue_rows = max(queue_rows, 2 * batch_rows) if queue_rows else 0
        self._receiver.resize(max(budget_rows, 2 * batch_rows), batch_rows, queue_rows)

    def _fill(self) -> None:
        while self._free:
            columns = self._free[0]
            # what is filled now will be learned after the batches before it, each of which makes one version
            present = ModelRef(self._present.policy, self._present.lineage, self._present.version + self._ahead)
            self._settle(self._assembler.fill(columns, present))
            if columns.used < columns.version.shape[1]:
                return
            self._free.popleft()
            self._ahead += 1
            self._stage(columns)
            self._ready.put(columns)

    def _settle(self, settled: Sequence[Settled]) -> None:
        for segment, outcome, rows in settled:
            self._receiver.settle(segment, outcome, rows)
            self.waiting_rows -= rows
