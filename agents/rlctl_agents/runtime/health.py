"""Liveness, readiness and metrics: one read-only listener for each process.

Alive: its main loop turns. That depends on no other process: one that waits for another for hours is alive, for
restarting it would not help. Ready: it can do its part of the run now.

| role | ready |
|---|---|
| manager | it listens |
| modelpool | it holds the current version of every policy that it knows, and at least one |
| learner | it steps with the others, or waits until those of another spec or image have left |
| actor, evaluator | it has joined and holds weights |
| replay | it has joined and holds its rows: those of a generation are read before |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from rlctl_agents.runtime.http_server import HttpListener, Request, Response

SILENT_S = 60.0
"""Time without a turn of its loop after which a process reports that it is not alive, and Kubernetes restarts it."""
SIMULATOR_S = 900.0
"""The same for an actor or evaluator: its loop stands still during a step or a reset, and a reset may load a world."""
UPDATE_S = 900.0
"""The same for a learner: its loop stands still during an update, which may be of many epochs, and while a group of
learners is formed."""
RESET_S, RESETS_S = 120.0, 3000.0
"""Additional time for each environment of an evaluator beyond the first, and its maximum."""


def resets_s(envs: int) -> float:
    """Additional time that an evaluator's loop may stand still: most vectors reset one environment after the other.

    Example:
        `resets_s(1)` is 0, `resets_s(25)` is 2880.
    """
    return min(RESET_S * max(envs - 1, 0), RESETS_S)


class Pulse:
    """Heartbeat of a process's main loop. A process that never beats counts as alive while it answers at all.

    Attributes:
        silent_s: longest time that the loop may stand still.
        ready: as the table above says.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, silent_s: float = SILENT_S) -> None:
        self._clock = clock
        self.silent_s = silent_s
        self._last: float | None = None
        self.ready = False

    def beat(self) -> None:
        """Record a turn of the loop."""
        self._last = self._clock()

    @property
    def alive(self) -> bool:
        return self._last is None or self._clock() - self._last < self.silent_s


class ProbeListener:
    """Read-only listener: GET /healthz, /readyz and /metrics, and the pages of the role.

    Args:
        address: `unix:/path` or `tcp:address:port`, which may be one that other machines reach; then it also listens
            on the loopback address, where a port-forward to a pod comes in.
        pulse: of this process.
        metrics: makes the page /metrics; called in a thread of the listener.
        pages: path -> function that makes its response, likewise; a path that ends with a slash is a folder, whose
            function gets the name after it. May be filled later.

    Raises:
        ValueError, OSError: as HttpListener does, for either address; then it listens on neither.
    """

    def __init__(
        self,
        address: str,
        pulse: Pulse,
        metrics: Callable[[], bytes],
        pages: Mapping[str, Callable[[str], Response]] | None = None,
    ) -> None:
        self._pulse = pulse
        self._metrics = metrics
        self._pages = pages if pages is not None else {}
        self._listener = HttpListener(address, self.answer, name="probe", for_all=True)
        self.address = self._listener.address
        beside = _loopback_beside(self.address)
        try:
            self._beside = HttpListener(beside, self.answer, name="probe-loopback", for_all=True) if beside else None
        except BaseException:
            self._listener.close()  # no caller will have a listener that it could close
            raise

    def answer(self, request: Request) -> Response:
        """Answer one request; pure but for what it reads."""
        folder, _, name = request.path.rpartition("/")
        page = self._pages.get(request.path) or (self._pages.get(f"{folder}/") if folder else None)
        if page is None and request.path not in ("/healthz", "/readyz", "/metrics"):
            return Response.refusal(404, "here are /healthz, /readyz and /metrics")
        if request.method not in ("GET", "HEAD"):
            return Response.refusal(405, "read only")
        if page is not None:
            return page(name)
        if request.path == "/metrics":
            return Response(200, self._metrics(), CONTENT_TYPE_PLAIN_0_0_4)
        fine = self._pulse.alive and (self._pulse.ready or request.path == "/healthz")
        return Response(200 if fine else 503, b"ok\n" if fine else b"no\n", "text/plain; charset=utf-8")

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()
        if self._beside is not None:
            self._beside.close()


def _loopback_beside(address: str) -> str | None:
    """The same port of the loopback address, for an address that is neither it nor a file."""
    kind, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")
    if kind != "tcp":
        return None
    number = ip_address(host.removeprefix("[").removesuffix("]"))
    if number.is_loopback:
        return None
    return f"tcp:{'[::1]' if number.version == 6 else '127.0.0.1'}:{port}"
