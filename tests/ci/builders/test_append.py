"""One layer of code over an image, through a registry on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlctl.errors import BackendUnreachable, UsageError
from rlctl.image_names import HOSTS, Reference, host
from rlctl.images import append as appending
from rlctl.images.code import BASE_LABEL, CodeArchive, collect
from rlctl.images.registry.client import Registry as Client
from rlctl.images.registry.client import sha256
from tests.ci.oci import Registry, elsewhere, registry

__all__ = ["elsewhere", "registry"]


@pytest.fixture
def code(tmp_path: Path) -> CodeArchive:
    folder = tmp_path / "code"
    (folder / "lights").mkdir(parents=True)
    (folder / "lights" / "guess.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return collect(folder, into=tmp_path / "code.tar")


def made(registry: Registry, base: Reference, code: CodeArchive) -> tuple[Reference, dict[str, Any], dict[str, Any]]:
    source = Client(plain=registry.name)
    image = Reference(registry.name, "team/rlctl-actor", "code-1")
    below = appending.read_base(source, base, "linux/amd64", lambda _: None)
    layer = appending.layer(code, code.archive.with_name("layer.tar.gz"))
    digest = appending.push(appending.append(below, layer, {}), source, image)
    manifest = json.loads(registry.manifests["team/rlctl-actor", digest][0])
    config = json.loads(registry.blobs["team/rlctl-actor", manifest["config"]["digest"]])
    return image.by_digest(digest), manifest, config


def test_the_code_is_one_more_layer_and_everything_below_stays(registry: Registry, code: CodeArchive) -> None:
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
    registry: Registry, code: CodeArchive
) -> None:
    base = registry.image("rlctl/actor", "1")
    first = made(registry, base, code)[0]
    registry.asked.clear()
    assert made(registry, base, code)[0] == first
    assert not [line for line in registry.asked if line.startswith(("POST", "PUT /v2/team/rlctl-actor/blobs"))]


def test_layers_never_pile_up(registry: Registry, code: CodeArchive) -> None:
    base = registry.image("rlctl/actor", "1")
    once, manifest, _ = made(registry, base, code)
    again, second, _ = made(registry, once, code)
    assert (again, second) == (once, manifest)


def test_layers_of_the_base_are_mounted_and_not_sent(registry: Registry, code: CodeArchive) -> None:
    made(registry, registry.image("rlctl/actor", "1"), code)
    assert any("mount=" in line for line in registry.asked)
    sent = [line for line in registry.asked if line.startswith("PUT") and "/blobs/" in line]
    assert len(sent) == 2, "the layer of code and the configuration"


def lying(elsewhere: Registry, content: bytes) -> tuple[Reference, str]:
    """A layer in another registry: the image that it is of, its digest."""
    digest = sha256(content)
    elsewhere.blobs["rlctl/actor", digest] = content
    return Reference(elsewhere.name, "rlctl/actor", "1"), digest


def test_a_layer_comes_from_another_registry_once(registry: Registry, elsewhere: Registry) -> None:
    content = os.urandom(3 << 20)
    base, digest = lying(elsewhere, content)
    to, image = Client(verify=False), Reference(registry.name, "team/rlctl-actor", "1")
    for asked in (1, 0):
        elsewhere.asked.clear()
        to.copy(image, digest, base)
        assert len(elsewhere.asked) == asked
        assert registry.blobs["team/rlctl-actor", digest] == content


def test_a_layer_whose_content_is_another_one_is_not_taken(registry: Registry, elsewhere: Registry) -> None:
    base, digest = lying(elsewhere, b"layer")
    elsewhere.blobs["rlctl/actor", digest] = b"other"
    with pytest.raises(BackendUnreachable, match="another content"):
        Client(verify=False).copy(Reference(registry.name, "team/rlctl-actor", "1"), digest, base)
    assert not registry.blobs


def test_a_registry_that_is_asked_under_another_name_is_written_to_there_as_well(
    registry: Registry, code: CodeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host("docker.io") == "registry-1.docker.io"
    base, real = registry.image("rlctl/actor", "1"), registry.name
    monkeypatch.setitem(HOSTS, "hub.invalid", real)
    registry.name = "hub.invalid"
    image, manifest, _ = made(registry, replace(base, registry="hub.invalid"), code)
    assert image.registry == "hub.invalid"
    assert ("team/rlctl-actor", manifest["layers"][-1]["digest"]) in registry.blobs
    assert Client(plain="hub.invalid").tags(image) == ["code-1"]


@pytest.mark.parametrize("where", ["http://169.254.169.254", "http://registry.invalid", "ftp://127.0.0.1", "file://"])
def test_a_registry_sends_nobody_to_where_nothing_proves_who_answers(elsewhere: Registry, where: str) -> None:
    base, digest = lying(elsewhere, b"{}")
    elsewhere.moved = where
    with pytest.raises(BackendUnreachable, match="307"):
        Client(plain=elsewhere.name).document(base, digest, blob=True)


def test_a_registry_on_loopback_may_name_another_place_there(registry: Registry, elsewhere: Registry) -> None:
    base, digest = lying(elsewhere, b"{}")
    registry.blobs["rlctl/actor", digest] = b"{}"
    elsewhere.moved = f"http://{registry.name}"
    found = Client(plain=elsewhere.name).document(base, digest, blob=True)
    assert found is not None
    assert found[0] == b"{}"
    assert Client(plain=elsewhere.name).has(base, digest)
    assert registry.asked[-1].startswith("HEAD "), "as which the place is signed"


def test_a_base_that_is_not_there_or_for_another_machine_is_named(registry: Registry, code: CodeArchive) -> None:
    source = Client(plain=registry.name)
    with pytest.raises(UsageError, match="there is no"):
        appending.read_base(source, Reference(registry.name, "none", "1"), "linux/amd64", lambda _: None)
    base = registry.image("rlctl/actor", "1")
    index = {"schemaVersion": 2, "manifests": [
        {"digest": base.digest, "platform": {"os": "linux", "architecture": "amd64"}}]}  # fmt: skip
    registry.manifests["rlctl/actor", "all"] = json.dumps(index).encode(), "application/vnd.oci.image.index.v1+json"
    all_ = Reference(registry.name, "rlctl/actor", "all")
    found = appending.read_base(source, all_, "linux/amd64", lambda _: None).reference
    assert found == replace(all_, digest=base.digest), "the next push is to know which tag was meant"
    with pytest.raises(UsageError, match="linux/arm64"):
        appending.read_base(source, all_, "linux/arm64", lambda _: None)


def test_every_file_lies_below_the_folder_of_the_code_whatever_its_name(tmp_path: Path) -> None:
    names = {"ümläut.py", f"{'long' * 20}/{'name' * 30}.py"}
    for name in names:
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).touch()
    layer = appending.layer(collect(tmp_path / "code", into=tmp_path / "code.tar"), tmp_path / "layer")
    with tarfile.open(layer.file) as tar:
        assert {member.name for member in tar if member.isreg()} == {f"code/{name}" for name in names}


def test_code_that_needs_packages_is_not_appended(tmp_path: Path, code: CodeArchive) -> None:
    with pytest.raises(UsageError, match="installs nothing"):
        appending.layer(replace(code, requirements=b"numpy\n"), tmp_path / "layer")


def test_code_is_packed_without_being_held_in_memory(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    with (tmp_path / "code" / "weights").open("wb") as file:
        file.truncate(24 << 20)
    tracemalloc.start()
    try:
        layer = appending.layer(collect(tmp_path / "code", into=tmp_path / "code.tar"), tmp_path / "layer")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert layer.size == (tmp_path / "layer").stat().st_size
    assert peak < 6 << 20
