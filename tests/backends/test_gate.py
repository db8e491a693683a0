"""Gate before a page of a run: clients that are shown it, and those that are not."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlctl.backends import gate
from rlctl.backends.gate import CONNECTIONS, HEAD_BYTES, Access, Gate, Headers, RequestHead, Verdict, read_head, user_of
from rlctl.errors import BackendUnreachable

COMMAND = "rlctl open status one"


def asked(target: str, method: str = "GET", host: str = "127.0.0.1:4711", **headers: str) -> RequestHead:
    found = Headers()
    for name, value in {"Host": host, **headers}.items():
        found[name.replace("_", "-")] = value
    return RequestHead(method, target, "HTTP/1.1", found)


def decide(access: Access, one: RequestHead, user: int | None = None) -> Verdict:
    return access.decide(one, lambda: user)


def cookie_of(access: Access) -> str:
    verdict = decide(access, asked(access.link))
    assert verdict.status == HTTPStatus.SEE_OTHER
    return dict(verdict.headers)["Set-Cookie"]


def test_the_token_becomes_a_cookie_of_this_path_that_scripts_and_other_sites_do_not_get() -> None:
    access = Access(COMMAND)
    verdict = decide(access, asked(f"{access.link}&run=a%20b"))
    assert verdict.status == HTTPStatus.SEE_OTHER
    assert dict(verdict.headers)["Location"] == f"{access.path}?run=a+b", "without the token"
    value, *attributes = dict(verdict.headers)["Set-Cookie"].split("; ")
    assert attributes == [f"Path={access.path}", "HttpOnly", "SameSite=Strict"]
    assert access.link.partition("token=")[2] not in value, "who saw the link has not seen the cookie"
    assert decide(access, asked(f"{access.path}a/b?c=d", Cookie=f"x=y; {value}")).target == "/a/b?c=d"


def test_the_token_is_good_once() -> None:
    access = Access(COMMAND)
    cookie = cookie_of(access).partition(";")[0]
    again = decide(access, asked(access.link))
    assert (again.status, again.headers) == (HTTPStatus.FORBIDDEN, ())
    assert "has been used" in again.text
    assert COMMAND in again.text
    back = decide(access, asked(access.link, Cookie=cookie))
    assert (back.status, back.headers) == (HTTPStatus.SEE_OTHER, (("Location", access.path),)), "the same browser"


def test_two_that_bring_the_token_at_once_get_one_cookie() -> None:
    access, start = Access(COMMAND), threading.Barrier(8)
    found: list[HTTPStatus] = []

    def bring() -> None:
        start.wait()
        found.append(decide(access, asked(access.link)).status)

    threads = [threading.Thread(target=bring) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.count(HTTPStatus.SEE_OTHER) == 1


def test_a_look_at_the_headers_does_not_spend_the_token() -> None:
    access = Access(COMMAND)
    assert decide(access, asked(access.link, "HEAD")).status == HTTPStatus.FORBIDDEN
    assert cookie_of(access)


@pytest.mark.parametrize("target", ["{path}", "{path}?token=", "{path}?token=guessed", "/", "/other/", "/favicon.ico"])
@pytest.mark.parametrize("cookie", ["", "rlctl=guessed", "rlctl=", "rlctl=\x00;"])
def test_without_token_and_cookie_a_sentence_says_which_command_prints_a_link(target: str, cookie: str) -> None:
    access = Access(COMMAND)
    verdict = decide(access, asked(target.format(path=access.path), Cookie=cookie))
    assert (verdict.target, verdict.status, verdict.headers) == ("", HTTPStatus.FORBIDDEN, ())
    assert f"<code>{COMMAND}</code>" in verdict.text
    assert cookie_of(access), "nothing was spent"


def test_the_cookie_is_worth_nothing_outside_its_path() -> None:
    access = Access(COMMAND)
    cookie = cookie_of(access).partition(";")[0]
    for target in ("/", "/status.json", access.path[:-1], f"/x{access.path}"):
        assert decide(access, asked(target, Cookie=cookie)).status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "other", ["theme", "a/b=c", 'set={"x":1, "y":2}', "path=/", "rlctl=of-another-port", "expires"]
)
def test_cookies_of_other_ports_do_not_hide_ours(other: str) -> None:
    access = Access(COMMAND)
    cookie = cookie_of(access).partition(";")[0]
    for both in (f"{cookie}; {other}", f"{other}; {cookie}"):
        assert decide(access, asked(access.path, Cookie=both)).target == "/"


def test_what_the_page_names_from_the_root_is_looked_for_behind_the_path() -> None:
    access = Access(COMMAND)
    font = asked("/font/a.woff2?v=1", Referer=f"http://127.0.0.1:4711{access.path}#x")
    verdict = decide(access, font)
    assert (verdict.status, verdict.headers) == (307, (("Location", f"{access.path}font/a.woff2?v=1"),))
    assert decide(access, asked("/font/a.woff2", Referer="http://127.0.0.1:4711/")).status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:4711", "127.0.0.1.evil.example:4711", "localhost.evil:1", "0.0.0.0:1", "", ":1"],
)
def test_another_name_that_leads_here_is_not_answered_to(host: str) -> None:
    access = Access(COMMAND)
    assert decide(access, asked(access.link, host=host)).status == HTTPStatus.MISDIRECTED_REQUEST
    cookie = cookie_of(access).partition(";")[0]
    assert decide(access, asked(access.path, host=host, Cookie=cookie)).status == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "LOCALHOST:80", "[::1]:9", "[::1]"])
def test_the_names_of_the_loopback_are_answered_to_with_any_port(host: str) -> None:
    access = Access(COMMAND)
    assert decide(access, asked(access.link, host=host)).status == HTTPStatus.SEE_OTHER


def test_programs_of_another_user_do_not_get_the_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    access = Access(COMMAND)
    verdict = decide(access, asked(access.link), user=1001)
    assert (verdict.status, verdict.headers) == (HTTPStatus.FORBIDDEN, ())
    assert "of the user who ran the command only" in verdict.text
    assert decide(access, asked(access.link), user=1000).status == HTTPStatus.SEE_OTHER, "the token was not spent"
    for user in (0, None):
        other = Access(COMMAND)
        assert decide(other, asked(other.link), user=user).status == HTTPStatus.SEE_OTHER


def test_a_link_in_another_sites_page_leads_to_the_page_by_one_more_request() -> None:
    access = Access(COMMAND)
    followed = asked(access.path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")
    assert 'http-equiv="refresh"' in decide(access, followed).text
    for site, kind in (("cross-site", "iframe"), ("same-origin", "document"), ("none", "document")):
        verdict = decide(access, asked(access.path, Sec_Fetch_Site=site, Sec_Fetch_Dest=kind))
        assert "refresh" not in verdict.text


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES, b"GET /" + b"x" * HEAD_BYTES, b"GET / HTTP/2.0\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x", b"\x16\x03\x01\n\n",
    ],
)  # fmt: skip
def test_what_is_no_request_or_too_long_is_not_read(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"no request|longer than"):
        read_head(BufferedReader(BytesIO(head)))  # type: ignore[arg-type]


def test_the_system_tells_whose_connection_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        near, peer = server.accept()
        with near:
            assert user_of(peer, near.getsockname()) in (os.getuid(), None)
            assert (user_of(peer, near.getsockname()) is None) is not Path("/proc/net/tcp").exists()
            assert user_of(("127.0.0.1", 1), near.getsockname()) is None
        assert client.fileno() >= 0


@pytest.mark.skipif(not Path("/proc/net/tcp6").exists(), reason="NOT TESTED: this kernel has no IPv6")
def test_a_program_that_comes_by_a_socket_of_ipv6_is_known_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        near, peer = server.accept()
        with near:
            assert user_of(peer, near.getsockname()) == os.getuid()


# the whole way


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, dict[str, str]]]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.path.startswith("/events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"8\r\ndata: 1\n\r\n")
            assert self.gone.wait(60)  # type: ignore[attr-defined]
            self.wfile.write(b"8\r\ndata: 2\n\r\n0\r\n\r\n")
            return
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/here")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = b"page " + self.path.encode() + b" " + self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_HEAD = do_GET


@pytest.fixture
def page() -> Iterator[type[Any]]:
    class One(Page):
        seen: list[tuple[str, dict[str, str]]] = []
        gone = threading.Event()
        port = 0

    server = ThreadingHTTPServer(("127.0.0.1", 0), One)
    server.daemon_threads = True
    One.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield One
    One.gone.set()
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def opened(page: Any) -> Iterator[Gate]:
    @contextmanager
    def connect() -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as found:
            yield found

    with Gate(connect, COMMAND) as found:
        yield found


class Browser:
    """Opens a link, keeps the cookie, asks over one connection."""

    def __init__(self, gate: Gate) -> None:
        where = urlsplit(gate.url)
        self.path = where.path
        self.connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
        self.connection.request("GET", f"{where.path}?{where.query}")
        answer = self.connection.getresponse()
        answer.read()
        assert answer.status == 303
        self.cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]

    def ask(self, target: str = "", method: str = "GET", body: bytes | None = None) -> http.client.HTTPResponse:
        self.connection.request(method, self.path + target, body, {"Cookie": self.cookie})
        return self.connection.getresponse()


def test_the_page_is_passed_on_over_one_connection_and_does_not_see_the_cookie(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        assert browser.ask("a?b=1").read() == b"page /a?b=1 "
        kept = browser.connection.sock
        assert browser.ask("c", "POST", b"body").read() == b"page /c body"
        head = browser.ask("d", "HEAD")
        assert (head.status, head.getheader("Content-Length"), head.read()) == (200, "8", b"")
        assert browser.connection.sock is kept, "a port-forward to a cluster for each request would be slow"
        assert all("cookie" not in headers and headers["host"] == "localhost" for _, headers in page.seen)
        assert browser.ask("elsewhere").getheader("Location") == f"{browser.path}here"
        browser.connection.close()


def test_a_stream_of_events_comes_as_it_is_sent(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        answer = browser.ask("events")
        assert answer.read1(100) == b"data: 1\n", "before the page is done with it"
        page.gone.set()
        assert answer.read() == b"data: 2\n"
        browser.connection.close()


def test_a_stranger_and_a_rebound_name_reach_nothing_of_the_page(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        for headers in ({}, {"Cookie": browser.cookie, "Host": "evil.example"}, {"Cookie": "rlctl=x"}):
            other = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
            other.request("GET", browser.path, headers=headers)
            assert other.getresponse().status in (403, 421)
            other.close()
        assert page.seen == []
        browser.connection.close()


def test_each_request_of_a_connection_has_to_bring_the_cookie(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        assert browser.ask().status == 200
        browser.connection.close()
        with socket.create_connection(("127.0.0.1", gate.port), timeout=5) as raw:
            head = f"GET {browser.path} HTTP/1.1\r\nHost: localhost\r\n"
            raw.sendall(f"{head}Cookie: {browser.cookie}\r\n\r\n{head}\r\n".encode())
            heard = raw.makefile("rb").read()
        assert heard.count(b"page /") == 1
        assert b"403 Forbidden" in heard


def test_strangers_that_only_hold_connections_do_not_keep_the_browser_out(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        assert browser.ask().read()
        idle = [socket.create_connection(("127.0.0.1", gate.port), timeout=60) for _ in range(CONNECTIONS + 10)]
        late = Browser.__new__(Browser)
        late.path, late.cookie = browser.path, browser.cookie
        late.connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
        assert late.ask("late").read() == b"page /late "
        assert browser.ask("kept").read() == b"page /kept ", "who has shown the cookie is not cut off"
        for one in (*idle, late.connection, browser.connection):
            one.close()


def test_a_stranger_has_seconds_and_the_browser_an_hour(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "STRANGER_S", 0.2)
    with opened(page) as found:
        browser = Browser(found)
        assert browser.ask().read()
        with socket.create_connection(("127.0.0.1", found.port), timeout=60) as idle:
            assert idle.recv(1) == b"", "cut off"
        kept = browser.connection.sock
        assert browser.ask().read()
        assert browser.connection.sock is kept
        browser.connection.close()


def test_the_port_and_open_connections_end_with_the_gate(page: Any) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        answer = browser.ask("events")
        assert answer.read1(100)
    with pytest.raises((http.client.HTTPException, OSError)):
        answer.read()
    browser.connection.close()
    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(("127.0.0.1", gate.port), timeout=1).close()


def test_why_the_page_does_not_answer_is_shown_to_the_browser_alone() -> None:
    @contextmanager
    def connect() -> Iterator[socket.socket]:
        raise BackendUnreachable("the manager of run one does not listen")
        yield

    with Gate(connect, COMMAND) as gate:
        browser = Browser(gate)
        answer = browser.ask()
        assert (answer.status, answer.read()) == (502, b"rlctl: the manager of run one does not listen\n")
        browser.connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Content-Length": "99999999999"}, 413), ({"Content-Length": "x"}, 411), ({"Transfer-Encoding": "chunked"}, 411)],
)
def test_a_body_without_a_bound_is_refused(page: Any, headers: dict[str, str], status: int) -> None:
    with opened(page) as gate:
        browser = Browser(gate)
        connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=60)
        connection.request("POST", browser.path, headers={"Cookie": browser.cookie, **headers})
        assert connection.getresponse().status == status
        assert page.seen == []
        connection.close()
        browser.connection.close()
