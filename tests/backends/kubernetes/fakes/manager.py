"""The far end of a forwarded port: answers HTTP requests with whatever a function says."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

Handler = Callable[[str, str, Any], tuple[int, Any]]
"""Method, path, decoded body -> status, answer."""


@contextmanager
def serve(handler: Handler) -> Iterator[socket.socket]:
    """A connection; its other end serves one request."""
    near, far = socket.socketpair()
    thread = threading.Thread(target=_one, args=(far, handler), daemon=True)
    thread.start()
    try:
        yield near
    finally:
        near.close()
        thread.join(timeout=60.0)


def _one(far: socket.socket, handler: Handler) -> None:
    with far, suppress(OSError):
        far.settimeout(5.0)
        data = b""
        while b"\r\n\r\n" not in data:
            block = far.recv(65_536)
            if not block:
                return
            data += block
        head, _, body = data.partition(b"\r\n\r\n")
        request, *headers = head.decode().split("\r\n")
        method, path, _ = request.split(" ")
        length = next((int(line.split(":")[1]) for line in headers if line.lower().startswith("content-length")), 0)
        while len(body) < length:
            body += far.recv(65_536)
        status, answer = handler(method, path, json.loads(body) if body else None)
        content = json.dumps(answer).encode()
        far.sendall(
            f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
            f"Connection: close\r\n\r\n".encode()
            + content
        )
