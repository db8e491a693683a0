"""One layer of code over an image, through a registry on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from rlctl.errors import UsageError
from rlctl.images import append as appending
from rlctl.images.code import BASE_LABEL, Code, collect
from rlctl.images.reference import Reference
from rlctl.images.upload import Uploader, sha256

MANIFEST = "application/vnd.oci.image.manifest.v1+json"


class Registry(ThreadingHTTPServer):
    """The part of the distribution API that is used, in memory; it checks digests as real ones do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.asked: list[str] = []
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

    def _do(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append(f"{self.command} {self.path}")
        repository, kind, name = parts.path.removeprefix("/v2/").rsplit("/", 2)
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if kind == "manifests" and self.command == "PUT":
            for one in [json.loads(body)["config"], *json.loads(body)["layers"]]:
                if (repository, one["digest"]) not in self.server.blobs:
                    return self._say(400, b"a blob is missing")
            for each in (name, sha256(body)):
                self.server.manifests[repository, each] = body, self.headers["content-type"]
            return self._say(201)
        if kind == "manifests":
            found = self.server.manifests.get((repository, name))
            return self._say(404) if found is None else self._say(200, found[0], {"content-type": found[1]})
        if kind == "blobs" and name != "uploads":
            blob = self.server.blobs.get((repository, name))
            return self._say(404) if blob is None else self._say(200, blob)
        repository = repository.removesuffix("/blobs")
        if self.command == "POST":
            blob = self.server.blobs.get((query.get("from", ""), query.get("mount", "")))
            if blob is not None:
                self.server.blobs[repository, query["mount"]] = blob
                return self._say(201)
            return self._say(202, b"", {"location": f"/v2/{repository}/blobs/uploads/1?state=x"})
        if sha256(body) != query["digest"]:
            return self._say(400, b"digest")
        self.server.blobs[repository, query["digest"]] = body
        return self._say(201)

    do_GET = do_HEAD = do_POST = do_PUT = _do

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


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


@pytest.fixture
def code(tmp_path: Path) -> Code:
    (tmp_path / "lights").mkdir()
    (tmp_path / "lights" / "guess.py").write_text("x = 1\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    return collect(tmp_path)


def made(registry: Registry, base: Reference, code: Code) -> tuple[Reference, dict[str, Any], dict[str, Any]]:
    source = Uploader(registry.name, "http")
    image = Reference(registry.name, "team/rlctl-actor", "code-1")
    digest = appending.push(
        appending.append(appending.read_base(source, base, "linux/amd64"), code, {}), source, image, source
    )
    manifest = json.loads(registry.manifests["team/rlctl-actor", digest][0])
    config = json.loads(registry.blobs["team/rlctl-actor", manifest["config"]["digest"]])
    return image.by_digest(digest), manifest, config


def test_the_code_is_one_more_layer_and_everything_below_stays(registry: Registry, code: Code) -> None:
    base = registry.image("rlctl/actor", "1")
    image, manifest, config = made(registry, base, code)
    below = json.loads(registry.manifests["rlctl/actor", base.digest][0])["layers"]
    assert manifest["layers"][:-1] == below
    assert config["config"]["Env"] == ["PATH=/bin", "PYTHONPATH=/code"]
    assert config["config"]["Entrypoint"] == ["python"]
    assert config["config"]["Labels"][BASE_LABEL] == str(base)
    packed = registry.blobs["team/rlctl-actor", manifest["layers"][-1]["digest"]]
    tar = gzip.decompress(packed)
    assert config["rootfs"]["diff_ids"][-1] == f"sha256:{hashlib.sha256(tar).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        files = {member.name: member for member in opened}
    assert sorted(files) == ["code", "code/lights/guess.py", "code/run.sh"]
    assert {(one.uid, one.mtime) for one in files.values()} == {(10001, 0)}
    assert files["code/run.sh"].mode == 0o755
    assert image.digest


def test_the_same_code_over_the_same_base_is_the_same_image_and_is_not_sent_again(
    registry: Registry, code: Code
) -> None:
    base = registry.image("rlctl/actor", "1")
    first = made(registry, base, code)[0]
    registry.asked.clear()
    assert made(registry, base, code)[0] == first
    assert not [line for line in registry.asked if line.startswith(("POST", "PUT /v2/team/rlctl-actor/blobs"))]


def test_layers_never_pile_up(registry: Registry, code: Code) -> None:
    base = registry.image("rlctl/actor", "1")
    once, manifest, _ = made(registry, base, code)
    again, second, _ = made(registry, once, code)
    assert (again, second) == (once, manifest)


def test_layers_of_the_base_are_mounted_and_not_sent(registry: Registry, code: Code) -> None:
    made(registry, registry.image("rlctl/actor", "1"), code)
    assert any("mount=" in line for line in registry.asked)
    sent = [line for line in registry.asked if line.startswith("PUT") and "/blobs/" in line]
    assert len(sent) == 2, "the layer of code and the configuration"


def test_a_base_that_is_not_there_or_for_another_machine_is_named(registry: Registry, code: Code) -> None:
    source = Uploader(registry.name, "http")
    with pytest.raises(UsageError, match="there is no"):
        appending.read_base(source, Reference(registry.name, "none", "1"), "linux/amd64")
    base = registry.image("rlctl/actor", "1")
    index = {"schemaVersion": 2, "manifests": [
        {"digest": base.digest, "platform": {"os": "linux", "architecture": "amd64"}}]}  # fmt: skip
    registry.manifests["rlctl/actor", "all"] = json.dumps(index).encode(), "application/vnd.oci.image.index.v1+json"
    all_ = Reference(registry.name, "rlctl/actor", "all")
    assert appending.read_base(source, all_, "linux/amd64").reference == base
    with pytest.raises(UsageError, match="linux/arm64"):
        appending.read_base(source, all_, "linux/arm64")


def test_code_that_needs_packages_is_not_appended(registry: Registry, code: Code) -> None:
    base = appending.read_base(Uploader(registry.name, "http"), registry.image("rlctl/actor", "1"), "linux/amd64")
    with pytest.raises(UsageError, match="installs nothing"):
        appending.append(base, Code(code.archive, b"numpy\n", 1), {})
