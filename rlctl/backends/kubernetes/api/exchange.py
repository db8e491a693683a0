"""One request and its answer, as their sender sees them; and the meaning of a server's refusal."""

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
    """The server could not be reached, or broke off; what was asked may have happened or not.

    Args:
        message: why.
        status: 403 where it refused a connection because a right is missing.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a server."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    chunks: Iterator[bytes]  # raises NoAnswer when it breaks off
    close: Callable[[], None] = lambda: None

    def body(self) -> bytes:
        try:
            return b"".join(self.chunks)
        finally:
            self.close()


class Connection(Protocol):
    """A way to one namespace of one cluster."""

    context: str
    namespace: str
    server: str

    def send(
        self, method: str, path: str, *, body: bytes | None, content_type: str, read_timeout_s: float
    ) -> Answer:  # fmt: skip
        """One request, once.

        Raises:
            NoAnswer: nothing came back.
        """

    def forward(self, pod: str, port: int) -> AbstractContextManager[socket.socket]:
        """Open a connection to a port of a pod.

        Raises:
            NoAnswer: it cannot be opened.
        """


def refusal(status: int, body: bytes, key: Key | None, where: str) -> ApiError:
    """Error for a server's refusal, in words.

    Args:
        body: a Status object, usually.
        where: the server, and the context of the kubeconfig.

    Raises:
        Expired: that is what it says.
    """
    found: dict[str, Any] = {}
    with suppress(ValueError):
        found = json.loads(body)
    found = found if isinstance(found, dict) else {}
    said, message = str(found.get("reason") or ""), str(found.get("message") or "")
    if status == 410 or said in ("Expired", "Gone"):
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
    return ApiError(message, status=status, said=said, key=key, hint=hint, conflicts=conflicts)


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without their ends, as they come."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    if rest:
        yield rest


def seconds(text: str | None) -> float | None:
    """A Retry-After header; a minute at most."""
    return min(60.0, float(text)) if text and text.isdecimal() else None
