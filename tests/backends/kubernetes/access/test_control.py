"""The manager's answers and the pages of a run, through a forwarded port."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from rlctl.backends.kubernetes.access import control
from rlctl.errors import BackendUnreachable, Conflict
from rlctl.spec import names
from tests.backends.kubernetes.access.test_listing import core, pod
from tests.backends.kubernetes.fakes.reads import Reads, run_state


def whole(asked: bytes) -> bool:
    """Whether a request is there with its body."""
    head, found, body = asked.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return bool(found) and len(body) >= int(length[1] if length else 0)


def answer(body: bytes, status: str = "200 OK", seen: list[bytes] | None = None) -> Any:
    """Serves one request with these bytes."""

    def serve(far: socket.socket, pod: str, port: int) -> None:
        asked = b""
        while not whole(asked) and (more := far.recv(65536)):
            asked += more
        if seen is not None:
            seen.append(b"%s %d\n" % (pod.encode(), port) + asked)
        far.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    return serve


def cluster(serve: Any = None) -> Reads:
    api = Reads(*core())
    api.serve = serve
    return api


def test_the_manager_answers_through_its_control_port() -> None:
    seen: list[bytes] = []
    api = cluster(answer(b'{"phase": "running"}', seen=seen))

    assert control.ask(api, "pong", "GET", "/status") == {"phase": "running"}
    assert seen[0].startswith(b"pong-manager-0 %d\nGET /status HTTP/1.1\r\n" % names.PORTS["control"])


def test_an_order_carries_its_body() -> None:
    seen: list[bytes] = []
    api = cluster(answer(b"{}", seen=seen))

    control.ask(api, "pong", "POST", "/reload", {"live": {"stop": {"eval_return": 475}}})

    assert json.loads(seen[0].partition(b"\r\n\r\n")[2]) == {"live": {"stop": {"eval_return": 475}}}


def test_a_refusal_says_what_the_manager_says() -> None:
    api = cluster(answer(b'{"error": {"message": "only just started"}}', "503 Service Unavailable"))

    with pytest.raises(BackendUnreachable, match="the manager of run pong refused GET /status: only just started"):
        control.ask(api, "pong", "GET", "/status")


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"<html>", "something else than JSON"), (b"", "broke off")],
)
def test_an_answer_that_is_none_is_an_error_of_ours(body: bytes, said: str) -> None:
    def nothing(far: socket.socket, pod: str, port: int) -> None:
        far.recv(65536)

    with pytest.raises(BackendUnreachable, match=said):
        control.ask(cluster(answer(body) if body else nothing), "pong", "GET", "/status")


def test_a_manager_that_says_nothing_is_not_waited_for() -> None:
    def silent(far: socket.socket, pod: str, port: int) -> None:
        while far.recv(65536):
            pass

    with pytest.raises(BackendUnreachable, match=r"did not answer within 0\.2 s"):
        control.ask(cluster(silent), "pong", "GET", "/status", timeout_s=0.2)


def test_an_answer_that_drips_is_cut_off_by_the_clock() -> None:
    ticks = iter(range(0, 10_000, 4))

    def drip(far: socket.socket, pod: str, port: int) -> None:
        far.recv(65536)
        far.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n")
        far.sendall(b"x" * 150_000)
        far.recv(1)

    with pytest.raises(BackendUnreachable, match="did not answer within 10 s"):
        control.ask(cluster(drip), "pong", "GET", "/status", clock=lambda: float(next(ticks)))


def test_a_manager_that_does_not_run_is_explained() -> None:
    api = Reads(pod("manager", "pong-manager-0", ready=False, waiting="ErrImagePull"))

    with pytest.raises(BackendUnreachable, match=r"does not run: pod pong-manager-0: image .* does not exist"):
        control.ask(api, "pong", "GET", "/status")


def test_a_run_without_a_manager_is_unreachable() -> None:
    with pytest.raises(BackendUnreachable, match="the manager of run pong has no pod"):
        control.ask(Reads(), "pong", "GET", "/status")


def test_the_pod_that_is_ready_is_asked_and_not_the_one_that_ends() -> None:
    seen: list[bytes] = []
    api = cluster(answer(b"{}", seen=seen))
    old = pod("manager", "pong-manager-old")
    old["metadata"]["deletionTimestamp"] = "2026-11-21T04:09:59Z"
    api.objects.insert(0, old)

    control.ask(api, "pong", "GET", "/status")

    assert seen[0].startswith(b"pong-manager-0 ")


# pages


class Browser:
    """Opens what it is given, and keeps cookies."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def get(self, url: str, data: bytes | None = None) -> tuple[int, bytes]:
        try:
            with self._opener.open(url, data, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def port_of(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])


def test_the_status_page_is_shown_on_a_port_of_this_machine() -> None:
    seen: list[bytes] = []
    api, browser = cluster(answer(b"<html>pong</html>", seen=seen)), Browser()

    with control.forward(api, run_state(), "status") as url:
        assert url.startswith("http://127.0.0.1:")
        assert browser.get(url) == (200, b"<html>pong</html>")
        assert browser.get(url)[0] == 200
    assert seen[0].startswith(b"pong-manager-0 %d\nGET / HTTP/1.1\r\n" % names.PORTS["probe"])


@pytest.mark.parametrize("what", ["status", "tensorboard"])
def test_another_user_of_this_machine_reads_no_page_through_the_forwarded_port(what: Any) -> None:
    seen: list[bytes] = []
    api = cluster(answer(b"secret", seen=seen))
    api.objects.append(pod("tensorboard", "pong-tensorboard-5d-x"))

    with control.forward(api, run_state(), what) as url:
        plain = url.partition("?")[0]
        for other in (plain, f"http://127.0.0.1:{port_of(url)}/", f"{plain}status.json"):
            code, body = Browser().get(other)
            assert code == 403
            assert f"rlctl open {what} pong".encode() in body
        assert not seen, "not even a connection"
        browser = Browser()
        assert browser.get(url) == (200, b"secret")
        assert browser.get(plain) == (200, b"secret")
        assert Browser().get(url)[0] == 403, "the link is good once"


def test_tensorboard_is_shown_from_its_own_pod() -> None:
    seen: list[bytes] = []
    api = cluster(answer(b"board", seen=seen))
    api.objects.append(pod("tensorboard", "pong-tensorboard-5d-x"))

    with control.forward(api, run_state(), "tensorboard") as url:
        assert Browser().get(url) == (200, b"board")
    assert seen[0].startswith(b"pong-tensorboard-5d-x %d\n" % names.PORTS["tensorboard"])


def test_the_port_is_closed_with_the_block() -> None:
    with control.forward(cluster(answer(b"x")), run_state(), "status") as url:
        port = port_of(url)

    with pytest.raises(OSError, match=r"refused|reset"):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()


def test_a_browser_reads_why_nothing_answers() -> None:
    api = cluster()

    with control.forward(api, run_state(), "status") as url:
        code, body = Browser().get(url)

    assert (code, body) == (502, b"rlctl: pod pong-manager-0 does not listen on 7180\n")


def test_a_pod_that_was_replaced_is_found_again() -> None:
    seen: list[bytes] = []
    api, browser = cluster(), Browser()
    api.objects.append(pod("tensorboard", "pong-tensorboard-5d-x"))
    with control.forward(api, run_state(), "tensorboard") as url:
        assert browser.get(url)[0] == 502
        api.objects[-1]["metadata"]["name"] = "pong-tensorboard-5d-y"
        api.serve = answer(b"x", seen=seen)
        assert browser.get(url) == (200, b"x")
    assert seen[0].startswith(b"pong-tensorboard-5d-y ")


def test_what_was_taken_down_shows_nothing() -> None:
    with pytest.raises(Conflict, match="run pong is stopped"), control.forward(Reads(), run_state("stopped"), "status"):
        pass


def test_a_page_whose_pod_does_not_run_is_explained_at_once() -> None:
    api = Reads(pod("tensorboard", "pong-tensorboard-0", ready=False, waiting="ErrImagePull"))

    with pytest.raises(BackendUnreachable, match="does not exist"), control.forward(api, run_state(), "tensorboard"):
        pass


def test_a_large_page_passes_whole_and_both_ways() -> None:
    large = bytes(range(256)) * 8192

    def echo(far: socket.socket, pod: str, port: int) -> None:
        asked = b""
        while not whole(asked) and (more := far.recv(65536)):
            asked += more
        body = asked.partition(b"\r\n\r\n")[2]
        far.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    browser = Browser()
    with control.forward(cluster(echo), run_state(), "status") as url:
        assert browser.get(url)[0] == 200
        assert browser.get(url.partition("?")[0], large) == (200, large)


def test_connections_still_open_end_with_the_block() -> None:
    begun, done = threading.Event(), threading.Event()

    def hold(far: socket.socket, pod: str, port: int) -> None:
        begun.set()
        done.wait(60)

    with control.forward(cluster(hold), run_state(), "status") as url:
        path = url.partition(f":{port_of(url)}")[2]
        head, tail = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n".encode(), b"\r\n"
        with socket.create_connection(("127.0.0.1", port_of(url)), timeout=60) as first:
            first.sendall(head + tail)
            cookie = re.search(rb"Set-Cookie: ([^;]+);", first.makefile("rb").read())
        assert cookie
        client = socket.create_connection(("127.0.0.1", port_of(url)), timeout=60)
        client.sendall(head.replace(b"?token=", b"?t=") + b"Cookie: " + cookie[1] + tail + tail)
        assert begun.wait(60)
    client.settimeout(5)
    assert client.recv(1) == b""
    client.close()
