"""Clients that take their time, over real sockets: none holds a connection for ever, or keeps a hook from its place."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from rlctl_ci.core.service import Service
from rlctl_ci.forges.find import FORGES
from rlctl_ci.store.records import Push
from rlctl_ci.web import serve
from rlctl_ci.web.limits import connection_limits, guard
from tests.ci.https_forge import certificate
from tests.ci.web.test_http import SECRET, config
from tests.ci.world import MAIN, no_hands, sha
from tests.end_to_end.conftest import wait_until

ENDS_WITHIN_S = 30.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HEADERS_WITHIN_S", 0.4)
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", 1)
    monkeypatch.setattr(serve, "WRITTEN_WITHIN_S", 0.4)
    monkeypatch.setattr(guard, "BODY_WITHIN_S", 0.4)


@contextmanager
def served(folder: Path, **fields: Any) -> Iterator[tuple[int, serve.Server, Service]]:
    """A service that listens, and its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        found: int = listening.getsockname()[1]
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # also of its connections
        service = Service(config(folder, listen=f"127.0.0.1:{found}", **fields), no_hands)
        server = serve.server(service)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, timeout_s=60, what="the server")
            yield found, server, service
        finally:
            server.should_exit = True
            thread.join(30)
            service.close()


@pytest.fixture
def port(tmp_path: Path, impatient: None) -> Iterator[int]:
    """Port of a service with short patience."""
    with served(tmp_path) as (found, _, _):
        yield found


def ended(connection: socket.socket) -> bytes:
    """Bytes that still come until the other side ends the connection."""
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


def goes_on(connection: socket.socket) -> bool:
    """Whether nothing more comes, and not its end either."""
    connection.settimeout(0.2)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return True
    except ConnectionResetError:
        pass
    return False


def pushed(port: int, number: int, tls: ssl.SSLContext | None = None) -> int:
    """The status of the answer to a signed hook."""
    forge = FORGES["github"]
    body = json.dumps(forge.example(Push(MAIN, sha(number), "ana", "faster"))).encode()
    headers = dict(forge.sign(body, SECRET.encode(), delivery=f"d-{number}", now=0))
    if tls is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ENDS_WITHIN_S)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=ENDS_WITHIN_S, context=tls)
    try:
        connection.request("POST", "/hooks/github/pole", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


BEGUN = b"POST /hooks/github/pole HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize("begun", ["nothing", "a hook"])
def test_a_hook_has_its_place_beside_more_idle_connections_than_there_are_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    monkeypatch.setattr(serve, "ConnectionLimit", lambda: connection_limits.ConnectionLimit(most=32))
    with served(tmp_path) as (port, server, _), ExitStack() as stack:
        for _ in range(40):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            if begun == "a hook":
                idle.sendall(BEGUN % port)
        assert [pushed(port, number) for number in range(1, 4)] == [202, 202, 202]
        assert 24 <= len(server.server_state.connections) <= 32, "no more of them end than have to"


def test_a_page_that_is_followed_does_not_end_for_connections_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "ConnectionLimit", lambda: connection_limits.ConnectionLimit(most=4))
    with served(tmp_path) as (port, _, _), ExitStack() as stack:
        follower = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        follower.sendall(f"GET /live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert follower.recv(4096).startswith(b"HTTP/1.1 200")
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(8)]
        assert [ended(one) for one in idle[:5]] == [b""] * 5
        assert goes_on(follower)


def test_connections_that_never_finish_a_handshake_hold_no_hook_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "ConnectionLimit", lambda: connection_limits.ConnectionLimit(most=8))
    monkeypatch.setattr(serve, "HEADERS_WITHIN_S", 1000.0)  # they do not end by themselves
    for name, text in zip(("cert.pem", "key.pem"), certificate("localhost"), strict=True):
        (tmp_path / name).write_text(text)
    tls = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    fields = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with served(tmp_path, **fields) as (port, _, _), ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(12)]
        assert pushed(port, 1, tls) == 202
        assert [ended(one) for one in idle[:5]] == [b""] * 5, "they are counted, and end for those that come later"


def test_what_comes_with_the_end_of_a_handshake_is_answered(tmp_path: Path) -> None:
    for name, text in zip(("cert.pem", "key.pem"), certificate("localhost"), strict=True):
        (tmp_path / name).write_text(text)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    tls = context.wrap_bio(received, sent, server_hostname="localhost")
    fields = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with served(tmp_path, **fields) as (port, _, _), socket.create_connection(("127.0.0.1", port)) as wire:

        def finished(step: Callable[[], object]) -> object:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    wire.sendall(sent.read())
                    received.write(wire.recv(1 << 16))

        finished(tls.do_handshake)
        # in one packet with its end
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port)
        assert finished(lambda: tls.read(12)) == b"HTTP/1.1 200"


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]

    def write(name: str, moment: int) -> None:
        for file, text in zip(files, certificate(name), strict=True):
            file.write_text(text)
            os.utime(file, (moment, moment))

    write("localhost", 1)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    renewed = serve.Certificate(tls, *files)
    renewed.renew()
    renewed.renew()
    assert caplog.text == ""
    write("ci.example.org", 2)
    files[1].write_text(certificate("another")[1])
    renewed.renew()
    assert "cannot be used, the one before stays" in caplog.text
    assert named(tls) == "localhost"
    write("ci.example.org", 3)
    renewed.renew()
    assert named(tls) == "ci.example.org"


def named(server: ssl.SSLContext) -> str:
    """Name in the certificate that a new connection gets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    found = x509.load_der_x509_certificate(ends[0].getpeercert(binary_form=True) or b"")
    return str(found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


def test_a_handshake_that_does_not_come_ends_the_connection(tmp_path: Path, impatient: None) -> None:
    for name, text in zip(("cert.pem", "key.pem"), certificate("localhost"), strict=True):
        (tmp_path / name).write_text(text)
    fields = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    with served(tmp_path, **fields) as (port, _, _), socket.create_connection(("127.0.0.1", port)) as connection:
        assert ended(connection) == b""


@pytest.mark.parametrize("size", [1 << 20, 40_000])
def test_who_does_not_read_an_answer_holds_no_connection_for_ever(tmp_path: Path, impatient: None, size: int) -> None:
    """The larger one waits to be given out, the smaller one is given out and waits to be sent."""
    with served(tmp_path) as (port, server, service), ExitStack() as stack:
        assert pushed(port, 1) == 202
        service.log(1).write_bytes(b"x" * size)
        for _ in range(3):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            reader.sendall(f"GET /api/v1/builds/1/log HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            reader.settimeout(ENDS_WITHIN_S)
            assert reader.recv(12) == b"HTTP/1.1 200", "the answer has begun; it reads no more of it"
        wait_until(lambda: not server.server_state.connections, timeout_s=ENDS_WITHIN_S, what="their end")


def test_who_reads_slowly_gets_all_of_an_answer(tmp_path: Path) -> None:
    with served(tmp_path) as (port, _, service):
        assert pushed(port, 1) == 202
        service.log(1).write_bytes(b"x" * (2 << 20))
        with socket.create_connection(("127.0.0.1", port)) as reader:
            head = f"GET /api/v1/builds/1/log HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
            reader.sendall(head.encode())
            assert len(ended(reader).partition(b"\r\n\r\n")[2]) == 2 << 20
