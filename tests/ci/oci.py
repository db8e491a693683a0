"""A registry of images on loopback, in memory."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rlctl.image_names import Reference
from rlctl.images.registry.client import sha256

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(ThreadingHTTPServer):
    """The part of the distribution API that is used, in memory; it checks digests as real ones do.

    Attributes:
        asked: method and path of every request.
        told: credentials of each of them.
        moved: an address that blobs are said to lie at.
        locked: requests without credentials are refused.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.uploads: dict[str, bytes] = {}
        self.numbers = itertools.count()
        self.asked: list[str] = []
        self.told: list[str] = []
        self.moved = ""
        self.locked = False
        self.name = f"127.0.0.1:{self.server_address[1]}"

    def image(self, repository: str, tag: str, **config: Any) -> Reference:
        """An image of one layer."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            tar.addfile(tarfile.TarInfo("base"))
        packed = gzip.compress(raw.getvalue(), mtime=0)
        about = {
            "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [sha256(raw.getvalue())]},
            "config": {"Env": ["PATH=/bin"], "Entrypoint": ["python"], **config},
            "history": [{"created_by": "base"}],
        }  # fmt: skip
        text = json.dumps(about).encode()
        for content in (packed, text):
            self.blobs[repository, sha256(content)] = content
        kinds = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
        told = [
            {"mediaType": kind, "digest": sha256(content), "size": len(content)}
            for kind, content in zip(kinds, (text, packed), strict=True)
        ]
        whole = {"schemaVersion": 2, "mediaType": MANIFEST, "config": told[0], "layers": told[1:]}
        manifest = json.dumps(whole).encode()
        for name in (tag, sha256(manifest)):
            self.manifests[repository, name] = manifest, MANIFEST
        return Reference(self.name, repository, digest=sha256(manifest))


class Handler(BaseHTTPRequestHandler):
    server: Registry
    wbufsize = -1  # an answer in one packet: in two, the second waits for 40 ms

    def _do(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.told.append(self.headers.get("authorization", ""))
        body = self._body()
        if self.server.locked and not self.server.told[-1]:
            return self._say(401, b"", {"www-authenticate": 'Basic realm="x"'})
        if parts.path == "/v2/":
            return self._say(200)
        repository, kind, name = parts.path.removeprefix("/v2/").rsplit("/", 2)
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if kind == "tags":
            return self._tags(repository, query)
        if kind == "manifests" and self.command == "DELETE":
            gone, _ = self.server.manifests.get((repository, name), (b"", ""))
            self.server.manifests = {
                key: one for key, one in self.server.manifests.items() if key[0] != repository or one[0] != gone
            }
            return self._say(202 if gone else 404)
        if kind == "manifests" and self.command == "PUT":
            for one in [json.loads(body)["config"], *json.loads(body)["layers"]]:
                if (repository, one["digest"]) not in self.server.blobs:
                    return self._say(400, b"a blob is missing")
            for each in (name, sha256(body)):
                self.server.manifests[repository, each] = body, self.headers["content-type"]
            return self._say(201)
        if kind == "manifests":
            found = self.server.manifests.get((repository, name))
            if found is None:
                return self._say(404)
            return self._say(200, found[0], {"content-type": found[1], "docker-content-digest": sha256(found[0])})
        if kind == "blobs":
            blob = self.server.blobs.get((repository, name))
            if blob is not None and self.server.moved and self.command in ("GET", "HEAD"):
                return self._say(307, b"", {"location": f"{self.server.moved}{self.path}"})
            return self._say(404) if blob is None else self._say(200, blob)
        repository = repository.removesuffix("/blobs")
        if self.command == "POST":
            blob = self.server.blobs.get((query.get("from", ""), query.get("mount", "")))
            if blob is not None:
                self.server.blobs[repository, query["mount"]] = blob
                return self._say(201)
            name = str(next(self.server.numbers))
        self.server.uploads[name] = self.server.uploads.get(name, b"") + body
        if self.command != "PUT":
            last = max(0, len(self.server.uploads[name]) - 1)
            where = f"/v2/{repository}/blobs/uploads/{name}?state=x"
            return self._say(202, b"", {"location": where, "range": f"0-{last}"})
        whole = self.server.uploads.pop(name)
        if sha256(whole) != query["digest"]:
            return self._say(400, b"digest")
        self.server.blobs[repository, query["digest"]] = whole
        return self._say(201)

    do_GET = do_HEAD = do_POST = do_PATCH = do_PUT = do_DELETE = _do

    def _tags(self, repository: str, query: dict[str, str]) -> None:
        """Two a page, whatever is asked for."""
        tags = sorted(
            name for where, name in self.server.manifests if where == repository and not name.startswith("sha256:")
        )
        rest = [tag for tag in tags if tag > query.get("last", "")]
        more = {"link": f'</v2/{repository}/tags/list?n=2&last={rest[1]}>; rel="next"'} if len(rest) > 2 else {}
        self._say(200, json.dumps({"name": repository, "tags": rest[:2]}).encode(), more)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found

    def _say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening() -> Iterator[Registry]:
    found = Registry()
    thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with listening() as found:
        yield found


@pytest.fixture
def elsewhere() -> Iterator[Registry]:
    """Another one."""
    with listening() as found:
        yield found
