"""Processes of tests/training/test_strangers.py: two learners that meet, and another user's process that is first.

The stranger knows what every user of the machine can know: that somebody listens, and which numbers gloo's ranks have.
It answers with what it hears, which is what a member that has the same to say would answer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import struct
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from msgspec import Struct

from rlctl_agents.manager.membership.learner_groups import Groups
from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.training.collective import Collective, GroupBroken
from rlctl_agents.training.group_store import GroupStore
from rlctl_agents.types.control import Enlist, Note, StoreReply
from rlctl_agents.wire.rpc.client import RpcClient
from rlctl_agents.wire.rpc.server import Handler, RpcServer
from rlctl_agents.wire.sockets import Wire
from tests.manager.world import boot
from tests.training.ranks import CPU, enlisted

WORLD = 2
GRADIENT = struct.unpack("<d", b"gradient")[0]
ROUNDS, FILES = 50, 128


class Stranger:
    """Connects to a listener of gloo as each rank that there may be, and says again what it hears."""

    def __init__(self) -> None:
        self.came, self.heard = 0, b""
        self._lock = threading.Lock()

    def come(self, port: int, numbers: range) -> None:
        for number in numbers:
            with suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), timeout=5)
                one.sendall(struct.pack("<q", number))
                one.settimeout(60)
                self.came += 1
                threading.Thread(target=self._echo, args=(one,), daemon=True).start()

    def _echo(self, one: socket.socket) -> None:
        with suppress(OSError), one:
            while block := one.recv(1 << 16):
                with self._lock:
                    self.heard += block
                one.sendall(block)


def run_rank(rank: int, address: str) -> dict[str, object]:
    """Meet, then add up gradients."""
    line = RpcClient(Wire(), address, boot(rank))
    place = enlisted(line, rank, WORLD)
    store = GroupStore(lambda note: line.call(note, StoreReply, deadline_s=20)[0], boot(rank), place.number, wait_s=20)
    try:
        collective = Collective(place, store, CPU, one_machine=True, meet_s=3, step_s=6)
        Path(address.removeprefix("ipc://")).with_name(f"met-{rank}").touch()
        right = True
        for _ in range(ROUNDS):  # the stranger may come meanwhile
            right &= collective.sums([GRADIENT] * 1000) == [WORLD * GRADIENT] * 1000
            time.sleep(0.02)
        collective.close()
    except GroupBroken as error:
        return {"broken": str(error)}
    return {"right": right}


def main(when: str, folder: Path) -> int:
    """Two ranks and a stranger that comes `before` they have met, `after`, or after that in a `flood`."""
    torch.set_num_threads(1)
    stranger, ports = Stranger(), list[int]()
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as short:
        address, children = f"ipc://{short}/manager", []
        for rank in range(WORLD):
            child = os.fork()
            if child == 0:
                if when == "flood":
                    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
                (folder / f"{rank}.json").write_text('{"died": true}')
                (folder / f"{rank}.json").write_text(json.dumps(run_rank(rank, address)))
                os._exit(0)
            children.append(child)
        groups = Groups(time.monotonic, lambda *_, **__: None)
        live = [Holder("learner", rank, boot(rank), 0.0, 0.0) for rank in range(WORLD)]

        def note(asked: Note) -> StoreReply:
            found = re.search(rb"\x02\x00(..)\x7f\x00\x00\x01", asked.value, re.DOTALL)
            if found:  # a rank tells where it listens; others find that in /proc/net/tcp
                ports.append(int.from_bytes(found[1], "big"))
                if when == "before":
                    stranger.come(ports[-1], range(WORLD + 1))
                    time.sleep(0.2)  # until gloo has taken them; then the other rank comes
            return groups.note(asked)

        answers: dict[type[Struct], Handler] = {
            Enlist: lambda ask, _: (groups.enlist(ask, live, WORLD), []),
            Note: lambda asked, _: (note(asked), []),
        }
        server, again = RpcServer(Wire(), address, "f" * 16, answers), when != "before"
        while children:
            server.serve(0.02)
            if again and all(Path(short, f"met-{rank}").exists() for rank in range(WORLD)):
                again = False
                for port in ports:
                    stranger.come(port, range(FILES if when == "flood" else 50))
            children = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
        server.close()
    (folder / "stranger.json").write_text(
        json.dumps({"ports": len(ports), "heard": stranger.heard.count(b"gradient"), "came": stranger.came})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
