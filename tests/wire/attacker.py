"""Ends of channels for attacks, as processes: `python -m tests.wire.attacker WHAT ...`, until they are killed.

`serve KEYS` listens for requests and prints its address. `honest KEYS ADDRESS TICKET` sends blocks as fast as it may.
`names`, `hellos` and `hoards KEYS ADDRESS TICKET` have the actor's key: the first says hello under ever new boots over
one connection, the second without end under its own, the third asks for all credit and never sends a block.
"""

from __future__ import annotations

import sys
import time
from itertools import count

import msgspec
import zmq

from rlctl_agents.wire.rpc.server import RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.wire.pair import RawSender, make_sender, offer

HONEST, OWN = "0" * 15 + "1", "0" * 15 + "2"


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
        hello = msgspec.msgpack.encode(raw.hello(boot=boot, ticket=ticket, want=1 << 40))
        try:
            raw.socket.send(hello, zmq.NOBLOCK)
            while raw.socket.poll(0):
                raw.socket.recv()
        except zmq.Again:
            time.sleep(0.0001)
        if what == "hoards":
            time.sleep(0.2)


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what in ("serve", "honest"):
        {"serve": serve, "honest": honest}[what](*arguments)
    else:
        attack(what, *arguments)
