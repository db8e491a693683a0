"""Calls with a deadline: the client opens a new socket when no reply comes (lazy pirate)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import zmq
from msgspec import Struct

from rlctl_agents.wire.codec import PROTOCOL, Buffer, Count, Name, Rejected, decode, receive
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES, Socket, Wire

T = TypeVar("T", bound=Struct)

MAX_BUFFERS = 256
SLICE_S = 0.1
"""Longest time between two calls of `keep_waiting`."""


class RemoteError(Exception):
    """Refusal of a request by the other side, in its own words."""


class Call(Struct, array_like=True, frozen=True, tag="call"):
    """Frame 0 of a request."""

    protocol: Count
    client: Name  # boot of the process and a number of the client object
    id: Count  # grows with every call of this client; the same when the call is repeated
    kind: Name  # class name of the request
    body: msgspec.Raw  # the request


class Answer(Struct, array_like=True, frozen=True, tag="answer"):
    """Frame 0 of a reply."""

    protocol: Count
    server: Name  # boot of the process
    id: Count
    error: str  # why the request was refused; "": it was not
    body: msgspec.Raw  # the reply; nil with an error


_ANSWER = msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.Encoder().encode


class RpcClient:
    """Client of one RPC server. Callers in several threads take turns.

    Args:
        wire: of this process.
        address: of the server, which need not be there yet.
        boot: of this process.

    Raises:
        ValueError: an address that is not allowed.
    """

    def __init__(self, wire: Wire, address: str, boot: str) -> None:
        self.address = address
        self._wire = wire
        self._client = f"{boot}.{secrets.token_hex(4)}"
        self._id = 0
        self._lock = threading.Lock()
        self._socket = self._connect()

    def call(
        self,
        request: Struct,
        reply: type[T],
        buffers: Sequence[Buffer] = (),
        *,
        deadline_s: float,
        attempt_s: float = 1.0,
        keep_waiting: Callable[[], bool] = lambda: True,
    ) -> tuple[T, list[memoryview]]:
        """Send a request, again and again, until the reply is here.

        Args:
            request: of a class that the server knows.
            reply: class of the reply.
            buffers: sent without a copy beside the request.
            deadline_s: seconds for the whole call.
            attempt_s: timeout of the first attempt in seconds; that of each later one is 1.5 times as long.
            keep_waiting: checked every 0.1 s; the call is given up when it returns False.

        Returns:
            The reply and its buffers, read-only.

        Raises:
            TimeoutError: no reply in time, or given up.
            RemoteError: the server refuses, or its reply cannot be decoded.
            ValueError: a buffer is larger than a message may be.
        """
        started = time.monotonic()
        if any(size_of([buffer]) > MAX_MESSAGE_BYTES for buffer in buffers):
            raise ValueError(f"a buffer is larger than {MAX_MESSAGE_BYTES} bytes")
        if not self._lock.acquire(timeout=max(deadline_s, 0.0)):
            raise TimeoutError(f"{self.address}: another call is still waiting")
        try:
            self._id += 1
            kind = type(request).__name__
            head = _encode(Call(PROTOCOL, self._client, self._id, kind, msgspec.Raw(_encode(request))))
            return self._attempts(
                [head, *buffers], msgspec.msgpack.Decoder(reply), kind, started + deadline_s, attempt_s, keep_waiting
            )
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the socket; the client cannot be used afterwards."""
        with self._lock:
            self._socket.close(0)

    def _attempts(
        self,
        parts: list[Buffer],
        decoder: msgspec.msgpack.Decoder[T],
        kind: str,
        deadline: float,
        attempt_s: float,
        keep_waiting: Callable[[], bool],
    ) -> tuple[T, list[memoryview]]:
        attempt_s = max(attempt_s, 0.01)
        while True:
            until = min(time.monotonic() + attempt_s, deadline)
            unsent = True
            while (now := time.monotonic()) < until and keep_waiting():
                assert not self._socket.closed, "the client is closed"
                wait_ms = int(min(until - now, SLICE_S) * 1000) + 1
                if not self._socket.poll(wait_ms, zmq.POLLIN | (zmq.POLLOUT if unsent else 0)):
                    continue
                if unsent and self._try_send(parts):
                    unsent = False
                answer = take_answer(self._socket, self._id, decoder, f"{self.address}: malformed answer to {kind}")
                if answer is not None:
                    return answer
            if time.monotonic() >= deadline:
                why = self._wire.trouble(self.address)
                raise TimeoutError(f"{self.address}: no answer to {kind} in time{why and '; ' + why}")
            if not keep_waiting():
                raise TimeoutError(f"{self.address}: {kind} was given up")
            # where nothing was sent, nothing can have been lost, and a new socket would begin its handshake from the
            # start: when thousands connect to one server at once, none would ever complete it
            shaking = self._wire.encrypts(self.address) and not self._wire.ended(self._socket)
            if not (unsent and shaking):
                self._socket.close(0)
                self._socket = self._connect()
            attempt_s *= 1.5

    def _try_send(self, parts: list[Buffer]) -> bool:
        try:
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def _connect(self) -> Socket:
        # IMMEDIATE: a request waits here, where the deadline is, not in the queue of a connection that does not exist
        return self._wire.connect(zmq.DEALER, self.address, options={zmq.IMMEDIATE: 1, zmq.SNDHWM: 4})


def take_answer(
    socket: Socket, id: int, decoder: msgspec.msgpack.Decoder[T], malformed: str
) -> tuple[T, list[memoryview]] | None:
    """The reply to call `id` and its buffers; None when it is not here yet. Replies to other calls are discarded.

    Args:
        malformed: beginning of the error message for a reply that cannot be decoded.

    Raises:
        RemoteError: the server refuses, or its reply cannot be decoded.
    """
    while (message := receive(socket, 1, MAX_BUFFERS)) is not None:
        head, frames = message
        try:
            answer = decode(_ANSWER, head[0])
            if answer.id != id or answer.protocol != PROTOCOL or frames is None:
                continue  # of an earlier attempt at an earlier call
            if answer.error:
                raise RemoteError(answer.error)
            return decode(decoder, answer.body), [frame.buffer.toreadonly() for frame in frames]
        except Rejected as error:
            raise RemoteError(f"{malformed}: {error}") from error
    return None


def size_of(parts: Sequence[Buffer]) -> int:
    """Bytes of all parts together."""
    return sum(memoryview(part).nbytes for part in parts)
