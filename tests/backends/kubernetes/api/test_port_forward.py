"""A forwarded port: bytes of a socket in the frames of a WebSocket."""

from __future__ import annotations

import queue
import socket
from dataclasses import dataclass

import pytest

from rlctl.backends.kubernetes.api.port_forward import Pipe

BINARY, PING, CLOSE = 0x2, 0x9, 0x8
PORT = b"\x16\x1c"


@dataclass
class Frame:
    data: bytes


class WebSocket:
    """As far as a pipe knows it; the far side is the test."""

    def __init__(self) -> None:
        self.sent: queue.Queue[bytes] = queue.Queue()
        self.coming: queue.Queue[tuple[int, bytes] | Exception] = queue.Queue()
        self.ended = False

    def send_binary(self, data: bytes) -> None:
        self.sent.put(data)

    def recv_data_frame(self, control: bool) -> tuple[int, Frame]:
        found = self.coming.get(timeout=60)
        if isinstance(found, Exception):
            raise found
        return found[0], Frame(found[1])

    def abort(self) -> None:
        self.coming.put(ConnectionError("gone"))

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def far() -> WebSocket:
    found = WebSocket()
    found.coming.put((BINARY, b"\x00" + PORT))
    found.coming.put((BINARY, b"\x01" + PORT))
    return found


def test_bytes_go_both_ways_and_the_port_is_not_among_them(far: WebSocket) -> None:
    pipe = Pipe(far)
    pipe.near.settimeout(10)
    pipe.near.sendall(b"question")
    assert far.sent.get(timeout=60) == b"\x00question"
    far.coming.put((PING, b""))
    far.coming.put((BINARY, b"\x00ans"))
    far.coming.put((BINARY, b"\x00wer"))
    assert pipe.near.recv(3) + pipe.near.recv(3) == b"answer"
    pipe.close()
    assert far.ended


def test_what_was_sent_before_the_end_still_arrives(far: WebSocket) -> None:
    pipe = Pipe(far)
    pipe.near.settimeout(10)
    far.coming.put((BINARY, b"\x00last words"))
    far.coming.put((CLOSE, b""))
    assert pipe.near.recv(100) == b"last words"
    assert pipe.near.recv(100) == b""
    pipe.close()


def test_why_the_port_cannot_be_reached_is_kept(far: WebSocket) -> None:
    pipe = Pipe(far)
    pipe.near.settimeout(10)
    far.coming.put((BINARY, b"\x01connection refused"))
    assert pipe.near.recv(100) == b""
    pipe.close()
    assert pipe.error == "connection refused"


def test_a_connection_that_breaks_ends_it(far: WebSocket) -> None:
    pipe = Pipe(far)
    pipe.near.settimeout(10)
    far.coming.put(ConnectionResetError("reset"))
    assert pipe.near.recv(100) == b""
    pipe.close()
    assert pipe.near.fileno() == -1


def test_whoever_closes_it_early_leaves_nothing_open(far: WebSocket) -> None:
    pipe = Pipe(far)
    pipe.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        pipe.near.send(b"x")
    assert isinstance(pipe.near, socket.socket)
