"""Experience and weights passed within a process, in place of the wire and the modelpool."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rlctl_agents.experience.validation import ValueCheck
from rlctl_agents.runtime.process import UserFault
from rlctl_agents.types.experience import Arrays, Ledger, ModelRef, Schema, SegmentBlock, SegmentHeader
from rlctl_agents.types.spaces import Spaces
from rlctl_agents.weights.client import Model
from rlctl_agents.wire.codec import BlockCodec
from rlctl_agents.wire.experience import Outcome

T = TypeVar("T", bound=np.generic)
VERSIONS = 3
"""Number of versions of the weights that are kept: actors in lock-step are at most two updates behind."""


class DirectReceiver:
    """Receiver (`experience.sources.Receiver`) of blocks that are offered within the process.

    It belongs to the thread that made it: a source that receives in another one cannot be debugged in one thread.
    """

    def __init__(self, spaces: Spaces, schema: Schema) -> None:
        self.least_version = 0
        self.elsewhere = False
        """True once another thread has polled."""
        self._codec, self._check = BlockCodec(schema), ValueCheck(spaces, schema)
        self._thread = threading.get_ident()
        self._blocks: deque[SegmentBlock] = deque()
        self._accepted = 0
        self._unsettled: dict[int, int] = {}  # number of the block -> rows

    def accept(
        self, boot: str, model: ModelRef, stream: Sequence[int], row0: Sequence[int], version: NDArray[np.int64],
        fields: Arrays,
    ) -> None:  # fmt: skip
        """Receive a block.

        Raises:
            ValueError: its arrays do not fit the schema and the spaces; a learner would refuse the actor.
        """
        self._codec.pack(len(stream), version, fields, compress=False)
        if fault := self._check(version, model.version, fields):
            raise ValueError(f"segments that no learner takes: {fault}")
        number, self._accepted = self._accepted, self._accepted + 1
        header = SegmentHeader("", 0, boot, number, "", model, list(stream), list(row0), Ledger())
        block = SegmentBlock(header, _read_only(version), {name: _read_only(one) for name, one in fields.items()})
        self._unsettled[number] = block.rows
        self._blocks.append(block)

    def poll(self, timeout_s: float) -> list[SegmentBlock]:
        """Blocks that have arrived; never waits.

        Raises:
            UserFault: called by another thread.
        """
        if threading.get_ident() != self._thread:
            self.elsewhere = True
            raise UserFault("rlctl debug has one thread, and the source of batches receives in another")
        found = list(self._blocks)
        self._blocks.clear()
        return found

    def wake(self) -> None:
        """Do nothing: no thread waits for blocks."""

    def settle(self, block: SegmentBlock, outcome: Outcome, rows: int | None = None) -> None:
        """Record that rows of a block are settled.

        Raises:
            ValueError: more rows than the block still has.
        """
        left = self._unsettled.get(block.header.sequence, 0)
        rows = left if rows is None else rows
        if not 0 < rows <= left:
            raise ValueError(f"{rows} rows of a block of which {left} are not settled")
        self._unsettled[block.header.sequence] = left - rows
        if rows == left:
            del self._unsettled[block.header.sequence]

    def resize(self, budget_rows: int, batch_size: int, queue_rows: int) -> None:
        """Do nothing: there are no limits here, and actors act when more rows are needed."""

    def close(self) -> None:
        """Do nothing: no socket is open."""


class DirectSender:
    """The sending end: the part of `ExperienceSender` that `acting.rollout` uses."""

    def __init__(self, receiver: DirectReceiver, name: str) -> None:
        self._receiver, self._name = receiver, name
        self.blocks = 0
        """Number of blocks sent."""

    @property
    def least_version(self) -> int:
        """Oldest version that the next block may hold rows of."""
        return self._receiver.least_version

    def offer(
        self, *, model: ModelRef, stream: Sequence[int], row0: Sequence[int], version: NDArray[np.int64], fields: Arrays
    ) -> bool:
        """Pass a block to the receiver; raises as `DirectReceiver.accept`."""
        self._receiver.accept(self._name, model, stream, row0, version, fields)
        self.blocks += 1
        return True

    def reserve(self, rows: int) -> bool:
        """True: there is always room."""
        return True

    def poll(self, timeout_s: float) -> None:
        """Do nothing: no message is in flight."""


class DirectWeights:
    """The newest versions of the weights: the part of `Pool` that `weights.client.Follower` uses.

    Args:
        update: makes the next version; called when an actor asks for one that does not exist yet.
    """

    def __init__(self, update: Callable[[], object]) -> None:
        self._update = update
        self._models: deque[Model] = deque(maxlen=VERSIONS)

    @property
    def newest(self) -> Model:
        """The model published last."""
        return self._models[-1]

    def put(self, model: Model) -> None:
        """Publish a model."""
        self._models.append(model)

    def notice(self) -> ModelRef:
        """Reference of the newest model."""
        return self.newest.ref

    def newer(self, policy: str, have: ModelRef | None, wait_s: float | None = None) -> Model | None:
        """The newest model; None when the caller has it."""
        return None if self.newest.ref == have else self.newest

    def exact(self, policy: str, version: int, lineage: int = 0) -> Model | None:
        """One version, once it has been made; None when it is not kept any more."""
        while self.newest.ref.version < version:
            self._update()
        return next((model for model in self._models if model.ref.version == version), None)


def _read_only(array: NDArray[T]) -> NDArray[T]:
    """A read-only view, as a learner gets arrays of a message."""
    view = array.view()
    view.flags.writeable = False
    return view
