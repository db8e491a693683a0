"""HTTP server for other processes of this machine: on a Unix socket or the loopback address, small and bounded.

A listener that only reads may be open to other machines: then it answers GET and HEAD alone.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

REQUEST_S = 5.0
"""Timeout of receiving a request; a slower client is cut off."""
HEADERS_S = 1.0
"""The same for its headers, where other machines reach this process: a kubelet waits as long for its response."""
BODY_BYTES = 64 * 1024
DRAIN_BYTES, DRAIN_S = 4 * BODY_BYTES, 0.5
"""Bytes of a refused body that are read, and the longest wait for them."""
CONNECTIONS = 32
"""Most connections: with one more, the oldest that waits for a request is dropped, or else the oldest."""
THREADS = 4 * CONNECTIONS
"""Most threads, those of dropped connections included: these end once they have made their response."""
LIFETIME_S = 15.0
"""Longest life of a connection from another machine."""
LOOK_S = 1.0
"""Time between two checks of the connections; each wakes the process, and a machine may have many processes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """Request of a client."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """Response to a client."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Response:
        """Response with a value as JSON."""
        return cls(status, json.dumps(value).encode() + b"\n")

    @classmethod
    def refusal(cls, status: int, message: str) -> Response:
        """Response `{"error": {"message": ...}}`."""
        return cls.of({"error": {"message": message}}, status)


Answer = Callable[[Request], Response]


class HttpListener:
    """Answers requests in threads of its own until it is closed.

    Args:
        address: `unix:/path` (a socket that is there is replaced) or `tcp:127.0.0.1:port` (0: any).
        answer: called for every request, from several threads.
        for_all: any numeric address of this machine is allowed, and only GET and HEAD are answered.
        lifetime_s: longest life of a connection that comes over such an address.
        body_bytes: largest body of a request.

    Raises:
        ValueError: an address of another kind, or one that others could reach.
        OSError: the address cannot be used.
    """

    address: str
    """Bound address."""

    def __init__(
        self,
        address: str,
        answer: Answer,
        *,
        name: str,
        for_all: bool = False,
        lifetime_s: float = LIFETIME_S,
        body_bytes: int = BODY_BYTES,
    ) -> None:
        kind, _, rest = address.partition(":")
        self._path: Path | None = None
        self._server: _Bounded
        if kind == "unix" and rest.startswith("/"):
            self._path = Path(rest)
            self._server, self._bound = _listen_at(self._path)
            self.address = address
        elif kind == "tcp":
            host, port = _host_and_port(address, rest, for_all=for_all)
            server = _Tcp6Server if ":" in host else _TcpServer
            self._server = server((host, port), _Handler)
            if for_all:
                self._server.headers_s, self._server.lifetime_s = HEADERS_S, lifetime_s
            shown = f"[{host}]" if ":" in host else host
            self.address = f"tcp:{shown}:{self._server.server_address[1]}"
        else:
            raise ValueError(f"{address}: must be unix:/absolute/path or tcp:127.0.0.1:port")
        self._server.answer, self._server.read_only, self._server.body_bytes = answer, for_all, body_bytes
        self._thread = threading.Thread(target=self._server.serve_forever, args=(LOOK_S,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):  # ends the wait for clients, which else lasts until the next check
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.join()
        if self._path is not None and _identity(self._path) == self._bound:  # else it is our successor's
            self._path.unlink()
        self._server.server_close()  # only now: as long as it is open, no other socket has its inode


@dataclass(slots=True)
class _Open:
    """Deadlines of a connection, in monotonic seconds."""

    end: float
    until: float  # of what it does now
    reads: bool = True  # waits for a request, or for more of it


class _Bounded(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Server with a thread for each connection, up to a limit; slow connections are cut off, not waited for."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 512
    headers_s = REQUEST_S
    lifetime_s = float("inf")
    answer: Answer  # these three are set before it serves
    read_only: bool
    body_bytes: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(THREADS)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Open] = {}  # the oldest first
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._free.acquire(timeout=0.5):
            self.service_actions()
        try:
            now = time.monotonic()
            with self._lock:
                if len(self._open) >= CONNECTIONS:
                    oldest = next(iter(self._open))
                    self._drop(next((one for one, its in self._open.items() if its.reads), oldest))
                self._open[request] = _Open(now + self.lifetime_s, now + min(self.headers_s, self.lifetime_s))
            super().process_request(request, client_address)
        except BaseException:
            self._gone(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._gone(request)

    def heard(self, request: Any, *, answered: bool = False) -> None:
        """Record that a whole request was received, or that its response was sent."""
        with self._lock:
            if (its := self._open.get(request)) is not None:
                its.reads = answered
                its.until = min(its.end, time.monotonic() + REQUEST_S) if answered else its.end

    def service_actions(self) -> None:
        """Cut off connections that take too long; called with each connection, and about once a second."""
        now = time.monotonic()
        with self._lock:
            for one in [one for one, its in self._open.items() if now >= its.until]:
                self._drop(one)

    def _drop(self, request: socket.socket) -> None:
        del self._open[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # its thread sees the end and tidies up

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client went away", exc_info=True)

    def _gone(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._free.release()


class _TcpServer(_Bounded):
    allow_reuse_address = True


class _Tcp6Server(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(_Bounded):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection, with the answers and limits of its server."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "rlctl", ""
    timeout = REQUEST_S
    server: _Bounded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # one place answers every method; http.server would send a page of its own
            return self._any
        raise AttributeError(name)

    def _any(self) -> None:
        self.server.heard(self.request)
        try:
            self._answer()
        finally:
            self.server.heard(self.request, answered=True)

    def _answer(self) -> None:
        if (refusal := self._refusal()) is not None:
            self._refuse(refusal)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        where = urlsplit(self.path)
        try:
            response = self.server.answer(Request(self.command, where.path, dict(parse_qsl(where.query)), body))
        except Exception as error:
            log.exception("%s %s failed", self.command, where.path)
            response = Response.refusal(500, f"internal error: {type(error).__name__}: {error}")
        self._send(response)

    def _refusal(self) -> Response | None:
        """Response that refuses a request before its body is read; None when it is not refused."""
        if self.command not in ("GET", "HEAD"):
            if self.server.read_only:
                return Response.refusal(405, "read only")
            if "Origin" in self.headers:  # a web page in a user's browser has found a forwarded port
                return Response.refusal(403, "orders do not come from web pages")
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not is_count(length):
            return Response.refusal(411, "the body must come with its Content-Length")
        if int(length) > (most := self.server.body_bytes):
            return Response.refusal(413, f"the body is larger than {most} bytes")
        return None

    def _refuse(self, response: Response) -> None:
        """Answer, then read a little of what is still coming: a client cut off while it sends sees no answer."""
        self._send(response, close=True)
        self.connection.settimeout(DRAIN_S)
        left = DRAIN_BYTES
        with suppress(OSError):
            while left > 0 and (block := self.rfile.read1(left)):
                left -= len(block)

    def _send(self, response: Response, *, close: bool = False) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers:
            self.send_header(name, value)
        if close:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a malformed request with one line, not http.server's page."""
        line = f"{code} {message or HTTPStatus(code).phrase}\n"
        self._send(Response(code, line.encode(errors="replace"), "text/plain; charset=utf-8"), close=True)

    def address_string(self) -> str:
        return "local"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests: probes come every few seconds."""


def _host_and_port(address: str, rest: str, *, for_all: bool) -> tuple[str, int]:
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        number = ip_address(host)
    except ValueError:
        number = None
    allowed = number is not None and (number.is_loopback or (for_all and not number.is_unspecified))
    if not allowed or not port.isdigit():
        which = "one address of this machine by number is" if for_all else "only loopback addresses by number are"
        raise ValueError(f"{address}: {which} allowed, as in tcp:127.0.0.1:9000")
    return host, int(port)


def _listen_at(path: Path) -> tuple[_UnixServer, tuple[int, int] | None]:
    """Listen at a path to which no other user may ever connect; returns the server and the identity of its socket.

    It is bound under a temporary name and renamed: so it never has the mode that the umask gives, and the path is never
    without a socket while one process takes over from another.

    Raises:
        OSError: it cannot be bound, or the path is there and is no socket.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    own = path.with_name(f".{secrets.token_hex(4)}")
    server = _UnixServer(str(own), _Handler)
    try:
        own.chmod(0o600)
        bound = _identity(own)
        own.replace(path)
    except BaseException:
        server.server_close()
        with suppress(OSError):
            own.unlink()
        raise
    return server, bound


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None: there is no such file."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        return found.st_dev, found.st_ino
    return None


def is_count(text: str) -> bool:
    """True if a text is a number from 0 on, of at most 15 digits: a stranger may choose its length."""
    return text.isascii() and text.isdigit() and len(text) < 16
