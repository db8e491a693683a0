"""Client for large requests and replies: sent once per connection, and awaited as long as the other side lives."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
import zmq
from msgspec import Struct

from rlctl_agents.wire.codec import PROTOCOL, Buffer
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.rpc.client import MAX_BUFFERS, SLICE_S, Call, T, size_of, take_answer
from rlctl_agents.wire.sockets import Socket, Wire

PIECE_BYTES = 1 << 18
"""Bytes of one frame, unless that takes more than `MAX_BUFFERS`. A peer counts as gone when no frame of it is complete
within some 10 s, and several peers share a link."""
LARGEST_PIECE_BYTES = 1 << 22
MAX_BYTES = LARGEST_PIECE_BYTES * MAX_BUFFERS
"""Bytes of the largest message."""
AGAIN_S = 10.0
"""Seconds until a request is sent again over a live connection, in case it was lost with one that ended unnoticed."""
SLOWEST = 1e5
"""Bytes per second of the slowest link: a request is not sent again while it may still be in flight at that rate."""
RECONNECT_MS = 500
"""Time from the loss of a connection to the next: longer than between two polls, so that each loss is noticed."""
SAID_EVERY_S = 60.0

log = logging.getLogger(__name__)


def in_pieces(data: Buffer) -> list[memoryview]:
    """Split data into views, one per frame, all of one length but the last; one view when it is small. No copy.

    Raises:
        ValueError: the data is larger than `MAX_BYTES`.
    """
    view = memoryview(data)
    if view.nbytes > MAX_BYTES:
        raise ValueError(f"{view.nbytes} bytes are more than the {MAX_BYTES} of a message")
    count = min(MAX_BUFFERS, max(1, -(-view.nbytes // PIECE_BYTES)))
    each = max(1, -(-view.nbytes // count))
    return [view[start : start + each] for start in range(0, view.nbytes, each)] or [view]


def joined(pieces: Sequence[memoryview]) -> bytes:
    """Join the frames of a message. A copy."""
    return b"".join(pieces)


class BulkClient:
    """Client of one server, with one request in flight at a time. For one thread at a time.

    A request is sent once per connection, and its reply may take any time: a wait until other clients have been served
    does not mean that the server is gone. A lost connection does: the request is sent again over the next one.

    Args:
        wire: of this process.
        address: of the server, which need not be there yet.
        boot: of this process.
        again: whether a request that was lost with its connection may go to the next process that listens there.

    Raises:
        ValueError: an address that is not allowed.
    """

    def __init__(self, wire: Wire, address: str, boot: str, *, again: bool = True) -> None:
        self.address = address
        self._wire = wire
        self._again = again
        self.lost = False
        """True if the request in flight was lost with its connection and may not be sent again."""
        self._client = f"{boot}.{secrets.token_hex(4)}"
        self._id = 0
        self._parts: list[Buffer] = []  # of the request in flight
        self._kind = ""
        self._asked_at = self._opened_at = 0.0
        self._sent_at: float | None = None  # over the present connection
        self._throttle = LogThrottle(every_s=SAID_EVERY_S)
        self._socket = self._connect()

    @property
    def connected(self) -> bool:
        """True while there is a connection, as far as ZeroMQ knows."""
        return bool(self._socket.poll(0, zmq.POLLOUT))

    def ask(self, request: Struct, buffers: Sequence[Buffer] = ()) -> None:
        """Start a request, and abandon the one before. Does not wait.

        Args:
            request: of a class that the server knows.
            buffers: sent without a copy beside the request, and not to be changed until the reply is here.
        """
        self._id += 1
        self._kind = type(request).__name__
        body = msgspec.Raw(msgspec.msgpack.encode(request))
        self._parts = [msgspec.msgpack.encode(Call(PROTOCOL, self._client, self._id, self._kind, body)), *buffers]
        self._asked_at, self._sent_at, self.lost = time.monotonic(), None, False
        self._send_if_due()

    def answer(
        self, reply: type[T], wait_s: float, keep_waiting: Callable[[], bool] = lambda: True
    ) -> tuple[T, list[memoryview]]:
        """The reply to the request in flight, and its buffers, read-only.

        Args:
            reply: class of the reply.
            wait_s: longest wait in seconds; 0: poll once.
            keep_waiting: checked every 0.1 s; False ends the wait.

        Raises:
            TimeoutError: no reply yet. The request stays in flight, so call again, or start another. At once when it
                was lost with its connection and may not be sent again.
            RemoteError: the server refuses, or its reply cannot be decoded.
        """
        assert self._parts, "ask comes first"
        until = time.monotonic() + wait_s
        decoder = msgspec.msgpack.Decoder(reply)
        while True:
            self._send_if_due()
            answer = take_answer(self._socket, self._id, decoder, f"{self.address}: malformed answer to {self._kind}")
            if answer is not None:
                self._parts = []
                return answer
            left = until - time.monotonic()
            if left <= 0 or self.lost or not keep_waiting():
                raise TimeoutError(self._late())
            unsent = zmq.POLLOUT if self._sent_at is None else 0
            self._socket.poll(int(min(left, SLICE_S) * 1000) + 1, zmq.POLLIN | unsent)

    def close(self) -> None:
        """Close the socket; the client cannot be used afterwards."""
        self._socket.close(0)

    def _send_if_due(self) -> None:
        now = time.monotonic()
        if not self.connected:
            self.lost = self.lost or (self._sent_at is not None and not self._again)
            self._sent_at = None
            hopeless = now - self._opened_at > AGAIN_S and not self._wire.encrypts(self.address)
            if hopeless or self._wire.ended(self._socket):
                self._socket.close(0)
                self._socket = self._connect()
        elif self.lost:
            return
        elif self._sent_at is None or now - self._sent_at > AGAIN_S + size_of(self._parts) / SLOWEST:
            try:
                self._socket.send_multipart(self._parts, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._sent_at = self._opened_at = now

    def _late(self) -> str:
        """Reason why there is no reply yet; logged when the wait is long."""
        waited = time.monotonic() - self._asked_at
        why = "it has not come yet" if self.connected else self._wire.trouble(self.address) or "there is no connection"
        said = f"{self.address}: no answer to {self._kind} for {waited:.0f} s: {why}"
        if waited >= AGAIN_S and self._throttle.due("late"):
            log.warning("%s", said)
        return said

    def _connect(self) -> Socket:
        self._opened_at = time.monotonic()
        # IMMEDIATE: the socket is writable only while it is connected
        options = {zmq.IMMEDIATE: 1, zmq.SNDHWM: 4, zmq.RECONNECT_IVL: RECONNECT_MS}
        return self._wire.connect(zmq.DEALER, self.address, options=options)
