"""Clients that take their time, over real sockets: none of them holds a connection for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_ci.service import Service
from rlctl_ci.web import guard, serve
from tests.ci.test_http import config
from tests.ci.world import no_hands
from tests.end_to_end.conftest import wait_until

ENDS_WITHIN_S = 30.0


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of a service whose patience is short."""
    monkeypatch.setattr(serve, "HEADERS_WITHIN_S", 0.4)
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", 1)
    monkeypatch.setattr(guard, "BODY_WITHIN_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found: int = listening.getsockname()[1]
        service = Service(config(tmp_path, listen=f"127.0.0.1:{found}"), no_hands)
        server = serve.server(service)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        wait_until(lambda: server.started, timeout_s=60, what="the server")
        yield found
        server.should_exit = True
        thread.join(30)
        service.close()


def ended(connection: socket.socket) -> bytes:
    """What still comes until the other side ends it."""
    connection.settimeout(ENDS_WITHIN_S)
    found = b""
    try:
        while part := connection.recv(4096):
            found += part
    except ConnectionResetError:
        pass
    return found


def test_headers_that_do_not_come_end_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert ended(connection) == b""


def test_headers_of_a_second_request_that_do_not_come_end_the_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        connection.settimeout(ENDS_WITHIN_S)
        answer = b""
        while not answer.endswith(b"ok\n"):
            answer += connection.recv(4096)
        connection.sendall(b"G")
        assert ended(connection) == b""


def test_two_requests_in_one_packet_are_both_answered(port: int) -> None:
    one = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(one + one)
        assert ended(connection).count(b"200 OK") == 2


def test_a_body_that_does_not_come_is_a_408_and_the_end(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST /hooks/github/pole HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100\r\n\r\n{{"
        connection.sendall(head.encode())
        answer = ended(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in answer.lower()
