"""Opening of sockets that can neither hang, nor flood, nor leave the machine unencrypted."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

import zmq

from rlctl_agents.wire.address import bound_at, check_address, check_bind_host, host_of, is_tcp, number
from rlctl_agents.wire.keys import DOMAIN, Keys
from rlctl_agents.wire.socket_monitor import HANDSHAKE_S, Link, SocketMonitor

if TYPE_CHECKING:
    from rlctl_agents.wire.admission import Admission

Socket = zmq.Socket[bytes]
Options = Mapping[zmq.SocketOption, int]

MAX_MESSAGE_BYTES = 1 << 24
"""Bytes of the largest frame, commands of the handshake included: libzmq takes as much memory for a peer that is not
authenticated yet. Larger data travels in several frames. A peer that sends a larger frame is disconnected, without an
error."""
_CURVE_BYTES = 33  # that encryption adds to a frame

_OPTIONS: Options = {
    zmq.LINGER: 0,  # the default keeps a process alive for ever when a peer is gone
    zmq.HEARTBEAT_IVL: 2_000,  # ms; without it a frozen or unplugged peer is never noticed
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.HEARTBEAT_TTL: 10_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2_000,
}
_ENCRYPTED: Options = {
    zmq.HANDSHAKE_IVL: int(HANDSHAKE_S * 1000),
    zmq.CONNECT_TIMEOUT: 5_000,  # the kernel's is two minutes, and only a new attempt looks up a moved pod's address
    zmq.BACKLOG: 4_096,  # of connections that come at once, as after a restart of the manager
}


class Wire:
    """The ZeroMQ context of a process.

    Sockets belong to the thread that uses them. Addresses are `ipc:///folder/name` (a private folder with mode 0700),
    `tcp://127.0.0.1:port` (or another numeric loopback address; port `*` lets the system choose) and `inproc://name`.
    With keys everything that goes over tcp is encrypted by CURVE, both ends know each other's keys, and
    `tcp://name-or-number:port` may be anywhere.

    Args:
        keys: of this process; None: nothing is encrypted, and addresses on other machines are refused.
        bind_host: numeric address of this machine, at which every tcp address is bound instead of at its own host.
            Host names to connect to are resolved in its address family; without it, IPv6 comes before IPv4.

    Raises:
        ValueError: the bind host is not numeric, or this build of ZeroMQ has no CURVE.
    """

    def __init__(self, keys: Keys | None = None, bind_host: str = "") -> None:
        if keys is not None and not zmq.has("curve"):
            raise ValueError("this build of libzmq has no CURVE; the wheels of pyzmq have it")
        if bind_host:
            check_bind_host(bind_host)
        self._keys = keys
        self._bind_host = bind_host
        self._context: zmq.Context[Socket] = zmq.Context()
        self._sockets: dict[Socket, Link | None] = {}
        self._lock = threading.Lock()
        self._watch = SocketMonitor(self._context, keys.whose) if keys is not None else None
        self._admission: Admission | None = None

    @classmethod
    def of(cls, keys: Path | str | None, bind_host: str | None = None) -> Self:
        """Wire from a command line: the folder of the keys, and the address to listen at.

        Raises:
            ValueError: as `Keys.read` and `Wire`.
        """
        return cls(Keys.read(keys) if keys is not None else None, bind_host or "")

    @property
    def refused(self) -> dict[str, int]:
        """Failed connections to this process since the start, by reason: `key`, `plain`, `server_key`, `protocol`,
        `broken_off`. The process's log has the details."""
        return dict(self._watch.refused) if self._watch is not None else {}

    def encrypts(self, address: str) -> bool:
        """True if messages at this address are encrypted, and their senders have a key class."""
        return self._keys is not None and is_tcp(address)

    @property
    def keys(self) -> Keys | None:
        """Keys of this process; None: it has none."""
        return self._keys

    def ended(self, socket: Socket) -> bool:
        """True if this socket will never be connected again: its key was refused, or a process with another
        server key listens there. ZeroMQ does not try again, so close it and open another. Always False without keys."""
        link = self._sockets.get(socket)
        return link is not None and self._watch is not None and self._watch.ended(link)

    def trouble(self, address: str) -> str:
        """Reason why there is no connection to an address, in words; "" when none is known."""
        return self._watch.trouble(address) if self._watch is not None else ""

    def bind(
        self,
        kind: int,
        address: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        options: Options | None = None,
    ) -> tuple[Socket, str]:
        """Bind a listening socket; returns it and the address at which it can be reached.

        Raises:
            ValueError: an address that is not allowed here, or our keys are not those of a process that listens.
            OSError: the address is in use, or cannot be used.
        """
        if self._bind_host:
            address = bound_at(address, self._bind_host)
        socket = self._open(kind, address, max_message_bytes, options, listens=True)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise OSError(error.errno, f"{error.strerror or error}: cannot listen at {address}") from error
        last = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(last, bytes)
        bound = last.rstrip(b"\0").decode()
        self._keep(socket, bound, listens=True)
        return socket, bound

    def connect(
        self,
        kind: int,
        address: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        options: Options | None = None,
    ) -> Socket:
        """Open a socket that connects, and reconnects, to `address`; no process needs to listen there yet.

        Raises:
            ValueError: an address that is not allowed here.
        """
        socket = self._open(kind, address, max_message_bytes, options, listens=False)
        self._keep(socket, address, listens=False)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ValueError(f"{address}: {error.strerror or error}") from error
        return socket

    def close(self) -> None:
        """Close every socket at once and discard what is unsent. Threads that use one must have ended."""
        for socket in self._sockets:
            socket.close(0)
        if self._watch is not None:
            self._watch.close()
        if self._admission is not None:
            self._admission.end()  # after the sockets: one that listens without it would refuse no peer
        self._context.destroy(linger=0)

    def _open(
        self, kind: int, address: str, max_message_bytes: int, options: Options | None, *, listens: bool
    ) -> Socket:
        keys = self._keys if is_tcp(address) else None
        check_address(address, encrypted=keys is not None, listens=listens)
        if keys is not None and listens:
            self._admit(keys, address)
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes + (_CURVE_BYTES if keys is not None else 0))
        for option, value in {**_OPTIONS, **(_ENCRYPTED if keys is not None else {}), **(options or {})}.items():
            socket.setsockopt(option, value)
        if keys is not None and listens:
            assert keys.server_secret is not None
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.server_secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN.encode())
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else every peer is admitted while there is no handler
        elif keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server_public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        # with IPV6 a name resolves to its IPv6 address if it has one, else to its IPv4 address; without, to the latter
        at = number(host_of(address)) or (None if listens else number(self._bind_host))
        if is_tcp(address) and (at is None or at.version == 6):
            socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _keep(self, socket: Socket, address: str, *, listens: bool) -> None:
        watch = self._watch if is_tcp(address) else None
        with self._lock:
            self._sockets = {other: its for other, its in self._sockets.items() if not other.closed}
            self._sockets[socket] = None if watch is None else watch.add(socket, address, listens=listens)

    def _admit(self, keys: Keys, address: str) -> None:
        watch = self._watch
        assert watch is not None
        if keys.server_secret is None:
            raise ValueError(
                f"{address}: cannot listen without server.key, which is not among the keys of this process"
            )
        with self._lock:
            if self._admission is not None:
                return
            # here, because it imports asyncio, which a process that only connects does not need
            from rlctl_agents.wire.admission import Admission

            self._admission = Admission(
                self._context,
                keys.admitted,
                lambda where: watch.refuse("key", f"from {where}: a key that is not of this run"),
            )
            self._admission.start()
