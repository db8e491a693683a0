"""An API server as far as the manager asks it: the scale of workloads, by server-side apply."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rlctl_agents.manager.lifecycle.scale_down import Cluster

TOKEN = "a-token"


class ApiServer:
    """Remembers what was asked of it; `answers` are given in turn instead of doing it."""

    def __init__(self) -> None:
        self.replicas: dict[str, int] = {}
        self.asked: list[tuple[str, str, dict[str, list[str]], str]] = []  # method, path, query, content type
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.port = 0

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        where = urlsplit(target)
        self.asked.append((method, where.path, parse_qs(where.query), headers["Content-Type"]))
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {"message": "Unauthorized"}
        if self.answers:
            return self.answers.pop(0)
        workload = "/".join(where.path.split("/")[-3:-1])
        if workload not in self.replicas:
            return 404, {"message": f"{workload} not found"}
        self.replicas[workload] = json.loads(body)["spec"]["replicas"]
        return 200, {"kind": "Scale"}


def account(folder: Path) -> Path:
    """The files of a service account."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "namespace").write_text("team")
    return folder


def cluster(folder: Path) -> Cluster:
    return Cluster("10.0.0.1", 443, "team", account(folder))


@contextmanager
def serving(*workloads: str) -> Iterator[ApiServer]:
    server = ApiServer()
    server.replicas = dict.fromkeys(workloads, 5)

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, value = server.answer("PATCH", self.path, self.headers, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        server.port = http_server.server_address[1]
        thread = threading.Thread(target=http_server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http_server.shutdown()
            thread.join()
