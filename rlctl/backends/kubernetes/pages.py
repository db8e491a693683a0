"""The pod that answers for a run, and a port of this machine that leads to one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Final

from rlctl.backends.kubernetes import explain, names
from rlctl.backends.kubernetes.api import Api, Object
from rlctl.backends.kubernetes.causes.base import Around, is_ready, name_of
from rlctl.errors import BackendUnreachable, RlctlError

CONNECTIONS: Final = 32
"""A browser opens six."""
_BLOCK_BYTES: Final = 1 << 16
_IDLE_S: Final = 3600.0
_FEW: Final = 20

Connect = Callable[[], AbstractContextManager[socket.socket]]


def pod_of(api: Api, run: str, component: str, around: Around) -> str:
    """The name of a pod that can answer: ready rather than only running, young rather than old.

    Raises:
        BackendUnreachable: there is none; with why.
    """
    pods = api.list("Pod", labels=names.selector(run, component), most=_FEW).items
    live = [pod for pod in pods if _runs(pod)]
    if live:
        return name_of(max(live, key=lambda pod: (is_ready(pod), str(pod["metadata"].get("creationTimestamp", "")))))
    why = next((cause for pod in pods if (cause := explain.of_pod(pod, around)) is not None), None)
    said = f" does not run: pod {name_of(pods[0])}: {why.text}" if why else " has no pod" if not pods else ""
    raise BackendUnreachable(
        f"the {component} of run {run}{said}",
        hint=why.next if why and why.next else f"rlctl status {run}",
        objects=(f"{component}/0",),
    )


def _runs(pod: Object) -> bool:
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    states = [each.get("state") or {} for each in status.get("containerStatuses") or ()]
    return not metadata.get("deletionTimestamp") and any("running" in state for state in states)


class Tunnel:
    """Listens on the loopback address and joins each connection to one that `connect` opens, until it is closed.

    Args:
        connect: a connection to the far side; called in a thread of its own for each of ours.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="tunnel", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and break off what is open."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        self._listener.close()
        for each in left:
            _break(each)
        self._thread.join(timeout=5.0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            if not self._free.acquire(blocking=False):
                _refuse(near, "too many connections at once")
                continue
            threading.Thread(target=self._serve, args=(near,), name="tunnel connection", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            if not self._keep(near):
                return
            try:
                with self._connect() as far:
                    if self._keep(far):
                        _join(near, far)
            except RlctlError as error:
                _refuse(near, error.message)
            except OSError as error:
                _refuse(near, str(error))
            finally:
                self._drop(near)
        finally:
            self._free.release()

    def _keep(self, each: socket.socket) -> bool:
        with self._lock:
            if not self._closed:
                self._open.add(each)
                return True
        _break(each)
        return False

    def _drop(self, near: socket.socket) -> None:
        with self._lock:
            self._open = {each for each in self._open if each is not near and each.fileno() >= 0}
        _break(near)


def _join(near: socket.socket, far: socket.socket) -> None:
    """Carry bytes both ways until one side has ended and the other has been told."""
    near.settimeout(_IDLE_S)
    far.settimeout(_IDLE_S)
    back = threading.Thread(target=_carry, args=(far, near), name="tunnel back", daemon=True)
    back.start()
    _carry(near, far)
    back.join(timeout=_IDLE_S)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _refuse(near: socket.socket, why: str) -> None:
    """What a browser shows when there is nothing behind the port."""
    body = f"rlctl: {why}\n".encode()
    head = f"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    with suppress(OSError):
        near.settimeout(5.0)
        near.recv(_BLOCK_BYTES)  # closing with the request unread would throw the answer away
        near.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
    _break(near)


def _break(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        each.close()
