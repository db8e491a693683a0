"""Stands between one rlctl and the API server: counts what passes, and does something bad at the k-th write.

It speaks plain HTTP on this machine's loopback and TLS to the server, so no part of rlctl is patched or knows of it.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

_OWN: Final = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request that has passed."""

    method: str
    path: str  # with its query

    @property
    def writes(self) -> bool:
        """Whether it changes what is stored; a server-side dry run and a question about rights do not.

        That a lock is renewed counts as none: it comes by the clock, not by what a command does.
        """
        asks = "dryRun=" in self.path or "/selfsubject" in self.path
        renews = self.method == "PUT" and "/leases/" in self.path
        return self.method not in ("GET", "HEAD") and not (asks or renews) and not self.path.endswith("/portforward")

    def __str__(self) -> str:
        return f"{self.method} {self.path.partition('?')[0]}"


@dataclass
class Plan:
    """Interruption after the server has done the `number`-th write from now on, before its answer is passed on."""

    number: int
    do: Callable[[], object]
    lost: bool  # the answer never arrives


class Held:
    """A write with an answer that waits."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Until that write is done."""
        assert self._reached.wait(timeout_s), f"the write to be held did not come within {timeout_s:g} s"

    def release(self) -> None:
        """Let its answer go on."""
        self._released.set()

    def hold(self) -> None:
        self._reached.set()
        self._released.wait(300)


@dataclass
class Gateway:
    """One way to one API server, as a context manager.

    Args:
        upstream: https://host:port.
        ca_file: certificates that vouch for the server; "" for those of the machine.
    """

    upstream: str
    ca_file: str = ""
    passed: list[Request] = field(default_factory=list)
    done: int = 0  # writes that the server did
    _plan: Plan | None = None
    _server: ThreadingHTTPServer | None = None

    def __enter__(self) -> Gateway:
        gateway = self

        class Handler(_Handler):
            way = gateway

        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._trust = ssl.create_default_context(cafile=self.ca_file or None)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="gateway", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def writes(self) -> list[Request]:
        return [request for request in self.passed if request.writes]

    def forget(self) -> None:
        """Count from nothing."""
        self.passed.clear()
        self.done = 0

    def lose_at_write(self, number: int, do: Callable[[], object]) -> None:
        """Lose the answer to the `number`-th write from now on, and `do` when the server has done that."""
        self._plan = Plan(number, do, lost=True)

    def at_write(self, number: int, do: Callable[[], object]) -> None:
        """Do it when the server has done the `number`-th write from now on; then its answer arrives."""
        self._plan = Plan(number, do, lost=False)

    def leave_alone(self) -> None:
        """Nothing bad any more."""
        self._plan = None

    @contextmanager
    def held_at_write(self, number: int) -> Iterator[Held]:
        """The answer of the `number`-th write from now on waits until it is released, or the block ends."""
        held = Held()
        self.at_write(number, held.hold)
        try:
            yield held
        finally:
            held.release()

    def until_written(self, number: int, timeout_s: float) -> None:
        """So many writes have passed since the last `forget`."""
        with self._lock:
            there = self._changed.wait_for(lambda: len(self.writes) >= number, timeout_s)
        assert there, f"{len(self.writes)} of {number} writes came within {timeout_s:g} s"

    def stays_silent(self, seconds: float) -> bool:
        """Whether no request is answered for so long: the server stands still."""
        with self._lock:
            before = len(self.passed)
            return not self._changed.wait_for(lambda: len(self.passed) > before, seconds)

    def note(self, request: Request, status: int) -> bool:
        """One request was answered; True when its answer is to be lost."""
        with self._lock:
            self.passed.append(request)
            self._changed.notify_all()
            plan = self._plan
            if not request.writes or status >= 300:
                return False
            self.done += 1
            if plan is None:
                return False
            plan.number -= 1
            if plan.number:
                return False
            self._plan = None
        plan.do()
        return plan.lost

    def connect(self) -> http.client.HTTPSConnection:
        there = urlsplit(self.upstream)
        assert there.hostname
        return http.client.HTTPSConnection(there.hostname, there.port or 443, context=self._trust, timeout=600)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else every answer waits 40 ms between its head and its body
    way: Gateway
    _there: http.client.HTTPSConnection | None = None

    def _pass(self) -> None:
        request = Request(self.command, self.path)
        if "upgrade" in self.headers.get("Connection", "").lower():
            self._tunnel(request)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self._ask(body)
        if self.way.note(request, answer.status):
            self.close_connection = True
            self._leave()
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _pass

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        for fresh in (False, True):  # a connection that was kept may have been closed meanwhile
            if fresh:
                self._leave()
            there = self._there = self._there or self.way.connect()
            try:
                there.request(self.command, self.path, body or None, headers)
                return there.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if fresh:
                    raise
        raise AssertionError

    def _answer(self, answer: http.client.HTTPResponse) -> None:
        try:
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            if answer.length is not None:
                body = answer.read()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while part := answer.read1(1 << 16):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:  # whoever asked has gone, perhaps because we killed it
            self.close_connection = True
            answer.close()
            self._leave()

    def _leave(self) -> None:
        if self._there is not None:
            self._there.close()
            self._there = None

    def finish(self) -> None:
        self._leave()
        with suppress(OSError):  # whoever asked has gone
            super().finish()

    def _tunnel(self, request: Request) -> None:
        """Bytes both ways, once the request has been passed on as it came: port-forward, exec, logs over WebSocket."""
        self.close_connection = True
        there = self.way.connect()
        there.connect()
        head = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name.lower() != "host")
        host = urlsplit(self.way.upstream).netloc
        there.sock.sendall(f"{self.requestline}\r\nHost: {host}\r\n{head}\r\n".encode("latin-1"))
        self.way.note(request, 101)
        with suppress(OSError), there.sock:
            self._pump(self.connection, there.sock)

    def _pump(self, here: socket.socket, there: ssl.SSLSocket) -> None:
        while True:
            ready = [there] if there.pending() else select.select([here, there], [], [], 600)[0]
            if not ready:
                return
            for source in ready:
                data = source.recv(1 << 16)
                if not data:
                    return
                (there if source is here else here).sendall(data)

    def log_message(self, *_: object) -> None:
        """Nothing: the test counts."""
