"""The API server in memory over HTTP, so that the official client, and kubectl, can be held against it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from rlctl.backends.kubernetes.api.interface import KINDS, ApiError, Expired, Key, Object
from tests.backends.kubernetes.fakes.api import FakeApi

_PLURALS: Final = {(kind.api_version, kind.plural): kind for kind in KINDS.values()}


class Server(ThreadingHTTPServer):
    """Keeps every request: method, path, query, content type, decoded body."""

    daemon_threads = True

    def __init__(self, api: FakeApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api
        self.said: list[tuple[str, str, dict[str, str], str, Any]] = []
        self.headers_said: list[dict[str, str]] = []
        self.planned: list[tuple[int, dict[str, str], Object]] = []  # answers that come before all others

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


@contextmanager
def serving(api: FakeApi) -> Iterator[Server]:
    server = Server(api)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the client
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        self.server.said.append((self.command, parts.path, query, self.headers.get("Content-Type", ""), body))
        self.server.headers_said.append({name.lower(): value for name, value in self.headers.items()})
        if self.server.planned:
            status, headers, answer = self.server.planned.pop(0)
            self._answer(status, answer, headers)
            return
        try:
            self._route(parts.path, query, body)
        except ApiError as error:
            self._answer(error.status, _status(error))
        except Expired as error:
            self._answer(410, {"kind": "Status", "reason": "Expired", "code": 410, "message": str(error)})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _route(self, path: str, query: dict[str, str], body: Any) -> None:
        api = self.server.api
        if path == "/version":
            self._answer(200, {"gitVersion": api.version()})
            return
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            self._answer(201, {"status": {"allowed": api.may(asked["verb"], asked["resource"])}})
            return
        if "/namespaces/" not in path:
            self._answer(200, api.raw(path))
            return
        version, _, rest = path.partition("/namespaces/")
        _, plural, *named = rest.split("/")
        kind = _PLURALS[version.removeprefix("/apis/").removeprefix("/api/"), plural]
        key = Key(kind.kind, named[0] if named else "")
        if named[1:] == ["portforward"]:
            refused = api.refuse("FORWARD", key)
            raise refused or ApiError("pods are not forwarded here", status=404, key=key)
        if named[1:] == ["log"]:
            self._text("first\nsecond\n")
        elif query.get("watch"):
            self._watch(key.kind, query)
        elif self.command == "GET" and not named:
            page = api.list(
                key.kind, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", "")
            )  # fmt: skip
            self._list(page.items, page.resource_version, query)
        elif self.command == "DELETE":
            uid = ((body or {}).get("preconditions") or {}).get("uid")
            live = api.get(key)
            if live is None:
                raise ApiError(f"{plural} {key.name} not found", status=404, key=key)
            if not api.delete(key, uid=uid, propagation=(body or {}).get("propagationPolicy", "Background")):
                raise ApiError("Precondition failed: UID in precondition", status=409, key=key)
            self._answer(200, {"kind": "Status", "status": "Success"})
        else:
            self._answer(*self._one(key, query, body))

    def _one(self, key: Key, query: dict[str, str], body: Any) -> tuple[int, Object]:
        api = self.server.api
        manager = query.get("fieldManager", "")
        if self.command == "GET":
            found = api.get(key)
            if found is None:
                raise ApiError(f"{key} not found", status=404, key=key)
            return 200, found
        if self.command == "POST":
            return 201, api.create(body)
        if self.command == "PUT":
            return 200, api.replace(body)
        assert self.headers.get("Content-Type") == "application/apply-patch+yaml"
        uid = body["metadata"].pop("uid", None)
        found = api.apply(
            body, manager=manager, force=query.get("force") == "true", dry_run=query.get("dryRun") == "All", uid=uid
        )
        return 200, found

    def _list(self, items: list[Object], version: str, query: dict[str, str]) -> None:
        """In pages, when they are asked for and it is no list from the cache."""
        start = int(query.get("continue") or 0)
        limit = int(query.get("limit") or 0)
        whole = not limit or query.get("resourceVersion") == "0"
        end = len(items) if whole else min(len(items), start + limit)
        metadata: Object = {"resourceVersion": version}
        if end < len(items):
            metadata |= {"continue": str(end), "remainingItemCount": len(items) - end}
        bare = [{name: value for name, value in item.items() if name not in ("kind", "apiVersion")} for item in items]
        self._answer(200, {"metadata": metadata, "items": bare[start:end]})

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        events = self.server.api.watch(
            kind, labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""),
            resource_version=query["resourceVersion"], timeout_s=float(query["timeoutSeconds"]),
        )  # fmt: skip
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            try:
                for event in events:
                    self._chunk(json.dumps({"type": event.what, "object": event.object}) + "\n")
            except Expired as error:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": str(error)}
                self._chunk(json.dumps({"type": "ERROR", "object": gone}) + "\n")
            self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _text(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


_REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}


def _status(error: ApiError) -> Object:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "field": each.field,
            "message": f'conflict with "{each.owner}" using apps/v1',
        }
        for each in error.conflicts
    ]
    return {
        "kind": "Status", "status": "Failure", "code": error.status, "message": error.message,
        "reason": _REASONS.get(error.status, ""), "details": {"causes": causes},
    }  # fmt: skip


def kubeconfig(server: str, namespace: str = "rl") -> str:
    """A kubeconfig with one context, `fake`."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "here", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": {"token": "secret-token"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "here", "user": "me", "namespace": namespace}}],
        }
    )
