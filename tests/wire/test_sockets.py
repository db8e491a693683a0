from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import zmq

from rlctl_agents.wire.sockets import Wire, check_address


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:5555",
        "tcp://0.0.0.0:5555",
        "tcp://10.0.0.1:5555",
        "tcp://192.168.1.4:*",
        "tcp://[::]:5555",
        "tcp://eth0:5555",
        "tcp://example.org:5555",
        "tcp://localhost:5555",  # a name can be made to mean anything
        "tcp://127.0.0.1",
        "tcp://127.0.0.1.evil.org:1",
    ],
)
def test_an_address_beyond_the_machine_is_refused_while_nothing_is_encrypted(address: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        check_address(address)


@pytest.mark.parametrize("address", ["", "udp://127.0.0.1:1", "ipc://", "inproc://", "/tmp/socket", "epgm://1"])
def test_what_is_no_address_is_refused_with_the_forms_that_are(address: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_address(address)


def test_loopback_addresses_by_number_are_allowed() -> None:
    for address in ("tcp://127.0.0.1:*", "tcp://127.3.2.1:80", "tcp://[::1]:80", "inproc://name"):
        check_address(address)


def test_a_unix_socket_in_a_folder_that_others_can_enter_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(ValueError, match="0700"):
        check_address(f"ipc://{folder}/socket")


def test_a_unix_socket_behind_a_link_is_refused(folder: Path) -> None:
    (folder / "real").mkdir(mode=0o700)
    (folder / "link").symlink_to(folder / "real")
    check_address(f"ipc://{folder}/real/socket")
    with pytest.raises(ValueError, match="0700"):
        check_address(f"ipc://{folder}/link/socket")


def test_a_unix_socket_with_an_impossible_path_is_refused(folder: Path) -> None:
    for path, why in [("@abstract", "absolute"), ("a/b", "absolute"), (f"{folder}/{'x' * 108}", "107 bytes")]:
        with pytest.raises(ValueError, match=why):
            check_address(f"ipc://{path}")
    with pytest.raises(ValueError, match="does not exist"):
        check_address(f"ipc://{folder}/missing/socket")


def test_a_folder_of_somebody_else_is_refused(folder: Path) -> None:
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        folder = Path("/")
    with pytest.raises(ValueError, match="our own"):
        check_address(f"ipc://{folder}/socket")


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
    assert time.monotonic() - began < 1.0


def test_a_frame_larger_than_allowed_disconnects_its_sender_only(wire: Wire, address: str) -> None:
    server, _ = wire.bind(zmq.ROUTER, address, max_message_bytes=1000)
    honest, greedy = wire.connect(zmq.DEALER, address), wire.connect(zmq.DEALER, address)
    greedy.send(bytes(5000))
    honest.send(b"small")
    assert server.poll(2000)
    assert server.recv_multipart()[1] == b"small"
    assert not server.poll(50)
