"""Clients that hold connections of the webhook service: idle ones beside signed hooks, and readers that never read."""

from __future__ import annotations

import asyncio
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ci import world
from benchmarks.ci.hooks import load
from benchmarks.shared import processes

IDLE, HOOKS = 520, 10
READERS, WITHIN_S = 60, 120.0
"""The service waits 30 s for a client that does not read; the rest is for a machine with other load."""
LOG_BYTES = 16 << 20
"""The largest log of a build by default: more than the kernel takes for a reader that does not read."""


def idle() -> dict[str, Any]:
    """Answers to signed hooks beside more idle connections than the service has places.

    Raises:
        OSError: so many connections cannot be opened.
    """
    with serving() as service, ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=30))
        times, answers = asyncio.run(load(service.port, 100.0, HOOKS / 100.0))
        return {"connections": IDLE, "hooks": HOOKS, "accepted": answers[202], "max_ms": times[-1] * 1e3,
                "held": answers == {202: HOOKS}}  # fmt: skip


def unread() -> dict[str, Any]:
    """Seconds until the service has ended the connections of readers of a long log, which read nothing."""
    with serving() as service, ExitStack() as stack:
        build = service.hook("1" * 40)
        service.ended(build, 60.0)
        (service.folder / "logs" / f"{build}.log").write_bytes(b"x" * LOG_BYTES)
        before = processes.memory([service.pid]).sockets
        before_mib = processes.reset_peak(service.pid)
        asked = f"GET /api/v1/builds/{build}/log HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n\r\n".encode()
        for _ in range(READERS):
            reader = stack.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", service.port))
            reader.sendall(asked)
        began, begun, left = time.monotonic(), 0, 1
        while left > 0 and time.monotonic() < began + WITHIN_S:
            time.sleep(0.5)
            left = processes.memory([service.pid]).sockets - before
            begun = max(begun, left)
        return {"connections": READERS, "begun": begun, "left": left, "seconds": time.monotonic() - began,
                "before_mib": before_mib, "most_mib": processes.peak_mib(service.pid),
                "held": begun >= READERS and left <= 0}  # fmt: skip


@contextmanager
def serving() -> Iterator[world.Serving]:
    """A service of an empty project, and room for connections to it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="rlb-", dir="/tmp") as name:
        folder = Path(name)
        repository = world.Repository(folder / "repository")
        repository.commit({})
        with world.serving(folder, world.environ(folder), repository.folder, "bench") as service:
            yield service
