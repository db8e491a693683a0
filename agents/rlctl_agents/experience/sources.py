"""Sources of the batches that a learner learns from, named by its algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rlctl.spec import algorithms as specs
from rlctl_agents.algorithms.base import Algorithm, AlgorithmError, Batch
from rlctl_agents.types import by_name
from rlctl_agents.types.control import Channels
from rlctl_agents.types.experience import ModelRef, Schema, SegmentBlock
from rlctl_agents.wire.experience import Outcome
from rlctl_agents.wire.sockets import Wire

BUILT_IN = {"on_policy": "rlctl_agents.experience.on_policy:on_policy"}
"""Kind -> factory."""
QUEUED_BATCHES = 3
"""Batches received, above which no sender begins a new segment: one to learn from, one full, one to spare."""


class Receiver(Protocol):
    """The receiving end of the wire; all calls but `wake` come from one thread."""

    least_version: int
    """Oldest version that a block may hold rows of if it is begun from now on."""

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        """Blocks that have arrived; waits for the first at most so long, or until it is woken."""

    def wake(self) -> None:
        """End the wait; from any thread."""

    def settle(self, block: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        """Record the outcome of rows of a block: their sender may send as many."""

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        """Set other limits from now on."""

    def close(self) -> None:
        """Stop listening."""


class BatchSource(Protocol):
    """Batches for one learner. A class of one's own derives from this one and leaves out what it has no use for.

    All methods are called by the learner's thread. A source owns the receiver that it was given: every block that
    comes is settled, once and for all of its rows.
    """

    leads: bool = True
    """True for rank 0 of learners that step together: it alone counts the rows from which all draw."""

    def start(self) -> None:
        """Begin to receive."""

    def take(self, timeout_s: float) -> Batch | None:
        """The next batch, on the learner's device; None when there is none in time.

        Its tensors are the learner's until it gives them back. It holds the learner's share of rows: those of as many
        segments as `Needs.streams`, or the newest `resize`, said when it was begun.

        Raises:
            Exception: the one that ended the source.
        """

    def give_back(self, batch: Batch) -> None:
        """Return a batch that was learned from, after its update: its memory may be used again."""

    def update_priorities(self, batch: Batch, priorities: Tensor) -> None:
        """Set how likely its columns are to be drawn again; before it is given back.

        Args:
            priorities: [B] on any device, NaN for a column that was not looked at.
        """

    def passed_by(self) -> None:
        """Note that the weights have changed by batches of other learners, or by a restore."""

    def resize(self, streams: int) -> None:
        """Set the columns of batches that are not begun yet: the learner's share is another."""

    def example(self) -> Batch | None:
        """A batch as `take` gives it, of any numbers, for compilers; None: there is none before the first."""
        return None

    @property
    def waiting_rows(self) -> int:
        """Rows received that are in no batch yet, or in one that was not given back."""
        return 0

    def waits_for(self) -> str:
        """Reason in words why there is no batch yet, for the log."""
        return f"{self.waiting_rows} rows are here"

    def close(self) -> None:
        """Stop receiving; what was not settled stays in flight."""


class Needs(NamedTuple):
    """Inputs from which a source may be made."""

    receiver: Receiver | None  # None: actors send to replay shards
    schema: Schema
    config: specs.Algorithm
    algorithm: Algorithm
    weights: Callable[[], ModelRef]  # the learner's weights now; called by the learner's thread
    device: torch.device  # of batches
    streams: int  # columns of a batch
    lock_step: bool = False
    seed: int = 0
    shards: Callable[[], Mapping[int, Channels]] = dict  # replay shards that live, by index; by the learner's thread
    wire: Wire | None = None  # for a source that asks them
    boot: str = ""  # of the learner


Factory = Callable[[Needs], BatchSource]


def make_source(needs: Needs) -> BatchSource:
    """The source that the algorithm names.

    Raises:
        AlgorithmError: there is no such kind, its import fails, or what it makes is no source.
    """
    name = needs.algorithm.source
    if name not in BUILT_IN and ":" not in name:
        raise AlgorithmError(
            f"{type(needs.algorithm).__name__}.source: {name} is not built in, which {', '.join(BUILT_IN)} is; "
            "one of your own is package.module:factory"
        )
    try:
        factory: Factory = by_name.load(BUILT_IN.get(name, name))
    except by_name.LoadError as error:
        raise AlgorithmError(f"{type(needs.algorithm).__name__}.source: {error}") from error
    made = factory(needs)
    missing = [one for one in ("take", "give_back", "update_priorities") if not callable(getattr(made, one, None))]
    if missing:
        raise AlgorithmError(f"{type(needs.algorithm).__name__}.source: {name} made no source: no {missing[0]}")
    return made
