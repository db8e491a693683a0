"""Sources of the learner's batches, named by its algorithm."""

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
"""Kind of source -> its factory."""
QUEUED_BATCHES = 3
"""Received batches above which no sender begins a new segment: one is learned from, one is full, one is spare."""


class Receiver(Protocol):
    """Receiving end of the wire; all methods but `wake` are called by one thread."""

    least_version: int
    """Oldest version whose rows a block may hold if it is begun from now on."""

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        """Blocks that have arrived; waits for the first for at most `timeout_s`, or until `wake`."""

    def wake(self) -> None:
        """End the wait; from any thread."""

    def settle(self, block: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        """Record the outcome of rows of a block (None: all that are left): their sender may send as many again."""

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        """Set new limits, in rows, from now on."""

    def close(self) -> None:
        """Stop listening."""


class BatchSource(Protocol):
    """Batches for one learner. A user's own class derives from this one and overrides the methods that it needs.

    All methods are called by the learner's thread. A source owns its receiver, and must settle all rows of every
    block, each once.
    """

    leads: bool = True
    """True for rank 0 of learners that step together: it alone counts the rows of a replay from which all draw."""

    def start(self) -> None:
        """Begin to receive."""

    def take(self, timeout_s: float) -> Batch | None:
        """The next batch, on the learner's device; None if there is none within `timeout_s`.

        The learner owns its tensors until it gives the batch back. It holds the learner's share of rows: as many
        columns as `Needs.streams`, or the newest `resize`, said when it was begun.

        Raises:
            Exception: the one that ended the source.
        """

    def give_back(self, batch: Batch) -> None:
        """Return a batch that was learned from, after its update: its memory may be used again."""

    def update_priorities(self, batch: Batch, priorities: Tensor) -> None:
        """Set the priorities with which its columns are drawn again; called before it is given back.

        Args:
            priorities: [B] on any device, NaN for a column that was in no minibatch.
        """

    def passed_by(self) -> None:
        """Note that the weights changed by other learners' batches or by a restore."""

    def resize(self, streams: int) -> None:
        """Set the number of columns of batches that are not begun yet: the learner's share has changed."""

    def example(self) -> Batch | None:
        """A batch in the form of `take`, with arbitrary numbers, for compilers; None: not before the first batch."""
        return None

    @property
    def waiting_rows(self) -> int:
        """Received rows that are in no batch yet, or in one that was not given back."""
        return 0

    def waits_for(self) -> str:
        """Reason why there is no batch yet, in words, for the log."""
        return f"{self.waiting_rows} rows are here"

    def close(self) -> None:
        """Stop receiving; rows that were not settled stay in flight."""


class Needs(NamedTuple):
    """Inputs of a source's factory."""

    receiver: Receiver | None  # None: actors send to replay shards
    schema: Schema
    config: specs.Algorithm
    algorithm: Algorithm
    weights: Callable[[], ModelRef]  # the learner's weights now; called by the learner's thread
    device: torch.device  # of batches
    streams: int  # columns of a batch
    lock_step: bool = False
    seed: int = 0
    shards: Callable[[], Mapping[int, Channels]] = dict  # live replay shards, by index; called by the source
    wire: Wire | None = None  # for requests to them
    boot: str = ""  # of the learner


Factory = Callable[[Needs], BatchSource]


def make_source(needs: Needs) -> BatchSource:
    """Make the source that the algorithm names.

    Raises:
        AlgorithmError: there is no such kind, its import fails, or its result is no source.
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
