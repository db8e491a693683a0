"""Attacks with and without keys, and what honest processes see of them. Figures are printed: `pytest -s`."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rlctl_agents.wire.sockets import Wire
from tests.support.samples import sample
from tests.wire.attacker import HONEST, OWN
from tests.wire.keyring import Keyring
from tests.wire.pair import STEPS, make_receiver
from tests.wire.test_curve import says_size, ticket

pytestmark = pytest.mark.processes

ROWS = 2 * STEPS
SECONDS = 4.0
"""Of each measurement."""


@contextmanager
def attacker(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.wire.attacker", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def resident_mib(process: subprocess.Popen[str]) -> float:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) / 256


def sends(connection: socket.socket, size: int) -> None:
    """So many bytes, or until it is cut off."""
    with suppress(OSError):
        for _ in range(size >> 20):
            connection.sendall(bytes(1 << 20))


def test_three_strangers_do_not_make_a_listener_hold_gigabytes(tmp_path: Path) -> None:
    size = 300 << 20
    with attacker("serve", str(Keyring(tmp_path).of("core"))) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        before = most = resident_mib(server)
        connections = [says_size(address, size) for _ in range(3)]
        threads = [threading.Thread(target=sends, args=(one, size)) for one in connections]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, resident_mib(server))
            time.sleep(0.01)
        for one in connections:
            one.close()
    print(f"from {before:.0f} to {most:.0f} MiB")
    assert most < before + 64


@pytest.mark.parametrize("what", sample("attacks of a key", ["names", "hellos", "hoards"], 2))
def test_one_actor_key_does_not_starve_the_others(tmp_path: Path, what: str) -> None:
    ring = Keyring(tmp_path)
    keys, wire = str(ring.of("actor")), Wire.of(ring.of("core"))
    receiver = make_receiver(wire, "tcp://127.0.0.1:*", budget_rows=64 * ROWS)
    settled = 0

    def blocks(seconds: float) -> float:
        nonlocal settled
        before, until = settled, time.monotonic() + seconds
        while time.monotonic() < until:
            for segment in receiver.poll(0.02):
                settled += segment.header.boot == HONEST
                receiver.settle(segment, "consumed")
        return (settled - before) / seconds

    try:
        with attacker("honest", keys, receiver.address, ticket(wire, HONEST)):
            while blocks(0.1) == 0:
                pass
            alone = blocks(SECONDS)
            with attacker(what, keys, receiver.address, ticket(wire, OWN)):
                until = time.monotonic() + 60
                while not receiver.rejected and OWN not in receiver.accounts:
                    assert time.monotonic() < until, "no attack"
                    blocks(0.1)
                blocks(SECONDS)
                beside = blocks(SECONDS)
        print(f"{what}: {alone:.0f} blocks/s alone, {beside:.0f} beside it; {receiver.rejected}")
        assert beside > 0.1 * alone
        assert len(receiver.accounts) <= 2
    finally:
        receiver.close()
        wire.close()
