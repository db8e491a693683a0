"""Pages of a run on this machine: its manager's, behind a Unix socket, and TensorBoard's, which is started for it."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from rlctl.backends.local import lock
from rlctl.backends.local.places import Place
from rlctl.errors import BackendUnreachable, Conflict

START_TIMEOUT_S: Final = 60.0
"""TensorBoard on two busy cores has needed 12 s."""
_BLOCK_BYTES: Final = 1 << 16
_CONNECTIONS: Final = 32
_SET_PARENT_DEATH_SIGNAL: Final = 1


@contextmanager
def status_page(place: Place) -> Iterator[str]:
    """The address of the manager's page, on the loopback of this machine.

    Raises:
        Conflict: the run is over: `rlctl status` has what was stored.
        BackendUnreachable: its manager does not listen.
    """
    if not lock.alive(place.life):
        raise Conflict(
            f"run {place.run} is over, and its page with it", hint=f"rlctl status {place.run}", objects=(place.run,)
        )
    path = place.sockets / "manager-0.probe"
    try:
        _to(path).close()
    except OSError as error:
        raise BackendUnreachable(
            f"the manager of run {place.run} does not listen at {path}", hint=f"rlctl status {place.run}"
        ) from error
    with _listening(lambda: _to(path)) as port:
        yield f"http://127.0.0.1:{port}/"


@contextmanager
def tensorboard(place: Place) -> Iterator[str]:
    """The address of a TensorBoard that is started for it and ends with the block, or with this process.

    Raises:
        Conflict: the run has written no curves yet.
        BackendUnreachable: TensorBoard does not start; with what it said.
    """
    folder = place.layout.results / "tensorboard"
    if not folder.is_dir():
        raise Conflict(
            f"run {place.run} has no curves yet: {folder} is not there",
            hint=f"rlctl status {place.run}",
            objects=(place.run,),
        )
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1", "--port", "0"]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us; it is ended in good order
        preexec_fn=_die_with_parent,
    )
    assert child.stderr is not None
    drain = threading.Thread(target=_drain, args=(child.stderr,), name="tensorboard", daemon=True)
    with child.stderr:
        try:
            url = _address(child.stderr)
            drain.start()
            yield url
        finally:
            _end(child)
            if drain.ident is not None:
                drain.join()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _die_with_parent() -> None:
    """In the child: it ends when we do, however that happens."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _address(stderr: IO[bytes]) -> str:
    """The URL that TensorBoard says it serves at.

    Raises:
        BackendUnreachable: it ended, or did not say within the time.
    """
    deadline_s, said = time.monotonic() + START_TIMEOUT_S, b""
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not select.select([stderr], [], [], left_s)[0]:
            break
        block = os.read(stderr.fileno(), _BLOCK_BYTES)
        if not block:
            break
        said += block
        if found := re.search(rb"at (http://[^/\s]+)", said):
            return found[1].decode(errors="replace") + "/"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    raise BackendUnreachable(
        f"TensorBoard did not start: {last or f'it said nothing for {START_TIMEOUT_S:g} s'}",
        hint='It comes with: pip install "rlctl[local]"',
    )


def _drain(stderr: IO[bytes]) -> None:
    with suppress(OSError, ValueError):
        while os.read(stderr.fileno(), _BLOCK_BYTES):
            pass


def _to(path: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(5.0)
        found.connect(str(path))
    except BaseException:
        found.close()
        raise
    found.settimeout(None)
    return found


@contextmanager
def _listening(connect: Callable[[], socket.socket]) -> Iterator[int]:
    """A port of the loopback whose connections are joined to what `connect` opens."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=_CONNECTIONS)
    free = threading.BoundedSemaphore(_CONNECTIONS)
    threading.Thread(target=_accept, args=(listener, connect, free), name="page", daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; closing alone does not
        listener.close()


def _accept(
    listener: socket.socket, connect: Callable[[], socket.socket], free: threading.BoundedSemaphore
) -> None:  # fmt: skip
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return  # closed
        if not free.acquire(blocking=False):
            near.close()
            continue
        threading.Thread(target=_serve, args=(near, connect, free), name="page connection", daemon=True).start()


def _serve(near: socket.socket, connect: Callable[[], socket.socket], free: threading.BoundedSemaphore) -> None:
    try:
        with near:
            try:
                far = connect()
            except OSError:
                return  # the manager is gone: the browser says that nobody answers
            with far:
                back = threading.Thread(target=_carry, args=(far, near), name="page back", daemon=True)
                back.start()
                _carry(near, far)
                back.join()
    finally:
        free.release()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK_BYTES):
            sink.sendall(block)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
