"""RPC server: answers a repeated request from its cache instead of carrying it out twice; large replies take turns."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import zmq
from msgspec import Struct

from rlctl_agents.wire.classes import Classes, address_of, class_of, refusal
from rlctl_agents.wire.codec import PROTOCOL, Buffer, Rejected, decode, receive
from rlctl_agents.wire.keys import CORE
from rlctl_agents.wire.log_throttle import LogThrottle
from rlctl_agents.wire.rpc.client import MAX_BUFFERS, Answer, Call, size_of
from rlctl_agents.wire.rpc.reply_limiter import ReplyLimiter
from rlctl_agents.wire.sockets import MAX_MESSAGE_BYTES, Wire

Handler = Callable[[Any, Sequence[memoryview]], tuple[Struct, Sequence[Buffer]]]

LARGE_BYTES = 1 << 20
"""Bytes above which a reply takes turns, and is not kept for a repeated request, unless `remembers` is larger."""
_REMEMBERED_CLIENTS = 1 << 16  # several of each of 10,000 processes
_REMEMBERED_BYTES = 1 << 26  # of all
_BATCH = 256  # most requests of one `serve`
_TURN_S = 0.002  # between two checks whether a waiting request's turn has come

log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Caller of a request."""

    whose: str  # key class, "" without
    address: str

    @property
    def place(self) -> str:
        """Address with a limit of large replies in flight; "" for core, which is trusted, and for this machine."""
        return "" if self.whose == CORE else self.address


class _Forbidden(ValueError):
    """The caller's key class may not make this request."""


_OURS = Caller(CORE, "this machine")  # where nothing is encrypted, no other machine can connect
_NIL = msgspec.Raw(b"\xc0")
_CALL = msgspec.msgpack.Decoder(Call)
_encode = msgspec.msgpack.Encoder().encode


class RpcServer:
    """Answers requests of the classes in `handlers`, one at a time, in the thread that calls `serve`.

    Args:
        wire: of this process.
        address: where to listen.
        boot: of this process.
        handlers: class of the request -> function of the request and its buffers (read-only, valid as long as they are
            referred to), giving the reply and its buffers. A ValueError of a handler becomes a RemoteError at the
            client; any other exception does too and is raised again here, for it is a defect in rlctl.
        classes: class of the request -> key classes that may make it, where the address is encrypted; a request that is
            not named may be made by core alone. See `wire.classes`.
        large: whether the reply to a request would be large. Large replies are sent to a few clients at a time, and to
            fewer at one address of a class other than core; other clients wait for their turn, and their requests are
            carried out when it comes.
        remembers: bytes of the largest reply that is kept; all together take as many at most, or 64 MiB if that is
            more.

    A reply is kept until the client's next request, so a repeated request is not carried out twice, unless the replies
    to 65,536 other clients, or too many bytes of them, came between: requests state totals and wanted states, but for
    draws from a replay and notes. Larger replies are not kept: their handlers must be reads.

    Raises:
        ValueError: an address that is not allowed.
        OSError: the address cannot be used.
    """

    address: str
    """Bound address."""
    caller_address: str
    """IP address that the present request came from, where the address is encrypted; else "this machine"."""
    rejected: dict[str, int]
    """Requests not carried out, by reason: malformed in some way, or `forbidden` to the key class of the caller."""

    def __init__(
        self,
        wire: Wire,
        address: str,
        boot: str,
        handlers: Mapping[type[Struct], Handler],
        classes: Classes | None = None,
        *,
        large: Callable[[Struct], bool] = lambda _: False,
        remembers: int = LARGE_BYTES,
    ) -> None:
        self.boot = boot
        self.rejected = {}
        self.caller_address = _OURS.address
        self._handlers = {kind.__name__: (kind, msgspec.msgpack.Decoder(kind), run) for kind, run in handlers.items()}
        self._classes = classes or {}
        self._throttle = LogThrottle()
        self._large, self._remembers = large, remembers
        self._turns: ReplyLimiter[tuple[bytes, Call, Caller]] = ReplyLimiter()
        # client -> id, reply unless it was too large, and route that it was sent to
        self._answers: OrderedDict[tuple[str, str], tuple[int, list[Buffer], bytes]] = OrderedDict()
        self._remembered_bytes = 0
        self._socket, self.address = wire.bind(
            zmq.ROUTER, address, options={zmq.ROUTER_MANDATORY: 1, zmq.SNDHWM: 16, zmq.RCVHWM: 64}
        )
        self._keyed = wire.encrypts(self.address)

    def serve(self, timeout_s: float) -> int:
        """Wait up to `timeout_s` for a request and answer all that are there; returns how many.

        Raises:
            Exception: of a handler, other than ValueError, after it was answered.
        """
        if not self._wait(timeout_s):
            return 0
        count = 0
        while count < _BATCH and (message := receive(self._socket, 1, 1 + MAX_BUFFERS)) is not None:
            count += 1
            (route, *_), frames = message
            try:
                if not frames:
                    raise Rejected("frames", "not the number of frames of a request")
                call = decode(_CALL, frames[0].bytes)
                if call.protocol != PROTOCOL:
                    raise Rejected("protocol", f"version {call.protocol} instead of {PROTOCOL}")
            except Rejected as error:
                self._count(error.reason)
                if self._throttle.due(error.reason):  # `rlctl status` sends its reader here
                    log.warning("request rejected (%d so far): %s", self.rejected[error.reason], error)
                continue
            caller = Caller(class_of(frames[0]), address_of(frames[0])) if self._keyed else _OURS
            self._answer(route, call, [frame.buffer.toreadonly() for frame in frames[1:]], caller)
        return count

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(0)

    def _wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a request; True if there is one. Meanwhile answer those whose turn comes."""
        until = time.monotonic() + max(timeout_s, 0.0)
        while True:
            while (mine := self._turns.next()) is not None:
                route, call, caller = mine
                self._answer(route, call, [], caller, its_turn=True)
            left = until - time.monotonic()
            wait_s = min(left, _TURN_S) if self._turns.waiting else left
            if self._socket.poll(math.ceil(max(wait_s, 0.0) * 1000), zmq.POLLIN):
                return True
            if left <= 0:
                return False

    def _answer(
        self,
        route: bytes,
        call: Call,
        buffers: list[memoryview],
        caller: Caller = _OURS,
        *,
        its_turn: bool = False,
    ) -> None:
        client = caller.whose, call.client  # no answer is repeated to a client of another key class
        last, parts, where = self._answers.get(client, (-1, [], b""))
        if call.id < last:
            return  # the client has long gone on
        if call.id == last and parts:
            self._send(route, parts, caller.place)
            return
        if call.id == last and where == route:
            return  # its large reply is in flight over a live connection: the request was repeated
        failure: Exception | None = None
        error, reply, out = "", None, []
        try:
            request, run = self._request(call, caller)
            if not its_turn and self._large(request) and (self._turns.waiting or not self._turns.free(caller.place)):
                self._turns.wait(client, (route, call, caller), caller.place)
                return
            self.caller_address = caller.address
            reply, answer_buffers = run(request, buffers)
            out = list(answer_buffers)
        except _Forbidden as fault:
            self._send(route, [_encode(Answer(PROTOCOL, self.boot, call.id, str(fault), _NIL))])
            return
        except ValueError as fault:
            error = str(fault) or "ValueError"
        except Exception as fault:
            error, failure = f"internal error: {type(fault).__name__}: {fault}", fault
        if any(size_of([one]) > MAX_MESSAGE_BYTES for one in out):  # it would cut the connection without an error
            error, reply, out = f"an answer with a frame of more than {MAX_MESSAGE_BYTES} bytes", None, []
        body = msgspec.Raw(_encode(reply)) if reply is not None else _NIL
        parts = [_encode(Answer(PROTOCOL, self.boot, call.id, error, body)), *out]
        sent = self._send(route, parts, caller.place)
        self._remember(client, call.id, parts, route if sent else b"")
        if failure is not None:
            raise failure

    def _request(self, call: Call, caller: Caller) -> tuple[Struct, Handler]:
        if call.kind not in self._handlers:
            raise ValueError(f"{call.kind} is no request that is answered here")
        kind, decoder, run = self._handlers[call.kind]
        self._permit(kind, None, caller)
        try:
            request = decode(decoder, call.body)
        except Rejected as fault:
            raise ValueError(f"malformed {call.kind}: {fault}") from fault
        self._permit(kind, request, caller)
        return request, run

    def _permit(self, kind: type[Struct], request: Struct | None, caller: Caller) -> None:
        if caller is _OURS or not (why := refusal(self._classes, caller.whose, kind, request)):
            return
        self._count("forbidden")
        if self._throttle.due(f"{kind.__name__} {caller.whose}"):  # not by the text, part of which is the caller's
            count = self.rejected["forbidden"]
            log.warning("request from %s refused (forbidden, %d so far): %s", caller.address, count, why)
        raise _Forbidden(why)

    def _count(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def _remember(self, client: tuple[str, str], id: int, parts: list[Buffer], route: bytes) -> None:
        if client in self._answers:
            self._remembered_bytes -= size_of(self._answers.pop(client)[1])
        if size_of(parts) > self._remembers:
            parts = []
        self._answers[client] = id, parts, route
        self._remembered_bytes += size_of(parts)
        most = max(_REMEMBERED_BYTES, self._remembers)
        while len(self._answers) > _REMEMBERED_CLIENTS or self._remembered_bytes > most:
            self._remembered_bytes -= size_of(self._answers.popitem(last=False)[1][1])

    def _send(self, route: bytes, parts: list[Buffer], place: str = "") -> bool:
        large = size_of(parts) > LARGE_BYTES
        try:
            tracker = self._socket.send_multipart([route, *parts], zmq.NOBLOCK, copy=False, track=large)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False  # gone, or so slow that its queue is full: it will ask again
        if large and tracker is not None:
            self._turns.began(tracker, size_of(parts), place)
        return True
