"""Server of a replay shard: actors' rows come in, learners draw, in a thread each."""

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
    Standing,
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
    """Lock taken in turn: a thread that has just released it does not overtake one that waits, as a thread that answers
    draw after draw otherwise would."""

    def __init__(self) -> None:
        self._next, self._held = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()


class SharedShard:
    """A shard shared by several threads: actors' rows come in, learners draw; neither gets too far ahead.

    Args:
        starts: rows that are inserted before the first is drawn, over all shards.
        share: of these, the rows that are inserted here before a learner has set a limit.
        ratio: rows drawn for each that is inserted; 0: no limit.
    """

    def __init__(self, shard: Shard, boot: str, *, starts: int, share: int, ratio: float, metrics: Metrics) -> None:
        self._shard, self._boot = shard, boot
        self._starts, self._ratio, self._metrics = starts, ratio, metrics
        self._lock = FairLock()
        self._limit = InsertLimit(share, limited=ratio > 0)
        self._counted = 0
        self._began = (0, 0, 0)  # rows inserted, agent steps and rows sampled, of what was restored
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
        """Answer a learner: take its priorities, then draw rows."""
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
        """Rows that it holds."""
        with self._lock:
            return self._shard.filled

    def snapshot(self) -> ShardSnapshot:
        """The shard as it is now, to be written by the thread that asks for it."""
        with self._lock:
            return ShardSnapshot(self._shard, self._lock)

    def restore(self, folder: Path, file: str, sha256: str) -> int:
        """Take over rows that were saved: all of the state as it was if nothing is here yet, else the rows, as far as
        there is room; how many they are. Agent steps that a learner has counted are not counted again.

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
        """Figures of the shard for a report; called by another thread."""
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

    def _standing(self, mass: float | None) -> Standing:
        now = self._shard.totals
        return Standing(
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
    """Thread that takes blocks from actors, and leaves those that may not be inserted yet unsettled: out of credit,
    their senders wait.

    Args:
        before: called before each look, by this thread.
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
        """Raise what has ended the thread."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop receiving; what is held stays in flight."""
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
        """One round: receive, then insert what may be."""
        receiver, shared = self._receiver, self._shared
        self._before()
        self._held.extend(receiver.poll(timeout_s))
        while self._held and shared.insert(self._held[0]):
            receiver.settle(self._held.popleft(), "consumed")
