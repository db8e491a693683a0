from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cli.conftest import rlctl
from tests.images.fakes import FakeRegistry

__all__ = ["registry", "rlctl"]


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    fake = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = fake.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.host = f"127.0.0.1:{server.server_port}"
        yield fake
        server.shutdown()
        thread.join()
