"""TCP ports for processes that bind them later."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress

FIRST, PORTS, WORKERS = 20_000, 1_000, 12
"""Below the ports that the kernel gives to `bind` of port 0 and to connections; PORTS for each worker of the tests."""


def free_ports(count: int) -> list[int]:
    """Free ports of loopback, from a range of this worker alone, outside of those that the kernel hands out."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, found = FIRST + PORTS * (worker % WORKERS), list[int]()
    for port in random.SystemRandom().sample(range(first, first + PORTS), PORTS):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} ports are free from {first} on")
