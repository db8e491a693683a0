"""Pages of a run on this machine: its manager's, behind a Unix socket; TensorBoard, and the page of a run that is over,
each served by a child process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

from rlctl.backends.gate import Gate
from rlctl.backends.local.state import lock
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Conflict
from rlctl.waiting import Waiting

START_TIMEOUT_S: Final = 60.0
"""Seconds that a child has to start: TensorBoard has needed 12 on two busy cores."""
_BLOCK_BYTES: Final = 1 << 16
_SET_PARENT_DEATH_SIGNAL: Final = 1


@contextmanager
def status_page(place: Place) -> Iterator[str]:
    """Link to the manager's page, on the loopback of this machine; for a run that is over, to a page of its stored
    status, served by a child that ends with the block.

    Raises:
        Conflict: the run is over, and has stored no status.
        BackendUnreachable: its manager does not listen, or the child does not start.
    """
    command = f"rlctl open status {place.run}"
    if not lock.alive(place.life):
        if not place.layout.status_file.is_file():
            raise Conflict(
                f"run {place.run} is over, and has left no figures to show",
                hint=f"rlctl status {place.run}",
                objects=(place.run,),
            )
        with _by_child("the page", ["page", "--root", str(place.layout.root), "--run", place.run], command) as url:
            yield url
        return
    path = place.sockets / "manager-0.probe"
    try:
        _to(path).close()
    except OSError as error:
        raise BackendUnreachable(
            f"the manager of run {place.run} does not listen at {path}", hint=f"rlctl status {place.run}"
        ) from error
    with Gate(lambda: _to(path), command) as gate:
        yield gate.url


@contextmanager
def tensorboard(place: Place) -> Iterator[str]:
    """Link to a TensorBoard that is started for it and ends with the block, or with this process.

    Raises:
        Conflict: the run has written no curves yet.
        BackendUnreachable: TensorBoard does not start; the message has its last output.
    """
    folder = place.layout.results / "tensorboard"
    if not folder.is_dir():
        raise Conflict(
            f"run {place.run} has no curves yet: {folder} is not there",
            hint=f"rlctl status {place.run}",
            objects=(place.run,),
        )
    words = ["tensorboard", "--logdir", str(folder), "--run", place.run]
    with _by_child("TensorBoard", words, f"rlctl open tensorboard {place.run}") as url:
        yield url


@contextmanager
def _by_child(what: str, words: list[str], command: str) -> Iterator[str]:
    """Link to a page of a child process, which ends with the block, or with this process.

    It listens on a socket in a folder that no other user may enter; a loopback port is open to all users.

    Args:
        what: name of the page, for messages.
        words: program of `rlctl_agents` and its arguments, without the socket.
        command: command that prints a link.

    Raises:
        BackendUnreachable: it does not start; the message has its last output.
    """
    with TemporaryDirectory(prefix="rlctl-") as private:
        path = Path(private) / "page"
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "rlctl_agents", *words, "--socket", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; the child is stopped gracefully
            preexec_fn=_die_with_parent,
        )
        assert child.stdout is not None
        drain = threading.Thread(target=_drain, args=(child.stdout,), name="page", daemon=True)
        with child.stdout:
            try:
                _wait_until_served(child.stdout, what)
                drain.start()
                with Gate(lambda: _to(path), command) as gate:
                    yield gate.url
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
    """Make this child die when its parent does, however that happens."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait_until_served(output: IO[bytes], what: str) -> None:
    """Wait until the child reports that it serves.

    Raises:
        BackendUnreachable: it ended, or did not say so within the timeout.
    """
    waiting, said = Waiting(START_TIMEOUT_S), b""
    while left_s := waiting.left_s():
        if not select.select([output], [], [], left_s)[0]:
            continue
        block = os.read(output.fileno(), _BLOCK_BYTES)
        if not block:
            break
        said += block
        if any(_message(line).startswith("serving ") for line in said.splitlines()):
            return
    last = _message(said.strip().rpartition(b"\n")[2])
    raise BackendUnreachable(
        f"{what} did not start: {last or f'it said nothing for {START_TIMEOUT_S:g} s'}",
        hint='It comes with: pip install "rlctl[local]"',
    )


def _message(line: bytes) -> str:
    """Message of a log record; of any other line, all of it."""
    try:
        return str(json.loads(line)["msg"])
    except (ValueError, TypeError, KeyError):
        return line.decode(errors="replace")


def _drain(output: IO[bytes]) -> None:
    with suppress(OSError, ValueError):
        while os.read(output.fileno(), _BLOCK_BYTES):
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
