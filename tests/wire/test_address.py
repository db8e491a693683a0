from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlctl_agents.wire.address import bound_at, check_address, check_bind_host, host_of, leaves_machine


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
    with pytest.raises(ValueError, match="loopback"):
        check_address(address, listens=True)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("address", ["", "udp://127.0.0.1:1", "ipc://", "inproc://", "/tmp/socket", "epgm://1"])
def test_what_is_no_address_is_refused_with_the_forms_that_are(address: str, encrypted: bool) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_address(address, encrypted=encrypted)


def test_loopback_addresses_by_number_are_allowed() -> None:
    for address in ("tcp://127.0.0.1:*", "tcp://127.3.2.1:80", "tcp://[::1]:80", "inproc://name"):
        check_address(address)
        check_address(address, encrypted=True, listens=True)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://10.0.0.1:5555",
        "tcp://[fd00::7]:5555",
        "tcp://pong-learner-0.pong-learner:7101",
        "tcp://pong-manager-0.pong-manager.team-a.svc.cluster.local.:7100",
        "tcp://localhost:5555",
    ],
)
def test_whoever_encrypts_connects_anywhere(address: str) -> None:
    check_address(address, encrypted=True)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:5555",
        "tcp://:5555",
        "tcp://10.0.0.1",
        "tcp://10.0.0.256:80",
        "tcp://fd00::7:5555",
        "tcp://[fd00::g]:5555",
        "tcp://-a.b:80",
        "tcp://a..b:80",
        "tcp://a b:80",
        "tcp://eth0;10.0.0.1:80",
        "tcp://name/path:80",
        f"tcp://{'a' * 64}:80",
        f"tcp://{'a.' * 130}b:80",
    ],
)
def test_an_encrypted_address_is_a_name_or_a_number_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match="must be tcp://name-or-number:port"):
        check_address(address, encrypted=True)


def test_a_port_above_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match="port 65536 is above 65535"):
        check_address("tcp://127.0.0.1:65536")


def test_a_process_listens_at_a_number() -> None:
    check_address("tcp://10.0.0.1:5555", encrypted=True, listens=True)
    with pytest.raises(ValueError, match="say which"):
        check_address("tcp://pong-manager-0.pong-manager:5555", encrypted=True, listens=True)


def test_the_bind_host_takes_the_place_of_the_host_and_of_nothing_else() -> None:
    assert bound_at("tcp://pong-manager-0.pong-manager:7100", "10.1.2.3") == "tcp://10.1.2.3:7100"
    assert bound_at("tcp://10.9.9.9:*", "fd00::7") == "tcp://[fd00::7]:*"
    assert bound_at("tcp://[::1]:7100", "0.0.0.0") == "tcp://0.0.0.0:7100"
    assert bound_at("ipc:///run/socket", "10.1.2.3") == "ipc:///run/socket"
    with pytest.raises(ValueError, match="must be"):
        bound_at("tcp://10.9.9.9", "10.1.2.3")


@pytest.mark.parametrize("host", ["eth0", "pong-manager-0", "10.1.2", "[::1]", "10.1.2.3:80", "*"])
def test_a_bind_host_is_a_number(host: str) -> None:
    with pytest.raises(ValueError, match="by number"):
        check_bind_host(host)


def test_only_tcp_to_something_else_than_loopback_leaves_the_machine() -> None:
    assert [
        address
        for address in (
            "ipc:///run/socket", "inproc://name", "tcp://127.0.0.1:1", "tcp://[::1]:1",
            "tcp://10.0.0.1:1", "tcp://[fd00::7]:1", "tcp://pong-learner-0.pong-learner:1",
        )
        if leaves_machine(address)
    ] == ["tcp://10.0.0.1:1", "tcp://[fd00::7]:1", "tcp://pong-learner-0.pong-learner:1"]  # fmt: skip
    assert host_of("tcp://[fd00::7]:1") == "fd00::7"


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
