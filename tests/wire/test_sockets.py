from __future__ import annotations

import time

import pytest
import zmq

from rlctl_agents.wire.sockets import Wire


def test_the_bound_address_names_the_port_that_the_system_chose(wire: Wire) -> None:
    _, address = wire.bind(zmq.ROUTER, "tcp://127.0.0.1:*")
    assert address.startswith("tcp://127.0.0.1:")
    assert int(address.rpartition(":")[2]) > 0


def test_a_port_in_use_is_an_error_that_names_the_address(wire: Wire) -> None:
    _, address = wire.bind(zmq.ROUTER, "tcp://127.0.0.1:*")
    with pytest.raises(OSError, match=address):
        wire.bind(zmq.ROUTER, address)


def test_closing_does_not_wait_for_messages_that_nobody_takes(address: str) -> None:
    wire = Wire()
    socket = wire.connect(zmq.DEALER, address)
    for _ in range(10):
        socket.send(b"unsent", zmq.NOBLOCK)
    began = time.monotonic()
    wire.close()
    assert time.monotonic() - began < 30.0, "it would be endless"


def test_a_frame_larger_than_allowed_disconnects_its_sender_only(wire: Wire, address: str) -> None:
    server, _ = wire.bind(zmq.ROUTER, address, max_message_bytes=1000)
    honest, greedy = wire.connect(zmq.DEALER, address), wire.connect(zmq.DEALER, address)
    greedy.send(bytes(5000))
    honest.send(b"small")
    assert server.poll(60_000)
    assert server.recv_multipart()[1] == b"small"
    assert not server.poll(50)
