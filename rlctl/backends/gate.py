"""Gate in front of a page of a run: a loopback port that serves only the browser that opened the printed link.

Other users of the machine reach the port too, and so does any web page that this user's browser shows. So

- the link holds a token, good once, exchanged for a cookie that scripts cannot read and other sites do not send;
- the path is random as well: a browser sends cookies to every port of a host, but to no other path;
- only requests to a name of the loopback address are answered: any other name is rebound DNS;
- the token is accepted from programs of the same user only, where the system tells: a browser's command line, with the
  link in it, is readable by all users.
"""

from __future__ import annotations

import http.client
import os
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from html import escape
from http import HTTPStatus
from io import BufferedReader, BytesIO
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from rlctl.errors import RlctlError

HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
"""Hosts accepted in the Host header, with any port: the far end of `ssh -L` has another."""
COOKIE: Final = "rlctl"
TOKEN: Final = "token"
CONNECTIONS: Final = 64
"""Open connections, at most: beyond that the oldest without the cookie is closed. A browser opens six."""
HEAD_BYTES: Final = 32 * 1024
BODY_BYTES: Final = 2**24
"""Bytes of a request's body, at most; those of TensorBoard have a few KiB."""
STRANGER_S: Final = 5.0
"""Timeout of a client that has not shown the cookie, in seconds."""
IDLE_S: Final = 3600.0
_BLOCK_BYTES: Final = 1 << 16
_HOP: Final = frozenset(
    (
        "connection", "content-length", "cookie", "expect", "host", "keep-alive", "proxy-authenticate",
        "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade",
    )
)  # fmt: skip
"""Headers that are not forwarded unchanged."""
_PRIVATE = (("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff"))

Headers = http.client.HTTPMessage
Connect = Callable[[], AbstractContextManager[socket.socket]]
Peer = tuple[str, int]


class RequestHead(NamedTuple):
    """Head of a request."""

    method: str
    target: str
    version: str
    headers: Headers


class Verdict(NamedTuple):
    """Decision on a request: the target to forward it to, or a response of our own."""

    target: str = ""
    status: HTTPStatus = HTTPStatus.OK
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()


_MAPPED: Final = f"{0:016X}{int.from_bytes(bytes((0, 0, 255, 255)), sys.byteorder):08X}"
"""First 96 bits of an IPv4 address among those of IPv6, as /proc/net/tcp6 writes them."""


def user_of(peer: Peer, own: Peer) -> int | None:
    """User id of the process at the other end of a loopback connection; None: the system does not tell. A program may
    reach 127.0.0.1 by a socket of IPv6, which the system lists apart.
    """
    ends = [f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in (peer, own)]
    for table, prefix in (("tcp", ""), ("tcp6", _MAPPED)):
        wanted = [prefix + end for end in ends]
        with suppress(OSError, ValueError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1:3] == wanted:
                    return int(fields[7])
    return None


class Access:
    """Access control of requests; the token is spent by the first request that has it.

    Args:
        command: command that prints a link, shown to a browser that has none.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._token, self._cookie = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._spent = False
        self._lock = threading.Lock()
        self.path = f"/{secrets.token_urlsafe(12)}/"
        self.link = f"{self.path}?{TOKEN}={self._token}"

    def knows(self, headers: Headers) -> bool:
        """Whether a request has the cookie, beside any that other ports of the host have set."""
        pairs = (pair.strip().partition("=") for pair in headers.get("Cookie", "").split(";"))
        return any(name == COOKIE and _equal(value, self._cookie) for name, _, value in pairs)

    def decide(self, asked: RequestHead, user: Callable[[], int | None]) -> Verdict:
        """Decide on a request; has no effect but spending the token.

        Args:
            user: returns the user id of the program that sent it; None: the system does not tell.
        """
        if _host(asked.headers.get("Host", "")) not in HOSTS:
            return self._refusal(
                f"This port is asked by the names {', '.join(HOSTS)} only.", HTTPStatus.MISDIRECTED_REQUEST
            )
        where = urlsplit(asked.target)
        query = parse_qsl(where.query, keep_blank_values=True)
        tokens = [value for name, value in query if name == TOKEN]
        known = self.knows(asked.headers)
        inside = where.path.startswith(self.path)
        if not inside and urlsplit(asked.headers.get("Referer", "")).path.startswith(self.path):
            # the page names something from the root: TensorBoard does so with its fonts
            to = self.path[:-1] + asked.target
            return Verdict(status=HTTPStatus.TEMPORARY_REDIRECT, headers=(("Location", to),))
        if not inside or not (known or tokens):
            return self._refusal(again=_comes_from_elsewhere(asked.headers))
        if not tokens:
            return Verdict(where.path.removeprefix(self.path[:-1]) + (f"?{where.query}" if where.query else ""))
        to = self.path + (f"?{rest}" if (rest := urlencode([one for one in query if one[0] != TOKEN])) else "")
        if known:
            return Verdict(status=HTTPStatus.SEE_OTHER, headers=(("Location", to),))
        if why := self._spend(tokens[0], asked.method, user):
            return self._refusal(why)
        cookie = f"{COOKIE}={self._cookie}; Path={self.path}; HttpOnly; SameSite=Strict"
        return Verdict(status=HTTPStatus.SEE_OTHER, headers=(("Location", to), ("Set-Cookie", cookie)))

    def _spend(self, token: str, method: str, user: Callable[[], int | None]) -> str:
        """Spend the token; returns the reason of a refusal, in a sentence, or ""."""
        if not _equal(token, self._token) or method != "GET":
            return "This link is not valid."
        if os.getuid() != 0 and user() not in (None, 0, os.getuid()):  # root prints links for others, from containers
            return "This link is for programs of the user who ran the command only."
        with self._lock:
            spent, self._spent = self._spent, True
        return "This link has been used: it is good for one browser, once." if spent else ""

    def _refusal(
        self, why: str = "", status: HTTPStatus = HTTPStatus.FORBIDDEN, *, again: bool = False
    ) -> Verdict:  # fmt: skip
        """Refuse a request, with the reason in one sentence.

        Args:
            again: make the page reload itself: a link on another site's page sends no strict cookie.
        """
        text = (
            f"{why} End the command and run it again for a new link:"
            if why
            else ("This page is shown to the browser that opened the link of this command:")
        )
        refresh = '<meta http-equiv="refresh" content="0">' if again else ""
        page = (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>rlctl</title>{refresh}</head>'
            f"<body><p>{escape(text)} <code>{escape(self._command)}</code></p></body></html>\n"
        )
        return Verdict(status=status, text=page)


class Gate:
    """Proxy on the loopback address that forwards admitted requests to the page until it is closed.

    Args:
        connect: opens a connection to the page; called in several threads.
        command: command that prints a link.
    """

    def __init__(self, connect: Connect, command: str) -> None:
        self._connect = connect
        self._access = Access(command)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}  # browser's connections, oldest first -> cookie was shown
        self._behind: set[socket.socket] = set()  # connections to the page
        self._closed = False
        self._listener = socket.create_server((HOSTS[0], 0), backlog=CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://{HOSTS[0]}:{self.port}{self._access.link}"
        """The link, valid once."""
        self._thread = threading.Thread(target=self._accept, name="gate", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and close all open connections."""
        with self._lock:
            self._closed = True
            left = [*self._open, *self._behind]
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        self._listener.close()
        for each in left:
            _break(each)
        self._thread.join(timeout=5.0)

    def _accept(self) -> None:
        while True:
            try:
                near, peer = self._listener.accept()
            except OSError:
                return  # closed
            if self._keep(near):
                threading.Thread(target=self._serve, args=(near, peer), name="gate connection", daemon=True).start()
            else:
                near.close()

    def _keep(self, near: socket.socket) -> bool:
        with self._lock:
            if not self._closed and len(self._open) >= CONNECTIONS:
                oldest = next((one for one, known in self._open.items() if not known), None)
                if oldest is None:
                    return False
                del self._open[oldest]
                _break(oldest)  # its thread sees the end and closes it
            if not self._closed:
                self._open[near] = False
            return not self._closed

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with self._connect() as behind:
            with self._lock:
                if self._closed:
                    raise OSError("the gate is closed")
                self._behind.add(behind)
            try:
                yield behind
            finally:
                with self._lock:
                    self._behind.discard(behind)

    def _serve(self, near: socket.socket, peer: Peer) -> None:
        try:
            with near, near.makefile("rb") as file, ExitStack() as stack:
                near.settimeout(STRANGER_S)
                own, page = near.getsockname(), _Page(self._connected, stack)
                while self._one(near, file, lambda: user_of(peer, own), page):
                    pass
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the client went away, was too slow, or does not speak HTTP
        finally:
            with self._lock:
                self._open.pop(near, None)

    def _one(self, near: socket.socket, file: BufferedReader, user: Callable[[], int | None], page: _Page) -> bool:
        """Serve one request; returns whether another may follow."""
        asked = read_head(file)
        if asked is None:
            return False
        if self._access.knows(asked.headers):
            near.settimeout(IDLE_S)
            with self._lock:
                if near in self._open:
                    self._open[near] = True
        length = asked.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in asked.headers or not (length.isascii() and length.isdigit()):
            verdict = Verdict(status=HTTPStatus.LENGTH_REQUIRED, text="The body must come with its Content-Length.\n")
        elif len(length) > 15 or int(length) > BODY_BYTES:
            verdict = Verdict(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text=f"At most {BODY_BYTES} bytes.\n")
        else:
            verdict = self._access.decide(asked, user)
        if not verdict.target:
            near.sendall(_answer(verdict, asked))
            return False
        stays = asked.version == "HTTP/1.1" and "close" not in asked.headers.get("Connection", "").lower()
        try:
            answer = page.ask(asked, verdict.target, file.read(int(length)))
        except (RlctlError, OSError, http.client.HTTPException) as error:
            why = error.message if isinstance(error, RlctlError) else "it does not answer: is the run still there?"
            near.sendall(_answer(Verdict(status=HTTPStatus.BAD_GATEWAY, text=f"rlctl: {why}\n"), asked))
            return False
        return _pass_on(answer, near, asked, stays=stays, path=self._access.path) and stays


class _Page:
    """Client of the page behind the gate, over one connection after another."""

    def __init__(self, connect: Connect, stack: ExitStack) -> None:
        self._connect, self._stack = connect, stack
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, asked: RequestHead, target: str, body: bytes) -> http.client.HTTPResponse:
        """Send a request; returns the response before its body. If a reused connection was closed, use a new one.

        Raises:
            RlctlError, OSError, http.client.HTTPException: the page cannot be reached, or does not answer.
        """
        if self._connection is not None:
            with suppress(OSError, http.client.HTTPException):
                return self._try(self._connection, asked, target, body)
        self._stack.close()
        connected = self._stack.enter_context(self._connect())
        connected.settimeout(IDLE_S)
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.auto_open = 0
        self._connection.sock = connected
        return self._try(self._connection, asked, target, body)

    def _try(
        self, connection: http.client.HTTPConnection, asked: RequestHead, target: str, body: bytes
    ) -> http.client.HTTPResponse:
        connection.putrequest(asked.method, target, skip_accept_encoding=True)
        for name, value in asked.headers.items():
            if name.lower() not in _HOP:
                connection.putheader(name, value)
        if body or asked.method not in ("GET", "HEAD"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        return connection.getresponse()


def read_head(file: BufferedReader) -> RequestHead | None:
    """Read the head of the next request; None at the end of the stream.

    Raises:
        ValueError: it is malformed or cut off, or longer than HEAD_BYTES.
        OSError, http.client.HTTPException: it cannot be read.
    """
    lines: list[bytes] = []
    while not lines or lines[-1] not in (b"\r\n", b"\n"):
        line = file.readline(HEAD_BYTES - sum(map(len, lines)))
        if not line.endswith(b"\n"):
            if not lines and not line:
                return None
            raise ValueError("longer than a head may be, or broken off")
        lines.append(line)
    words = lines[0].decode("latin-1").split()
    if len(words) != 3 or words[2] not in ("HTTP/1.0", "HTTP/1.1") or not words[1].startswith("/"):
        raise ValueError("no request")
    method, target, version = words
    return RequestHead(method, target, version, http.client.parse_headers(BytesIO(b"".join(lines[1:]))))


def _pass_on(
    answer: http.client.HTTPResponse, near: socket.socket, asked: RequestHead, *, stays: bool, path: str
) -> bool:  # fmt: skip
    """Stream a response to the browser; returns whether its end was delimited, so that the connection is kept."""
    bare = asked.method == "HEAD" or answer.status in (204, 304)
    chunked = not bare and answer.length is None and asked.version == "HTTP/1.1"
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
    for name, value in answer.getheaders():
        if name.lower() == "location" and value.startswith("/"):
            value = path + value[1:]
        if name.lower() not in _HOP or name.lower() == "content-length":
            lines.append(f"{name}: {value}")
    lines += ["Transfer-Encoding: chunked"] * chunked + ["Connection: close"] * (not stays)
    near.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
    for block in () if bare else iter(lambda: answer.read1(_BLOCK_BYTES), b""):
        near.sendall(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
    whole = answer.length == 0
    answer.close()
    if chunked:
        near.sendall(b"0\r\n\r\n")
    return bare or chunked or whole


def _answer(verdict: Verdict, asked: RequestHead) -> bytes:
    body, kind = verdict.text.encode(), "html" if verdict.text.startswith("<!") else "plain"
    headers = [
        ("Content-Type", f"text/{kind}; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close"),
        *_PRIVATE, *verdict.headers,
    ]  # fmt: skip
    lines = [
        f"HTTP/1.1 {verdict.status.value} {verdict.status.phrase}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body if asked.method != "HEAD" else b"")


def _host(header: str) -> str:
    """Host of a Host header, without the port."""
    name, _, port = header.strip().lower().rpartition(":")
    return name if name and port.isdigit() else header.strip().lower()


def _comes_from_elsewhere(headers: Headers) -> bool:
    """Whether a link on another site's page was followed."""
    return headers.get("Sec-Fetch-Site") == "cross-site" and headers.get("Sec-Fetch-Dest") == "document"


def _equal(given: str, own: str) -> bool:
    return secrets.compare_digest(given.encode(), own.encode())


def _break(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
