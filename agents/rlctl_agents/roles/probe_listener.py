"""Is it alive, is it ready, what has it counted: one read-only listener for each process."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlctl_agents.roles.http_listener import HttpListener, Request, Response
from rlctl_agents.roles.prometheus import CONTENT_TYPE

SILENT_S = 60.0
"""A process whose loop has not turned for so long is not alive; it says so itself, and Kubernetes restarts it."""


class Pulse:
    """Turns of a process's main loop. A process that never beats is judged by its answering alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, silent_s: float = SILENT_S) -> None:
        self._clock = clock
        self._silent_s = silent_s
        self._last: float | None = None
        self.ready = False

    def beat(self) -> None:
        """The loop has turned."""
        self._last = self._clock()

    @property
    def alive(self) -> bool:
        return self._last is None or self._clock() - self._last < self._silent_s


class ProbeListener:
    """GET /healthz, /readyz and /metrics, nothing else.

    Args:
        address: `unix:/path` or `tcp:127.0.0.1:port`.
        pulse: of this process.
        metrics: makes the text of /metrics; called in a thread of the listener.
    """

    def __init__(self, address: str, pulse: Pulse, metrics: Callable[[], str]) -> None:
        self._pulse = pulse
        self._metrics = metrics
        self._listener = HttpListener(address, self.answer, name="probe")
        self.address = self._listener.address

    def answer(self, request: Request) -> Response:
        """One request; pure but for what it reads."""
        if request.path not in ("/healthz", "/readyz", "/metrics"):
            return Response.refusal(404, "here are /healthz, /readyz and /metrics")
        if request.method not in ("GET", "HEAD"):
            return Response.refusal(405, "read only")
        if request.path == "/metrics":
            return Response(200, self._metrics().encode(), CONTENT_TYPE)
        fine = self._pulse.alive and (self._pulse.ready or request.path == "/healthz")
        return Response(200 if fine else 503, b"ok\n" if fine else b"no\n", "text/plain; charset=utf-8")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
