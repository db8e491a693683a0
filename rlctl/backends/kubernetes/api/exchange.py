"""One request and its reply at the level of HTTP, and the meaning of a server's refusal."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from rlctl.backends.kubernetes.api.interface import ApiError, Expired, FieldConflict, Key

_OWNER: Final = re.compile(r'conflict with "([^"]*)"')


class NoAnswer(Exception):
    """The server could not be reached, or the connection broke; the request may have been executed or not.

    Args:
        message: reason.
        status: 403 if a connection was refused because a right is missing.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """Reply of a server."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    chunks: Iterator[bytes]  # raises NoAnswer when the connection breaks
    close: Callable[[], None] = lambda: None

    def body(self) -> bytes:
        try:
            return b"".join(self.chunks)
        finally:
            self.close()


class Connection(Protocol):
    """Connection to one namespace of one cluster."""

    context: str
    namespace: str
    server: str

    def send(
        self, method: str, path: str, *, body: bytes | None, content_type: str, read_timeout_s: float
    ) -> Answer:  # fmt: skip
        """Send a request, without retries.

        Raises:
            NoAnswer: there was no reply.
        """

    def forward(self, pod: str, port: int) -> AbstractContextManager[socket.socket]:
        """Open a connection to a port of a pod.

        Raises:
            NoAnswer: it cannot be opened.
        """


def refusal(status: int, body: bytes, key: Key | None, where: str) -> ApiError:
    """Error for a server's refusal.

    Args:
        body: body of the reply, usually a Status object.
        where: the server, and the context of the kubeconfig, for messages.

    Raises:
        Expired: the reply says so (410).
    """
    found: dict[str, Any] = {}
    with suppress(ValueError):
        found = json.loads(body)
    found = found if isinstance(found, dict) else {}
    message = str(found.get("message") or "")
    if status == 410 or found.get("reason") in ("Expired", "Gone"):
        raise Expired(message)
    message = message or f"HTTP {status} {body[:200].decode('utf-8', 'replace').strip()}".strip()
    if message.startswith("failed to create typed patch object"):
        status = 400  # the server says 500, and would say it again: kubernetes/kubernetes#139253
    hint = ""
    if status == 401:
        message = f"{where} does not accept your credentials: {message}"
        hint = "They have expired, or are wrong: kubectl auth whoami"
    causes = (found.get("details") or {}).get("causes") or []
    conflicts = tuple(
        FieldConflict(
            str(cause.get("field", "?")), owner[1] if (owner := _OWNER.search(cause.get("message", ""))) else "?"
        )
        for cause in causes
        if cause.get("reason") == "FieldManagerConflict"
    )
    return ApiError(message, status=status, key=key, hint=hint, conflicts=conflicts)


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends, as they arrive."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def seconds(text: str | None) -> float | None:
    """Seconds of a Retry-After header, at most 60; None without one."""
    return min(60.0, float(text)) if text and text.isdecimal() else None
