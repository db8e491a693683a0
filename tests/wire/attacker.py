"""Attacks with and without keys, and what honest processes see of them; tests and benchmarks hold it to a bound.

Ends of channels are processes: `python -m tests.wire.attacker WHAT ...`, until they are killed.
`serve KEYS` listens for requests and prints its address. `honest KEYS ADDRESS TICKET` sends blocks as fast as it may.
`names`, `hellos`, `hoards` and `claims KEYS ADDRESS TICKET` have the actor's key: the first says hello under ever new
boots over one connection, the second without end under its own, the third asks for all credit and never sends a block,
the fourth asks for that of one block, the largest that there can be.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import zmq

from rlctl_agents.wire.codec import BlockCodec
from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.wire.keyring import Keyring, ticket
from tests.wire.pair import SCHEMA, STEPS, RawSender, make_receiver, make_sender, offer

HONEST, OWN = "0" * 15 + "1", "0" * 15 + "2"
ROWS = 2 * STEPS
ATTACKS = ("names", "hellos", "hoards", "claims")
BEGUN_WITHIN_S = 60.0


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """One end as a process."""
    command = [sys.executable, "-m", "tests.wire.attacker", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Server(NamedTuple):
    """A process that listens with keys."""

    address: str
    pid: int

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) / 256


@contextmanager
def serving(ring: Keyring) -> Iterator[Server]:
    """A server of requests."""
    with running("serve", str(ring.of("core"))) as process:
        assert process.stdout is not None
        yield Server(process.stdout.readline().strip(), process.pid)


def says_size(address: str, size: int) -> socket.socket:
    """A connection of which all that comes is a greeting and the size of a command."""
    connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=60)
    connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32))
    connection.sendall(b"\x06" + size.to_bytes(8, "big"))
    return connection


def sends(connection: socket.socket, size: int) -> None:
    """So many bytes, or until it is cut off."""
    with suppress(OSError):
        for _ in range(size >> 20):
            connection.sendall(bytes(1 << 20))


class Memory(NamedTuple):
    """Of the process that is attacked, in MiB."""

    before_mib: float
    most_mib: float
    after_mib: float


def strangers(folder: Path, size: int, clients: int = 3) -> Memory:
    """So many clients without keys announce a command of that size, and send it."""
    with serving(Keyring(folder)) as server:
        before = most = server.resident_mib()
        connections = [says_size(server.address, size) for _ in range(clients)]
        threads = [threading.Thread(target=sends, args=(one, size)) for one in connections]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, server.resident_mib())
            time.sleep(0.01)
        for one in connections:
            one.close()
        return Memory(before, most, server.resident_mib())


def one_message(folder: Path, frames: int, size: int, within_s: float) -> Memory:
    """One message of so many frames of that size, from a holder of the actor key.

    Args:
        within_s: longest watch; it ends when the memory is that of before again, or the message never came.
    """
    ring = Keyring(folder)
    with serving(ring) as server, closing(Wire.of(ring.of("actor"))) as wire:
        raw, frame, sent = wire.connect(zmq.DEALER, server.address), bytes(size), 0
        before = most = server.resident_mib()
        began, until = time.monotonic(), time.monotonic() + within_s
        while time.monotonic() < until:
            with suppress(zmq.Again):
                while sent < frames:
                    raw.send(frame, zmq.NOBLOCK | (zmq.SNDMORE if sent < frames - 1 else 0), copy=False)
                    sent += 1
            most = max(most, now := server.resident_mib())
            if time.monotonic() > began + 5.0 and now < before + 16:
                break
            time.sleep(0.01)
        return Memory(before, most, server.resident_mib())


class Throughput(NamedTuple):
    """Blocks per second of an honest sender, and what the receiver knows of all."""

    alone: float
    beside: float
    boots: int
    rejected: dict[str, int]


def starved(folder: Path, what: str, seconds: float) -> Throughput:
    """An honest sender alone, then beside an attack by a holder of the actor key, for so long each.

    Raises:
        TimeoutError: no attack was seen.
    """
    ring = Keyring(folder)
    keys = str(ring.of("actor"))
    with closing(Wire.of(ring.of("core"))) as wire:
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

        with closing(receiver), running("honest", keys, receiver.address, ticket(wire, HONEST)):
            while blocks(0.1) == 0:
                pass
            alone = blocks(seconds)
            with running(what, keys, receiver.address, ticket(wire, OWN)):
                until = time.monotonic() + BEGUN_WITHIN_S
                while not receiver.rejected and OWN not in receiver.accounts:
                    if time.monotonic() > until:
                        raise TimeoutError("no attack")
                    blocks(0.1)
                blocks(seconds)
                beside = blocks(seconds)
            return Throughput(alone, beside, len(receiver.accounts), dict(receiver.rejected))


def serve(keys: str) -> None:
    server = RpcServer(Wire.of(keys), "tcp://127.0.0.1:*", "server", {})
    print(server.address, flush=True)
    while True:
        server.serve(1.0)


def honest(keys: str, address: str, ticket: str) -> None:
    sender = make_sender(Wire.of(keys), address, boot=HONEST, ticket=ticket)
    while True:
        offer(sender)
        sender.poll(0.0 if sender.ready() else 0.001)


def attack(what: str, keys: str, address: str, ticket: str) -> None:
    raw = RawSender(Wire.of(keys), address, OWN)
    for number in count():
        boot = f"{number:016x}" if what == "names" else OWN
        asks = {"want": 1, "block_rows": BlockCodec(SCHEMA).max_rows} if what == "claims" else {"want": 1 << 40}
        hello = msgspec.msgpack.encode(raw.hello(boot=boot, ticket=ticket, **asks))
        try:
            raw.socket.send(hello, zmq.NOBLOCK)
            while raw.socket.poll(0):
                raw.socket.recv()
        except zmq.Again:
            time.sleep(0.0001)
        if what in ("hoards", "claims"):
            time.sleep(0.2)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what in ("serve", "honest"):
        {"serve": serve, "honest": honest}[what](*arguments)
    else:
        attack(what, *arguments)
