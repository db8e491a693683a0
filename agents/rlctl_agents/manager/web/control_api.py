"""Control API of the manager: queries and orders of the command line, over a Unix socket or the loopback address.

    GET  /status                the newest status
    GET  /events?since=N        {"events": [...], "next": N}
    GET  /logs?...              {"lines": [...], "next": N, ...}: log lines of all processes; see `log_queries`
    GET  /checkpoints           {"generations": [...], "wanted": {policy: number}}
    GET  /files?folder=...      names, or a piece of one: of models, generations and evaluations; see `stored_files`
    GET  /profiles?id=...       result of `POST /profile`, with the flame graph once it is there
    POST /reload                read live.json again, or take {"live": {...}} instead; {"changes": [...]}
    POST /checkpoint            order a generation; {"number": N}
    POST /profile               {"role", "index" or null, "seconds"}: profile a process; {"id", "process", ...}
    POST /init                  a piece of the run's initial policy; see `initial_policy`
    POST /stop                  finish the run in good order

Reads are answered from what is there; orders wait for the manager's main loop, which alone changes state.
"""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from rlctl_agents.manager.events import Events
from rlctl_agents.manager.lifecycle.stop import TooLate
from rlctl_agents.manager.web.initial_policy import BODY_BYTES
from rlctl_agents.manager.web.profiles import Profiles
from rlctl_agents.runtime.http_server import HttpListener, Request, Response, is_count

ORDER_S = 5.0
"""Longest wait for the main loop, in seconds."""

QueryHandler = Callable[[dict[str, str]], Response]
"""Handler of a query."""

READS = ("/status", "/events", "/logs", "/checkpoints", "/files", "/profiles")
ORDERS = ("/reload", "/checkpoint", "/profile", "/stop")
TAKES = ("/init",)
"""Posted like orders, but not carried out by the main loop."""

log = logging.getLogger(__name__)


class ControlOrder(NamedTuple):
    """Order to the main loop, its body, and its result once it was carried out."""

    what: str
    body: dict[str, Any]
    done: Future[Any]


class ControlApi:
    """HTTP server of the control API, until it is closed.

    Args:
        address: `unix:/path` or `tcp:127.0.0.1:port`.
        logs: handler of /logs, given the query; called in several threads.
        files: the same for /files.
        initial: the same for POST /init, given the request.

    Raises:
        ValueError, OSError: as HttpListener.
    """

    def __init__(
        self, address: str, logs: QueryHandler, files: QueryHandler, initial: Callable[[Request], Response]
    ) -> None:
        self.status: bytes = b""
        """Newest status, as it is served; replaced as a whole by the main loop."""
        self.checkpoints: dict[str, Any] = {"generations": [], "wanted": {}}
        """Generations on the volume and those that are ordered; replaced as a whole by the main loop."""
        self.events: Events | None = None
        """Events of the run; replaced as a whole when it begins, ends or goes on; read from any thread."""
        self.profiles: Profiles | None = None
        """Profiles of the run; replaced as a whole when it begins or goes on; read from any thread."""
        self._of_query = {"/logs": logs, "/files": files}
        self._orders: queue.Queue[ControlOrder] = queue.Queue(maxsize=16)
        self._initial = initial
        self._listener = HttpListener(address, self.answer, name="control", body_bytes=BODY_BYTES)
        self.address = self._listener.address

    def answer(self, request: Request) -> Response:
        """Reply to a request, in a thread of the listener."""
        if request.path in READS:
            if request.method not in ("GET", "HEAD"):
                return Response.refusal(405, f"{request.path} is read with GET")
            return self._read(request)
        if request.path in ORDERS + TAKES:
            if request.method != "POST":
                return Response.refusal(405, f"{request.path} is ordered with POST")
            return self._order(request) if request.path in ORDERS else self._initial(request)
        return Response.refusal(404, f"there is no {request.path}; here are {', '.join(READS + ORDERS + TAKES)}")

    def carry_out(self, do: Callable[[str, dict[str, Any]], Any]) -> None:
        """Carry out all orders since the last call; called by the main loop.

        Args:
            do: called with path and body; returns the reply. A ValueError refuses the order; any other error fails the
                order and not the run, as with requests of processes.
        """
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            if not order.done.set_running_or_notify_cancel():  # its sender was told that it is not carried out
                continue
            try:
                order.done.set_result(do(order.what, order.body))
            except Exception as fault:
                if not isinstance(fault, ValueError):
                    log.exception("%s failed", order.what)
                order.done.set_exception(fault)

    def close(self) -> None:
        """Stop listening; waiting orders are refused."""
        while not self._orders.empty():
            done = self._orders.get_nowait().done
            if done.set_running_or_notify_cancel():
                done.set_exception(ValueError("the manager is ending"))
        self._listener.close()

    def _read(self, request: Request) -> Response:
        if request.path == "/status":
            if not self.status:
                return Response.refusal(503, "the manager has only just started")
            return Response(200, self.status)
        if request.path == "/checkpoints":
            return Response.of(self.checkpoints)
        if request.path in self._of_query:
            return self._of_query[request.path](request.query)
        if request.path == "/profiles":
            if self.profiles is None:
                return Response.refusal(503, "the manager has only just started")
            return self.profiles.answer(request.query)
        since = request.query.get("since", "0")
        if not is_count(since):
            return Response.refusal(400, f"since must be a number, got {since[:40]!r}")
        if self.events is None:
            return Response.refusal(503, "the manager has only just started")
        events, newest = self.events.since(int(since))
        return Response.of({"events": events, "next": newest})

    def _order(self, request: Request) -> Response:
        try:
            body = json.loads(request.body) if request.body.strip() else {}
        except (ValueError, RecursionError) as error:
            return Response.refusal(400, f"the body is not JSON: {error}")
        if not isinstance(body, dict):
            return Response.refusal(400, "the body must be an object")
        order = ControlOrder(request.path, body, Future())
        try:
            self._orders.put_nowait(order)
        except queue.Full:
            return Response.refusal(503, "the manager has too many orders to carry out")
        try:
            return Response.of(order.done.result(ORDER_S))
        except TimeoutError:
            later = "the order is not carried out" if order.done.cancel() else "it is carrying the order out now"
            return Response.refusal(503, f"the manager did not answer within {ORDER_S:g} s; {later}")
        except ValueError as fault:
            return Response.refusal(409 if isinstance(fault, TooLate) else 400, str(fault))
