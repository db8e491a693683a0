"""The manager's control API and the pages of a run, through the API server: no other way into the cluster is needed."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rlctl.backends import manager_api
from rlctl.backends.base import RunState
from rlctl.backends.gate import Gate
from rlctl.backends.kubernetes.api.interface import Api, ApiError, Key, Object, in_context
from rlctl.backends.kubernetes.diagnose import explain
from rlctl.backends.kubernetes.diagnose.causes.base import RelatedObjects, is_ready, name_of
from rlctl.errors import BackendUnreachable, Conflict, RlctlError
from rlctl.spec import names

TIMEOUT_S: Final = 10.0
"""Seconds for one whole reply: the manager waits 5 s for its own loop."""
_BLOCK_BYTES: Final = 1 << 16
_PODS_READ: Final = 20


def ask(
    api: Api, run: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None,
    *, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic,
) -> Any:  # fmt: skip
    """Send a JSON request to the run's manager; returns the decoded reply.

    Args:
        path: path and query.
        timeout_s: timeout of the whole exchange.

    Raises:
        BackendUnreachable: there is no manager, no reply within the timeout, or one that is not JSON.
        RlctlError: a status of 400 or more; the message has the manager's reason.
    """
    pod = _pod_of(api, run, "manager")
    return ask_pod(api, pod, f"the manager of run {run}", method, path, body, timeout_s=timeout_s, clock=clock)


def ask_pod(
    api: Api, pod: str, who: str, method: Literal["GET", "POST"], path: str, body: Mapping[str, Any] | None = None,
    *, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.monotonic,
) -> Any:  # fmt: skip
    """Send a JSON request to the control port of a pod; returns the decoded reply.

    Args:
        who: process that listens there, for messages.
        path, timeout_s: as in `ask`.

    Raises:
        BackendUnreachable, RlctlError: as in `ask`.
    """
    deadline = clock() + timeout_s

    def send(method: str, path: str, payload: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            with api.forward(pod, names.PORTS["control"]) as connected:
                return _exchange(connected, method, path, payload, headers, deadline, clock)
        except ApiError as error:
            raise BackendUnreachable(f"{who} cannot be reached: {error.message}", hint=error.hint) from error

    return manager_api.ask(who, method, path, body, send, timeout_s)


class _Connection(http.client.HTTPConnection):
    """HTTP over an existing connection."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__("localhost")
        self.sock = connected

    def connect(self) -> None:
        raise http.client.HTTPException("the connection was closed")


def _exchange(
    connected: socket.socket, method: str, path: str, payload: str | None, headers: dict[str, str], deadline: float,
    clock: Callable[[], float],
) -> tuple[int, bytes]:  # fmt: skip
    connected.settimeout(max(0.1, deadline - clock()))
    connection = _Connection(connected)
    try:
        connection.request(method, path, payload, {"Connection": "close", **headers})
        answer = connection.getresponse()
        content = bytearray()
        while block := answer.read(_BLOCK_BYTES):
            content += block
            if len(content) > manager_api.LARGEST_ANSWER_BYTES:
                break
            if (left := deadline - clock()) <= 0:
                raise TimeoutError
            if connected.fileno() >= 0:  # http.client closes it with the last byte of an answer of known length
                connected.settimeout(left)
        return answer.status, bytes(content)
    finally:
        connection.close()


@contextmanager
def forward(api: Api, state: RunState, what: Literal["tensorboard", "status"]) -> Iterator[str]:
    """Link on this machine's loopback to a page, for as long as the block lasts.

    A new connection looks the pod up again after one has failed, so a restarted pod is found.

    Raises:
        Conflict: the run is not live.
        BackendUnreachable: no pod can answer; the message has the reason.
    """
    if not state.managed:
        raise Conflict(f"run {state.run} is {state.phase}: nothing shows {what}", hint="rlctl up SPEC starts it again.")
    component, port = names.PAGES[what]
    found = _Chosen(api, state, component, names.PORTS[port])
    found.choose()
    with Gate(found.connect, f"rlctl open {what} {state.run}") as gate:
        yield gate.url


class _Chosen:
    """Connector to a pod of a component; remembers which pod answered last."""

    def __init__(self, api: Api, state: RunState, component: str, port: int) -> None:
        self._api, self._state, self._component, self._port = api, state, component, port
        self._pod = ""

    def choose(self) -> str:
        self._pod = _pod_of(self._api, self._state.run, self._component)
        return self._pod

    @contextmanager
    def connect(self) -> Iterator[socket.socket]:
        pod = self._pod or self.choose()
        try:
            with self._api.forward(pod, self._port) as connected:
                yield connected
        except (RlctlError, OSError):
            self._pod = ""  # it may have been replaced: look it up for the next connection
            raise


def _pod_of(api: Api, run: str, component: str) -> str:
    """Name of a pod that can answer for a component: ready rather than only running, young rather than old.

    Raises:
        BackendUnreachable: there is none; the message has the reason.
    """
    if component == "manager":  # a list by labels would read all pods of the namespace
        found = api.get(Key("Pod", f"{names.workload_name(run, component)}-0"))
        pods = [] if found is None else [found]
    else:
        pods = api.list("Pod", labels=names.selector(run, component), most=_PODS_READ).items
    live = [pod for pod in pods if _runs(pod)]
    if live:
        return name_of(max(live, key=lambda pod: (is_ready(pod), str(pod["metadata"].get("creationTimestamp", "")))))
    related = RelatedObjects(datetime.now(UTC))
    why = next((cause for pod in pods if (cause := explain.of_pod(pod, related)) is not None), None)
    said = f" does not run: pod {name_of(pods[0])}: {why.text}" if why else " has no pod" if not pods else ""
    raise BackendUnreachable(
        f"the {component} of run {run}{said}",
        hint=in_context(api, why.next) if why and why.next else f"rlctl status {run}",
        objects=(f"{component}/0",),
    )


def _runs(pod: Object) -> bool:
    """Whether a container of a pod runs, and the pod is not being deleted."""
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    return not metadata.get("deletionTimestamp") and any("running" in state for state in states)
