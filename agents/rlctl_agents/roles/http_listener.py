"""HTTP for one process and its neighbours on the machine: a Unix socket or the loopback address, small and bounded."""

from __future__ import annotations

import json
import logging
import socket
import socketserver
import stat
import threading
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
"""A client that is slower is cut off."""
BODY_BYTES = 64 * 1024
CONNECTIONS = 32

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    query: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """What it hears."""

    status: int
    body: bytes
    content_type: str = "application/json"

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Response:
        """A value as JSON."""
        return cls(status, json.dumps(value).encode() + b"\n")

    @classmethod
    def refusal(cls, status: int, message: str) -> Response:
        """`{"error": {"message": ...}}`."""
        return cls.of({"error": {"message": message}}, status)


Answer = Callable[[Request], Response]


class HttpListener:
    """Answers requests in threads of its own until it is closed.

    Args:
        address: `unix:/path` (what lies there is replaced when it is a socket) or `tcp:127.0.0.1:port` (0: any).
        answer: called for every request, from several threads.

    Raises:
        ValueError: an address of another kind, or one that others could reach.
        OSError: the address cannot be used.
    """

    address: str
    """As bound."""

    def __init__(self, address: str, answer: Answer, *, name: str) -> None:
        kind, _, rest = address.partition(":")
        handler = _handler(answer)
        self._path: Path | None = None
        self._server: socketserver.TCPServer
        if kind == "unix" and rest.startswith("/"):
            self._path = Path(rest)
            _remove_socket(self._path)
            self._server = _UnixServer(rest, handler)
            self._path.chmod(0o600)
            self.address = address
        elif kind == "tcp":
            host, _, port = rest.rpartition(":")
            if not _is_loopback(host) or not port.isdigit():
                raise ValueError(f"{address}: only loopback addresses by number are allowed, as in tcp:127.0.0.1:9000")
            self._server = _TcpServer((host, int(port)), handler)
            self.address = f"tcp:{host}:{self._server.server_address[1]}"
        else:
            raise ValueError(f"{address}: must be unix:/absolute/path or tcp:127.0.0.1:port")
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._path is not None:
            _remove_socket(self._path)


class _Bounded(socketserver.ThreadingMixIn):
    """A thread for each connection, but not any number of them: more wait in the kernel's queue."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._free.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client went away", exc_info=True)


class _TcpServer(_Bounded, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 64


class _UnixServer(_Bounded, socketserver.TCPServer):
    address_family = socket.AF_UNIX
    request_queue_size = 64

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version, sys_version = "rlctl", ""
        timeout = REQUEST_S

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):  # one place answers every method; http.server would send a page of its own
                return self._any
            raise AttributeError(name)

        def _any(self) -> None:
            length = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not (length.isascii() and length.isdigit()):
                self._send(Response.refusal(411, "the body must come with its Content-Length"), close=True)
                return
            if int(length) > BODY_BYTES:
                self._send(Response.refusal(413, f"the body is larger than {BODY_BYTES} bytes"), close=True)
                return
            body = self.rfile.read(int(length))
            where = urlsplit(self.path)
            try:
                response = answer(Request(self.command, where.path, dict(parse_qsl(where.query)), body))
            except Exception as error:
                log.exception("%s %s failed", self.command, where.path)
                response = Response.refusal(500, f"internal error: {type(error).__name__}: {error}")
            self._send(response)

        def _send(self, response: Response, *, close: bool = False) -> None:
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            if close:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

        def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
            """What is no request that we understand gets one line, not http.server's page."""
            line = f"{code} {message or HTTPStatus(code).phrase}\n"
            self._send(Response(code, line.encode(errors="replace"), "text/plain; charset=utf-8"), close=True)

        def address_string(self) -> str:
            return "local"

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nobody wants to read of every probe."""

    return Handler


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _remove_socket(path: Path) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
