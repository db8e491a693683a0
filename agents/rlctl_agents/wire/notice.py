"""Notices of new models: a hint of one frame. A subscriber that misses one learns of the model at its next poll."""

from __future__ import annotations

import msgspec
import zmq

from rlctl_agents.types.experience import ModelRef
from rlctl_agents.wire.codec import PROTOCOL, Count, Name, Rejected, decode
from rlctl_agents.wire.sockets import Options, Socket, Wire


class Notice(msgspec.Struct, array_like=True, frozen=True, tag="notice"):
    """Content of the frame, after the policy's name and a zero byte."""

    protocol: Count
    policy: Name
    lineage: Count
    version: Count


_DECODER = msgspec.msgpack.Decoder(Notice)
_MAX_BYTES = 4096
# CONFLATE keeps the last message only, and breaks those of several frames; on both ends, because a publisher that is
# not read keeps the oldest otherwise
_OPTIONS: Options = {zmq.CONFLATE: 1}


class NoticePublisher:
    """Announces new models to all subscribers, of either key class. Never waits.

    Raises:
        ValueError: an address that is not allowed.
        OSError: the address cannot be used.
    """

    address: str
    """Bound address."""

    def __init__(self, wire: Wire, address: str) -> None:
        self._socket, self.address = wire.bind(zmq.PUB, address, max_message_bytes=_MAX_BYTES, options=_OPTIONS)

    def publish(self, ref: ModelRef) -> None:
        """Announce that `ref` can be pulled."""
        notice = Notice(PROTOCOL, ref.policy, ref.lineage, ref.version)
        self._socket.send(_topic(ref.policy) + msgspec.msgpack.encode(notice), zmq.NOBLOCK)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(0)


class NoticeSubscriber:
    """Subscribes to notices of the models of one policy.

    Raises:
        ValueError: an address that is not allowed.
    """

    rejected: int = 0
    """Malformed notices."""

    def __init__(self, wire: Wire, address: str, policy: str) -> None:
        self.policy = policy
        self._wire, self._address = wire, address
        self._socket = self._connect()

    def latest(self) -> ModelRef | None:
        """The newest notice since the last call, or None. Does not wait."""
        if self._wire.ended(self._socket):
            self._socket.close(0)
            self._socket = self._connect()
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        try:
            notice = decode(_DECODER, frame[len(_topic(self.policy)) :])
            if notice.protocol != PROTOCOL or notice.policy != self.policy:
                raise Rejected("protocol", "not of this version or policy")
        except Rejected:
            self.rejected += 1
            return None
        return ModelRef(notice.policy, notice.lineage, notice.version)

    def wait(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for a notice."""
        self._socket.poll(int(timeout_s * 1000), zmq.POLLIN)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close(0)

    def _connect(self) -> Socket:
        socket = self._wire.connect(zmq.SUB, self._address, max_message_bytes=_MAX_BYTES, options=_OPTIONS)
        socket.setsockopt(zmq.SUBSCRIBE, _topic(self.policy))
        return socket


def _topic(policy: str) -> bytes:
    return policy.encode() + b"\0"
