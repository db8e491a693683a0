"""`python -m rlctl_agents tensorboard`: shows the curves of a run. Reads its folder, writes nothing there, and
connects to nothing. It shows the curves to every client that reaches it: access has to be limited in front of it. A
port of the loopback is open to every user of the machine: where there may be several, it listens on a socket.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from tensorboard import default, program

from rlctl_agents.runtime import logs
from rlctl_agents.runtime.process import DONE, FAILED, USERS_FAULT, Signals, new_boot

RELOAD_S = 15
NAME = "tensorboard"

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM; returns the exit code.

    Args:
        arguments: after the word `tensorboard`.
    """
    parser = argparse.ArgumentParser(f"rlctl_agents {NAME}", description="Show the curves of a run.")
    parser.add_argument("--logdir", type=Path, required=True, help="with event files; need not exist yet")
    parser.add_argument("--port", type=int, default=6006)
    parser.add_argument(
        "--bind", default="127.0.0.1", metavar="ADDRESS",
        help="by number; one that others reach means all of this pod: a port-forward comes to its loopback",
    )  # fmt: skip
    parser.add_argument("--socket", type=Path, metavar="PATH", help="a Unix socket in place of address and port")
    parser.add_argument("--run", default="", help="name of the run, for log lines and the title")
    options = parser.parse_args(list(arguments))
    logs.set_up(logs.Identity(options.run, NAME, f"{NAME}/0", new_boot()))
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # without it, a line for every request
    try:
        ip_address(options.bind)
    except ValueError:
        log.error("--bind: must be an address of this machine by number, got %r", options.bind)
        return USERS_FAULT
    stop = threading.Event()
    with Signals(stop):
        try:
            url = launch(options.logdir, options.bind, options.port, options.run, options.socket)
        except (program.TensorBoardServerException, program.TensorBoardPortInUseError) as error:
            where = options.socket or f"{options.bind}, port {options.port}"
            log.error("tensorboard cannot listen at %s: %s", where, error)
            return FAILED
        log.info("serving %s at %s", options.logdir, url)
        stop.wait()
        log.info("ended in good order")
    return DONE


class _SocketServer(program.WerkzeugServer):  # type: ignore[misc]
    """TensorBoard's own server on a Unix socket that is for this user alone."""

    def __init__(self, path: Path, wsgi_app: object, flags: object) -> None:
        self._path, self._flags, self._auto_wildcard, self._url = path, flags, False, f"unix:{path}"
        super(program.WerkzeugServer, self).__init__(f"unix://{path}", 0, wsgi_app)

    def server_bind(self) -> None:
        try:
            self.socket.bind(str(self._path))
            self._path.chmod(0o600)
        except OSError as error:
            raise program.TensorBoardServerException(str(error)) from error
        self.server_name, self.server_port = "localhost", 0


def launch(logdir: Path, bind: str, port: int, run: str, socket: Path | None = None) -> str:
    """Start TensorBoard, which serves from threads of its own; returns the URL.

    Args:
        socket: path of a Unix socket to listen on, instead of `bind` and `port`; in a private folder.

    Raises:
        TensorBoardServerException, TensorBoardPortInUseError: it cannot listen there.
    """
    server = partial(_SocketServer, socket) if socket is not None else None
    board = program.TensorBoard(plugins=default.get_static_plugins(), server_class=server)  # no installed plugins
    alone = ip_address(bind).is_loopback
    board.configure(
        logdir=str(logdir),
        host=bind if alone else None,
        bind_all=not alone,
        port=port,
        reload_interval=RELOAD_S,
        load_fast="false",  # the other way starts a program of its own
        window_title=f"{run} - TensorBoard" if run else "TensorBoard",
    )
    url: str = board.launch()
    return url
