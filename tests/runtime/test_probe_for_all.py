"""Pages that may be seen from other machines, and those that may not."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_agents.runtime import http_server
from rlctl_agents.runtime.health import ProbeListener, Pulse
from rlctl_agents.runtime.http_server import CONNECTIONS, HEADERS_S, HttpListener, Request, Response
from tests.support.chain import private_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


def at(listener: HttpListener | ProbeListener) -> tuple[str, int]:
    host, _, port = listener.address.removeprefix("tcp:").rpartition(":")
    return host.strip("[]"), int(port)


def ask(
    listener: HttpListener | ProbeListener, path: str, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*at(listener), timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


def status(listener: HttpListener | ProbeListener, path: str, method: str = "GET", **headers: str) -> int:
    return ask(listener, path, method, **headers).status


@pytest.fixture
def probe() -> Iterator[ProbeListener]:
    pages = {
        "/": lambda name: Response(200, b"page", "text/html", (("X-Is", "here"),)),
        "/films/": lambda name: Response(200, b"", "image/gif", (("X-Name", name),)),
    }
    listener = ProbeListener("tcp:127.0.0.1:0", Pulse(), lambda: b"", pages)
    yield listener
    listener.close()


def test_a_folder_of_pages_is_given_the_name_and_nothing_below_or_beside_it(probe: ProbeListener) -> None:
    assert [ask(probe, path).headers["X-Name"] for path in ("/films/one.gif", "/films/")] == ["one.gif", ""]
    assert [status(probe, path) for path in ("/films", "/other", "/films/a/b", "/other/one.gif")] == [404] * 4


@pytest.mark.parametrize("address", ["tcp:10.1.2.3:7180", "tcp:192.168.0.1:80", "tcp:fd00::5:7180", "tcp:[fd00::5]:80"])
def test_only_the_probe_listener_takes_an_address_that_others_reach(address: str) -> None:
    answer = lambda request: Response.of({})  # noqa: E731
    with pytest.raises(ValueError, match="only loopback"):
        HttpListener(address, answer, name="control")
    with pytest.raises(OSError, match=r"[Aa]ssign|not available"):  # allowed, but not one of this machine
        HttpListener(address, answer, name="probe", for_all=True)


@pytest.mark.parametrize("address", ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:example.org:80", "tcp:localhost:8", "tcp::80"])
def test_no_listener_takes_every_address_or_a_name(address: str) -> None:
    with pytest.raises(ValueError, match="by number"):
        ProbeListener(address, Pulse(), lambda: b"")


def test_probes_answer_over_ipv6_too() -> None:
    try:
        listener = ProbeListener("tcp:::1:0", Pulse(), lambda: b"")
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        assert listener.address.startswith("tcp:[::1]:")
        assert status(listener, "/healthz") == 200
    finally:
        listener.close()


def own_address() -> str:
    """One of this machine by which others reach it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but the loopback one")
        address: str = asked.getsockname()[0]
        return address


def test_nothing_listens_when_the_loopback_address_beside_is_taken() -> None:
    address = own_address()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            ProbeListener(f"tcp:{address}:{port}", Pulse(), lambda: b"")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), timeout=5)


def test_a_probe_listener_shows_its_pages_and_no_others(probe: ProbeListener) -> None:
    shown = ask(probe, "/")
    assert (shown.status, shown.headers["X-Is"], shown.headers["Content-Type"]) == (200, "here", "text/html")
    assert [status(probe, path) for path in ("/healthz", "/metrics", "/readyz")] == [200, 200, 503]
    assert {status(probe, path) for path in ("/status", "/logs", "/stop", "/../etc/passwd")} == {404}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_nothing_can_be_ordered_through_a_probe_listener(probe: ProbeListener, method: str) -> None:
    assert {status(probe, path, method) for path in ("/", "/healthz", "/stop")} == {405}


def test_an_order_that_a_web_page_sends_is_refused(folder: Path) -> None:
    listener = HttpListener("tcp:127.0.0.1:0", lambda request: Response.of({"did": request.path}), name="control")
    try:
        assert status(listener, "/stop", "POST") == 200
        assert status(listener, "/stop", "POST", Origin="http://evil.example") == 403
        assert status(listener, "/status", "GET", Origin="http://evil.example") == 200
    finally:
        listener.close()


@pytest.mark.alone
def test_the_kubelet_is_answered_within_a_second_beside_150_slow_clients(probe: ProbeListener) -> None:
    def slow() -> socket.socket:
        one = socket.create_connection(at(probe), timeout=60)
        one.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")  # and no more
        return one

    held = [slow() for _ in range(150)]
    try:
        for _ in range(4):
            connection = http.client.HTTPConnection(*at(probe), timeout=1)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
            held += [slow() for _ in range(CONNECTIONS)]
        assert held[0].recv(100) == b"", "the oldest is dropped"
    finally:
        for one in held:
            one.close()


def test_who_waits_for_a_request_is_dropped_before_who_is_being_answered() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def answer(request: Request) -> Response:
        begun.release()
        assert go_on.wait(60)
        return Response.of({})

    listener = HttpListener("tcp:127.0.0.1:0", answer, name="probe", for_all=True)
    asking = socket.create_connection(at(listener), timeout=60)
    asking.sendall(b"GET / HTTP/1.1\r\n\r\n")
    begun.acquire()
    held = [socket.create_connection(at(listener), timeout=60) for _ in range(CONNECTIONS)]
    try:
        assert held[0].recv(100) == b""
        go_on.set()
        assert asking.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        for one in (asking, *held):
            one.close()
        listener.close()


def test_headers_that_take_longer_than_a_second_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "LOOK_S", 0.01)
    monkeypatch.setattr(http_server, "HEADERS_S", 0.02)
    listener = HttpListener("tcp:127.0.0.1:0", lambda request: Response.of({}), name="probe", for_all=True)
    try:
        with socket.create_connection(at(listener), timeout=4) as slow:  # without: 5 s
            slow.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
            assert slow.recv(100) == b""
    finally:
        listener.close()


def test_headers_have_one_second() -> None:
    assert HEADERS_S == 1.0


def test_those_who_hold_connections_open_do_not_keep_the_kubelet_out() -> None:
    def answer(request: Request) -> Response:
        return Response.of({})

    listener = HttpListener("tcp:127.0.0.1:0", answer, name="probe", for_all=True, lifetime_s=0.3)
    held = [socket.create_connection(at(listener), timeout=60) for _ in range(CONNECTIONS)]
    try:
        for one in held:
            one.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")  # and no more
        assert status(listener, "/") == 200
        assert held[0].recv(100) == b"", "cut off"
    finally:
        for one in held:
            one.close()
        listener.close()
