"""Sender of the experience channel: never blocks, never grows, counts every row."""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import zmq
from numpy.typing import NDArray

from rlctl_agents.types.experience import Arrays, Ledger, ModelRef, Schema
from rlctl_agents.wire.address import leaves_machine
from rlctl_agents.wire.codec import PROTOCOL, ArrayHead, BlockCodec, Buffer, Rejected, receive
from rlctl_agents.wire.experience.protocol import (
    CREDIT_VALID_S,
    HELLO_EVERY_S,
    BlockMessage,
    Refusal,
    SenderHello,
    encode,
    schema_digest,
    to_sender,
)
from rlctl_agents.wire.sockets import Socket, Wire

_GRANT_BYTES = 1 << 16
_ASK_AGAIN_S = 0.2  # while flushing
_NOTHING = (-1, -1)
_POLLIN = int(zmq.POLLIN)  # an enum costs more to calculate with

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _QueuedBlock:
    """A block that waits for credit."""

    rows: int
    term: int
    model: ModelRef
    stream: bytes
    row0: bytes
    heads: list[ArrayHead]
    frames: list[Buffer]


@dataclass(slots=True)
class _Receiver:
    """Rows and blocks sent to one receiver boot, and its newest grant."""

    sent: int = 0  # rows
    sequence: int = 0  # of the next block
    limit: int = 0
    number: int = 0  # of the newest grant
    seen: int = 0  # rows it knows about
    least: int = 0  # oldest version that the next block may hold


class ExperienceSender:
    """Sends blocks of segments to one receiver at a time, as far as it allows.

    Args:
        wire: of this process.
        address: of the receiver, which need not be there yet.
        run: run uid.
        boot: of this process.
        schema: of the segments; the receiver refuses another.
        term: of the manager that leased this process; stamped on a block when it is offered.
        ticket: of the same lease; a receiver with keys requires it.
        on_policy: with a full queue `offer` returns False; otherwise the oldest block is dropped and counted.
        queue_blocks: blocks that may wait for credit.
        build: of the environment, stamped on every block.
        compress: whether large uint8 arrays are, with zstd level 1; None: when the receiver is on another machine.
        clock: monotonic seconds.

    One thread at a time; `ledgers` and `pending` may be read from another.

    Raises:
        ValueError: an address that is not allowed, or a schema that cannot be sent.
    """

    ticket: str
    """Newest ticket from the manager."""
    refused: str = ""
    """Reason why the receiver refuses this sender; empty when it does not."""

    def __init__(
        self,
        wire: Wire,
        address: str,
        *,
        run: str,
        boot: str,
        schema: Schema,
        term: int,
        ticket: str = "",
        on_policy: bool = True,
        queue_blocks: int = 2,
        build: str = "",
        compress: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if queue_blocks < 1:
            raise ValueError(f"queue_blocks must be at least 1, got {queue_blocks}")
        self._term = term
        self._wire, self._address = wire, address
        self._run, self._boot = run, boot
        self.ticket = ticket
        self._codec = BlockCodec(schema)
        self._steps = schema.unroll_length
        self._digest = schema_digest(schema)
        self._on_policy = on_policy
        self._queue_blocks, self._build = queue_blocks, build
        self._compress = compress
        self._clock = clock
        self._queue: deque[_QueuedBlock] = deque()
        self._pending = self._produced = self._dropped = self._block_rows = 0
        self._reserved = 0  # rows of a block that is going to be made
        self._receivers: dict[str, _Receiver] = {}
        self._receiver = ""  # boot of the present one; "": not known
        self._now: _Receiver = _Receiver()  # its state
        self._heard = self._said = -float("inf")
        self._looked = clock()
        self._told = _NOTHING  # rows that wait and rows of the largest block, as the receiver knows them
        self._socket = self._connect()

    @property
    def term(self) -> int:
        """Term of the manager that leased this process; set it when it changes."""
        return self._term

    @term.setter
    def term(self, term: int) -> None:
        if term != self._term:
            self._term, self._told = term, _NOTHING

    @property
    def max_rows(self) -> int:
        """Largest number of rows of one block."""
        return self._codec.max_rows

    @property
    def pending(self) -> int:
        """Rows produced, neither sent nor dropped."""
        return self._pending

    @property
    def ledgers(self) -> dict[str, Ledger]:
        """Receiver boot -> totals; `produced` and `dropped` are those of this process in each of them."""
        produced, dropped = self._produced, self._dropped
        return {boot: Ledger(produced, dropped, state.sent) for boot, state in list(self._receivers.items())}

    def ready(self) -> bool:
        """True if there is room in the queue; `offer` will not refuse."""
        return not self._on_policy or len(self._queue) < self._queue_blocks

    @property
    def least_version(self) -> int:
        """Oldest version of rows in the next block; the receiver would drop older ones."""
        return self._now.least

    def reserve(self, rows: int) -> bool:
        """Request credit for the next block before it is made; returns whether it is there. The next `offer` uses it.

        A block that is made without credit grows old while it waits. An on-policy caller polls until it has credit,
        takes the newest weights, and only then begins the block.

        Args:
            rows: of the block.
        """
        self._reserved = rows
        self._block_rows = max(self._block_rows, rows)
        if not self._covered():
            self._pump()
        return self._covered()

    def offer(
        self,
        *,
        model: ModelRef,
        stream: Sequence[int],
        row0: Sequence[int],
        version: NDArray[np.int64],
        fields: Arrays,
    ) -> bool:
        """Queue a block and send what can be sent. Does not wait.

        The arrays belong to this sender from now on: large ones are sent without a copy, so they must not change.

        Args:
            model: of the newest row.
            stream: [B] unique in the run.
            row0: [B] number of the first row in its stream.
            version: [T, B] of the weights behind each action.
            fields: as the schema says.

        Returns:
            False when the queue is full and nothing may be dropped: call `poll`, then offer again. The block is counted
            as produced once it is taken.

        Raises:
            ValueError: the arrays are not what the schema says.
        """
        if len(self._queue) >= self._queue_blocks:
            self._pump()
        if not self.ready():
            return False
        streams = len(stream)
        if streams < 1 or len(row0) != streams:
            raise ValueError(f"stream and row0 must have an entry per stream, got {streams} and {len(row0)}")
        # on one machine it costs more than it saves
        compress = leaves_machine(self._address) if self._compress is None else self._compress
        heads, frames = self._codec.pack(streams, version, fields, compress=compress)
        waiting = _QueuedBlock(
            streams * self._steps,
            self._term,
            model,
            array("q", stream).tobytes(),
            array("q", row0).tobytes(),
            heads,
            frames,
        )
        if len(self._queue) >= self._queue_blocks:
            self._drop()
        self._queue.append(waiting)
        self._reserved = 0
        self._produced += waiting.rows
        self._pending += waiting.rows
        self._block_rows = max(self._block_rows, waiting.rows)
        self._pump()
        return True

    def poll(self, timeout_s: float) -> None:
        """Receive grants and send blocks; returns as soon as one came or went, at the latest after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while not self._pump() and (left := until - time.monotonic()) > 0:
            sendable = self._hello_due() or self._allowed()
            flags = zmq.POLLIN | zmq.POLLOUT if sendable else zmq.POLLIN
            self._socket.poll(int(min(left, 0.1) * 1000) + 1, flags)

    def redirect(self, address: str) -> None:
        """Send to the receiver at another address from now on, waiting blocks too. The same address changes nothing."""
        if address == self._address:
            return
        self._socket.close(0)
        self._address = address
        self._receiver, self._now = "", _Receiver()
        self._heard = self._said = -float("inf")
        self._told = _NOTHING
        self.refused = ""
        self._socket = self._connect()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the receiver knows of all offered rows; False when it does not within `timeout_s`."""
        until = time.monotonic() + timeout_s
        asked = -float("inf")
        while True:
            if not self._queue and self._now.seen >= self._now.sent:
                return True
            now = time.monotonic()
            if now >= until:
                return False
            if not self._queue and now - asked >= _ASK_AGAIN_S and self._hello():
                asked = now
            self.poll(min(until - now, 0.05))

    def close(self) -> None:
        """Close the socket; blocks that still wait are counted as dropped."""
        while self._queue:
            self._drop()
        self._socket.close(0)

    def _connect(self) -> Socket:
        # IMMEDIATE: nothing is handed to a connection that does not exist and lost with it
        options = {zmq.IMMEDIATE: 1, zmq.SNDHWM: 64, zmq.RCVHWM: 64}
        return self._wire.connect(zmq.DEALER, self._address, max_message_bytes=_GRANT_BYTES, options=options)

    def _drop(self) -> None:
        oldest = self._queue.popleft()
        self._pending -= oldest.rows
        self._dropped += oldest.rows

    def _allowed(self) -> bool:
        return bool(self._queue) and self._now.sent + self._queue[0].rows <= self._now.limit

    def _covered(self) -> bool:
        return self._now.sent + self._pending + self._reserved <= self._now.limit

    def _hello_due(self) -> bool:
        waits = (bool(self._queue) and not self._allowed()) or (self._reserved > 0 and not self._covered())
        if waits and (self._pending + self._reserved > self._told[0] or self._block_rows > self._told[1]):
            return True
        now = self._clock()
        return now - self._said >= HELLO_EVERY_S and (waits or now - self._heard >= HELLO_EVERY_S)

    def _pump(self) -> bool:
        """Receive and send what is possible without waiting; True if anything was received or sent."""
        progress, looked, self._looked = False, self._looked, self._clock()
        if self._wire.ended(self._socket):
            self._socket.close(0)
            self._socket = self._connect()
            self._now.limit, self._said, self._told = 0, -float("inf"), _NOTHING
        while int(self._socket.getsockopt(zmq.EVENTS)) & _POLLIN:  # cheaper than to receive nothing
            message = receive(self._socket, 1, 0)
            if message is None:
                break
            head, frames = message
            if frames is not None and self._take(head[0]):
                progress = True
        # a grant that came while this sender did not poll may be of credit that others have by now; a sender that may
        # drop blocks uses it, as it never waits for a reply
        since = min(looked, self._heard) if self._on_policy else self._heard
        if self._now.limit and self._looked - since >= CREDIT_VALID_S:
            self._now.limit, self._told = 0, _NOTHING  # the receiver gives it to others; asked for again at once
        while self._allowed():
            if not self._send():
                return progress
            progress = True
        if self._hello_due():
            self._hello()
        return progress

    def _take(self, data: bytes) -> bool:
        try:
            message = to_sender(data)
        except Rejected as error:
            log.warning("%s: %s", self._address, error)
            self.refused = str(error)
            return False
        self._heard = self._clock()
        if message.receiver != self._receiver:
            self._receiver = message.receiver
            self._now = self._receivers.setdefault(message.receiver, _Receiver())
            self._now.limit, self._told = 0, _NOTHING
            if isinstance(message, Refusal) and message.reason == "receiver":
                return True  # it took the place of another; what it allows comes after hello
        state = self._now
        if isinstance(message, Refusal):
            if message.text != self.refused:
                log.warning("%s refuses our experience: %s", self._address, message.text)
            self.refused = message.text or message.reason
            state.limit = 0
            self._told = self._pending + self._reserved, self._block_rows  # not before the next regular hello
            return True
        self.refused = ""
        if message.number >= state.number:
            recalled = message.limit < state.limit
            state.number, state.limit, state.seen = message.number, message.limit, max(state.seen, message.seen)
            state.least = message.least
            if recalled:
                self._hello()
        return True

    def _send(self) -> bool:
        block, state = self._queue[0], self._now
        head = BlockMessage(
            PROTOCOL,
            self._run,
            self._boot,
            self._receiver,
            block.term,
            state.sequence,
            state.number,
            self._produced,
            self._dropped,
            state.sent + block.rows,
            self._pending - block.rows + self._reserved,
            block.model.policy,
            block.model.lineage,
            block.model.version,
            block.stream,
            block.row0,
            block.heads,
            self._build,
        )
        try:
            self._socket.send_multipart([encode(head), *block.frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        self._queue.popleft()
        self._pending -= block.rows
        state.sent += block.rows
        state.sequence += 1
        self._told = self._pending + self._reserved, self._told[1]
        return True

    def _hello(self) -> bool:
        state = self._now
        hello = SenderHello(
            PROTOCOL,
            self._run,
            self._boot,
            self._receiver,
            self._term,
            self._digest,
            state.number,
            state.sequence,
            self._produced,
            self._dropped,
            state.sent,
            self._pending + self._reserved,
            self._block_rows,
            self.ticket,
        )
        try:
            self._socket.send(encode(hello), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._said = self._clock()
        self._told = self._pending + self._reserved, self._block_rows
        return True
