"""Server of a replay shard: one thread inserts the rows of actors, another serves the draws of learners."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rlctl_agents.experience.replay.limiter import InsertLimit
from rlctl_agents.experience.replay.messages import (
    Draw,
    Drawn,
    ShardState,
    changes,
    from_buffers,
    layout,
    to_buffers,
)
from rlctl_agents.experience.replay.shard import Shard
from rlctl_agents.experience.replay.snapshot import ShardSnapshot, restore
from rlctl_agents.runtime.metrics import Metrics
from rlctl_agents.types.experience import SegmentBlock

if TYPE_CHECKING:  # a shard does without torch
    from rlctl_agents.experience.sources import Receiver

POLL_S = 0.2
COUNTERS = (
    "inserted", "overwritten", "restored", "sampled", "priorities", "stale_priorities", "draw_seconds",
    "insert_seconds",
)  # fmt: skip
"""Counters that are reported from the beginning, as 0."""


class FairLock:
    """Lock taken in turn: a thread that has just released it does not overtake one that waits, as a thread that serves
    draw after draw otherwise would."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


class SharedShard:
    """A shard shared by several threads, with the limits that keep inserting and drawing together.

    Args:
        starts: rows that are inserted before the first is drawn, over all shards.
        share: of these, the rows that may be inserted here before a learner has set a limit.
        ratio: rows drawn for each inserted row; 0: no limit.
    """

    def __init__(self, shard: Shard, boot: str, *, starts: int, share: int, ratio: float, metrics: Metrics) -> None:
        self._shard, self._boot = shard, boot
        self._starts, self._ratio, self._metrics = starts, ratio, metrics
        self._lock = FairLock()
        self._limit = InsertLimit(share, limited=ratio > 0)
        self._counted = 0
        self._began = (0, 0, 0)  # rows inserted, agent steps and rows sampled, at the last restore
        self.wake: Callable[[], None] = lambda: None
        """Called when more rows may be inserted than before."""
        for name in COUNTERS:
            metrics.add(name, 0.0)

    def insert(self, block: SegmentBlock) -> bool:
        """Store a block whole, if at least one row may be inserted; True if it was stored."""
        with self._lock:
            if not self._limit.may_insert(self._shard.totals.inserted):
                return False
            before = self._shard.filled
            with self._metrics.timed("insert_seconds"):
                rows = self._shard.insert(block)
            self._metrics.add("inserted", rows)
            self._metrics.add("overwritten", rows - (self._shard.filled - before))
            return True

    def draw(self, request: Draw, buffers: Sequence[memoryview]) -> tuple[Drawn, list[memoryview]]:
        """Serve a learner's request: apply its priorities and limits, then draw units.

        Raises:
            ValueError: the arrays are not those of a priority update of `request.changes` units.
        """
        changed: Mapping[str, NDArray[Any]] | None = None
        if request.changes or buffers:
            changed = from_buffers(buffers, changes(request.changes))
        known = request.boot == self._boot
        with self._lock, self._metrics.timed("draw_seconds"):
            if known and changed is not None:
                taken = self._shard.update(changed["slot"], changed["generation"], changed["delta"])
                self._metrics.add("priorities", taken)
                self._metrics.add("stale_priorities", request.changes - taken)
            if known and self._limit.grant(request.may_insert):
                self.wake()
            if known:
                self._counted = max(self._counted, request.counted)
            drawn = self._shard.draw(request.count) if request.count else None
            count = 0 if drawn is None else drawn.count
            self._metrics.add("sampled", count * self._shard.settings.unit_rows)
            answer = Drawn(self._boot, count, self._standing(None if drawn is None else drawn.total))
        if drawn is None or not count:
            return answer, []
        return answer, to_buffers(drawn.fields, list(layout(self._shard.schema, self._shard.settings, count)))

    @property
    def rows(self) -> int:
        """Rows that are stored."""
        with self._lock:
            return self._shard.filled

    def snapshot(self) -> ShardSnapshot:
        """Snapshot of the shard, to be written by the calling thread."""
        with self._lock:
            return ShardSnapshot(self._shard, self._lock)

    def restore(self, folder: Path, file: str, sha256: str) -> int:
        """Restore a saved part: the whole state if this shard is empty and alike, else its rows, as far as there is
        room. All agent steps that are then inserted count as counted by a learner.

        Returns:
            Number of rows that were added.

        Raises:
            PartError: it cannot be read.
            StateError: it is of other experience, or of no shard.
        """
        with self._lock:
            before = self._shard.totals
            restore(self._shard, folder, file, sha256)
            now = self._shard.totals
            self._began = now.inserted, now.steps, now.sampled
            self._counted = now.steps
            self._metrics.add("restored", now.rows - before.rows)
            return now.rows - before.rows

    def gauges(self) -> dict[str, float]:
        """Gauges of the shard for a report; called by another thread."""
        with self._lock:
            now = self._shard.totals
        return {
            "rows": now.rows,
            "drawable": now.size,
            "mass": now.mass,
            "capacity": self._shard.capacity,
            "array_bytes": now.nbytes,
            "learning_starts": self._starts,
            "samples_per_insert": self._ratio,
        }

    def _standing(self, mass: float | None) -> ShardState:
        now = self._shard.totals
        return ShardState(
            mass=now.mass if mass is None else mass,
            size=now.size,
            rows=now.rows,
            inserted=now.inserted,
            steps=now.steps,
            sampled=now.sampled,
            counted=self._counted,
            began_inserted=self._began[0],
            began_steps=self._began[1],
            began_sampled=self._began[2],
            starts=self._starts,
            ratio=self._ratio,
        )


class Inserter:
    """Thread that inserts the blocks of actors. Blocks over the limit stay unsettled, so that their senders run out of
    credit and wait.

    Args:
        before: called before each poll, by this thread.
    """

    def __init__(self, shared: SharedShard, receiver: Receiver, before: Callable[[], None]) -> None:
        self._shared, self._receiver, self._before = shared, receiver, before
        self._held: deque[SegmentBlock] = deque()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="inserter", daemon=True)
        shared.wake = receiver.wake

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def require_life(self) -> None:
        """Raise the exception that has ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop receiving; held blocks stay in flight."""
        self._stop.set()
        if self._thread.ident is not None:
            self._receiver.wake()
            self._thread.join(5.0)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step(POLL_S)
        except Exception as error:
            self._failure = error
        finally:
            self._receiver.close()

    def step(self, timeout_s: float) -> None:
        """One iteration: receive, then insert the blocks that may be inserted."""
        receiver, shared = self._receiver, self._shared
        self._before()
        self._held.extend(receiver.poll(timeout_s))
        while self._held and shared.insert(self._held[0]):
            receiver.settle(self._held.popleft(), "consumed")
