"""HTTP over a Unix socket: to the manager, and as transport of the supervisor's XML-RPC."""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.backends.base import Say
from rlctl.backends.manager_api import LARGEST_ANSWER_BYTES, ask
from rlctl.waiting import Waiting, quiet


class UnixConnection(http.client.HTTPConnection):
    """One connection; every operation on it ends after `timeout_s`.

    Args:
        path: path of the socket.
        timeout_s: timeout of each operation.
        who: the process that listens, for lines about a long wait.
        say: called with such a line every ten seconds until the reply begins.
    """

    def __init__(self, path: Path, timeout_s: float, who: object, say: Say = quiet) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = str(path)
        self._timeout_s = timeout_s
        self._who = who
        self._say = say

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise

    def getresponse(self) -> http.client.HTTPResponse:
        patience = Waiting(self._timeout_s, self._say)
        while (left_s := patience.left_s(self._who)) > 0:
            if select.select([self.sock], [], [], left_s)[0]:
                return super().getresponse()
        raise TimeoutError(f"no answer within {self._timeout_s:g} s")


def request(
    path: Path,
    method: str,
    target: str,
    body: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
    who: str,
    say: Say = quiet,
) -> Any:
    """Send a JSON request over a Unix socket; returns the decoded reply.

    Args:
        path: path of the socket.
        target: path and query of the resource.
        who: the process that listens, for messages: "the manager of run cartpole".
        say: called every ten seconds of the wait.

    Raises:
        BackendUnreachable: nothing listens, timeout, lost connection, 503, or a reply that is too long or not JSON.
        RlctlError: another status of 400 or more, Conflict for 409; the message has the reason.
    """

    def send(method: str, target: str, payload: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = UnixConnection(path, timeout_s, who, say)
        try:
            connection.request(method, target, payload, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(LARGEST_ANSWER_BYTES + 1)
        finally:
            connection.close()

    return ask(who, method, target, body, send, timeout_s)
