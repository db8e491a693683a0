"""Sockets that can neither hang, nor flood, nor leave the machine: the only place where they are opened."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from ipaddress import ip_address

import zmq

Socket = zmq.Socket[bytes]
Options = Mapping[zmq.SocketOption, int]

MAX_MESSAGE_BYTES = 1 << 30
"""Of one frame. A peer that sends a larger one is disconnected by libzmq, without a word."""
MAX_IPC_PATH_BYTES = 107
"""sun_path of a Unix socket, less its final zero."""

_OPTIONS: Options = {
    zmq.LINGER: 0,  # the default keeps a process alive for ever when a peer is gone
    zmq.HEARTBEAT_IVL: 2_000,  # ms; without it a frozen or unplugged peer is never noticed
    zmq.HEARTBEAT_TIMEOUT: 10_000,
    zmq.HEARTBEAT_TTL: 10_000,
    zmq.HANDSHAKE_IVL: 5_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2_000,
}


class Wire:
    """The ZeroMQ context of a process.

    Sockets belong to the thread that uses them. Addresses are `ipc:///folder/name` (a folder of ours with mode 0700),
    `tcp://127.0.0.1:port` (or another loopback address by number; port `*` lets the system choose) and `inproc://name`.
    """

    def __init__(self, *, io_threads: int = 1) -> None:
        self._context: zmq.Context[Socket] = zmq.Context(io_threads)
        self._sockets: list[Socket] = []

    def bind(
        self,
        kind: int,
        address: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        options: Options | None = None,
    ) -> tuple[Socket, str]:
        """A listening socket and the address at which it can be reached.

        Raises:
            ValueError: an address that is not allowed here.
            OSError: the address is in use, or cannot be used.
        """
        socket = self._open(kind, address, max_message_bytes, options)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise OSError(error.errno, f"{error.strerror or error}: cannot listen at {address}") from error
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return socket, bound.rstrip(b"\0").decode()

    def connect(
        self,
        kind: int,
        address: str,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        options: Options | None = None,
    ) -> Socket:
        """A socket that connects, and connects again, to `address`; nobody needs to listen there yet.

        Raises:
            ValueError: an address that is not allowed here.
        """
        socket = self._open(kind, address, max_message_bytes, options)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ValueError(f"{address}: {error.strerror or error}") from error
        return socket

    def close(self) -> None:
        """Close every socket at once, throwing away what is unsent. Threads that use one must have ended."""
        for socket in self._sockets:
            socket.close(0)
        self._context.destroy(linger=0)

    def _open(self, kind: int, address: str, max_message_bytes: int, options: Options | None) -> Socket:
        check_address(address)
        socket = self._context.socket(kind)
        self._sockets = [*(other for other in self._sockets if not other.closed), socket]
        socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        for option, value in (*_OPTIONS.items(), *(options or {}).items()):
            socket.setsockopt(option, value)
        return socket


def check_address(address: str) -> None:
    """Refuse whatever somebody else could reach. Keys of the CURVE kind will be set here too; until they are, no
    socket leaves the machine.

    Raises:
        ValueError: the address is not ours alone, or not an address.
    """
    transport, _, rest = address.partition("://")
    if transport == "inproc" and rest:
        return
    if transport == "ipc" and rest:
        _check_ipc(rest)
    elif transport == "tcp":
        _check_tcp(address, rest)
    else:
        raise ValueError(f"{address!r}: must be ipc:///path, tcp://127.0.0.1:port or inproc://name")


def _check_tcp(address: str, rest: str) -> None:
    match = re.fullmatch(r"\[([0-9a-fA-F:.]+)\]:([0-9]+|\*)|([0-9.]+):([0-9]+|\*)", rest)
    host = (match[1] or match[3]) if match else ""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"{address}: only loopback addresses, by number (127.0.0.1), are allowed while messages are not encrypted"
        )


def _check_ipc(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"ipc://{path}: must be an absolute path")
    if len(os.fsencode(path)) > MAX_IPC_PATH_BYTES:
        raise ValueError(f"ipc://{path}: longer than {MAX_IPC_PATH_BYTES} bytes, which no Unix socket allows")
    folder = os.path.dirname(path)
    try:
        entry = os.lstat(folder)
    except OSError as error:
        raise ValueError(f"ipc://{path}: the folder {folder} does not exist") from error
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_mode & 0o077:
        raise ValueError(f"ipc://{path}: {folder} must be a folder of our own with mode 0700, others could listen in")
