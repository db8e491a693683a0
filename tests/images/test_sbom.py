"""The list of packages: what a build writes down, and what lies beside an image in a registry."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import tracemalloc
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import referencing
from jsonschema import Draft7Validator
from referencing.jsonschema import DRAFT7

from rlctl.image_names import Reference
from rlctl.images.make import BuildOptions, ImageMaker
from rlctl.images.registry import referrers
from rlctl.images.registry.client import Registry as Client
from rlctl.images.registry.client import sha256
from rlctl.images.sbom import FILE, document, main, of_image
from rlctl_ci.builders.append import Append
from rlctl_ci.config.settings import Config
from rlctl_ci.core.cleaning import UnusedArtifact, remove
from rlctl_ci.store.database import Database
from rlctl_ci.store.reading import Reading
from tests.ci.builders.test_builders import job_for
from tests.ci.oci import Registry, elsewhere, registry

__all__ = ["elsewhere", "registry"]
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u14
Description: GNU C Library
 of many lines

Package: gone
Status: deinstall ok config-files
Version: 1
"""
LISTED = document([])


def root(folder: Path) -> Path:
    """A file system with a package of each kind."""
    for name, text in {
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS,
        "var/lib/dpkg/status.d/tzdata": "Package: tzdata\nVersion: 2026c\nArchitecture: all\n",
        "opt/venv/lib/python3.11/site-packages/Foo_Bar-1.0+cpu.dist-info/METADATA": "Name: Foo_Bar\nVersion: 1.0+cpu\n",
        "usr/lib/python3/dist-packages/apt-2.6.egg-info/PKG-INFO": "Name: apt\nVersion: 2.6\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def with_list(registry: Registry, repository: str, listed: Any = LISTED, spoil: bytes = b"") -> Reference:
    """An image with a list in its last layer, and next to nothing else."""
    base = registry.image(
        repository, "1", Labels={referrers.BASE_NAME: "python:3", "org.opencontainers.image.version": "7"}
    )
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        content = json.dumps(listed).encode()
        member = tarfile.TarInfo(FILE)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    packed = spoil or gzip.compress(raw.getvalue(), mtime=0)
    registry.blobs[repository, sha256(packed)] = packed
    whole = json.loads(registry.manifests[repository, base.digest][0])
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    whole["layers"].append({"mediaType": kind, "digest": sha256(packed), "size": len(packed)})
    manifest = json.dumps(whole).encode()
    for name in ("1", sha256(manifest)):
        registry.manifests[repository, name] = manifest, whole["mediaType"]
    return Reference(registry.name, repository, digest=sha256(manifest))


def sparse(size: int) -> bytes:
    """A layer of some hundred bytes with a list that says it is so long, most of it holes."""
    raw, listed = io.BytesIO(), json.dumps(LISTED).encode()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(FILE)
        member.size = len(listed)
        member.pax_headers = {
            "GNU.sparse.map": f"0,{len(listed)},{size},0", "GNU.sparse.size": str(size), "GNU.sparse.numblocks": "2",
            "GNU.sparse.name": FILE,
        }  # fmt: skip
        tar.addfile(member, io.BytesIO(listed))
    return gzip.compress(raw.getvalue(), mtime=0)


def faults(content: dict[str, Any]) -> list[str]:
    """Faults by the published schema of CycloneDX 1.6, with the two that it refers to."""
    folder = Path(str(resources.files("cyclonedx.schema") / "_res"))
    schemas = [
        json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text()) for name in ("bom-1.6", "spdx", "jsf-0.82")
    ]
    known = referencing.Registry().with_resources((one["$id"], DRAFT7.create_resource(one)) for one in schemas)
    return [error.message for error in Draft7Validator(schemas[0], registry=known).iter_errors(content)]


def artifact(registry: Registry, where: Reference) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and content."""
    manifest = json.loads(registry.manifests[where.repository, where.tag][0])
    return manifest, json.loads(registry.blobs[where.repository, manifest["layers"][0]["digest"]])


def test_packages_of_python_and_of_the_base_are_listed_with_their_addresses(tmp_path: Path) -> None:
    made = document(of_image(root(tmp_path), []))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert {one.get("purl", one["bom-ref"]) for one in made["components"]} == {
        "operating-system:debian@12",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12",
        "pkg:deb/debian/tzdata@2026c?arch=all&distro=debian-12",
        "pkg:pypi/foo-bar@1.0%2Bcpu",
        "pkg:pypi/apt@2.6",
    }


def test_what_runs_here_is_listed_and_the_same_twice(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main([str(tmp_path / name)]) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    content = json.loads((tmp_path / "one").read_text())
    assert faults(content) == []
    assert faults({**content, "specVersion": 1})
    names = {one["name"].lower() for one in content["components"]}
    assert {"python", "numpy", "pytest"} <= names


def test_the_list_lies_beside_the_image_and_refers_to_it(registry: Registry) -> None:
    image = with_list(registry, "rlctl/core", document(of_image(Path("/nowhere"), [])))
    where = referrers.sbom(Client(plain=registry.name), Reference(registry.name, "rlctl/core", "1"), image.digest)
    assert where == Reference(registry.name, "rlctl/core", "1.sbom")
    manifest, content = artifact(registry, where)
    assert manifest["subject"]["digest"] == image.digest
    assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == "application/vnd.cyclonedx+json"
    assert faults(content) == []
    assert content["metadata"]["component"]["version"] == image.digest
    assert {"name": referrers.BASE_NAME, "value": "python:3"} in content["metadata"]["component"]["properties"]
    assert ("rlctl", "7") in {(one["name"], one["version"]) for one in content["components"]}


@pytest.mark.parametrize(
    ("listed", "spoil"),
    [({"components": 1}, b""), ([], b""), (LISTED, b"no gzip"), (LISTED, gzip.compress(bytes(64 << 20)))],
    ids=["no list", "no object", "no layer", "a bomb"],
)
def test_an_image_with_something_else_in_its_layers_has_no_list(registry: Registry, listed: Any, spoil: bytes) -> None:
    image = with_list(registry, "rlctl/core", listed, spoil)
    to = Client(plain=registry.name)
    assert referrers.sbom(to, Reference(registry.name, "rlctl/core", "1"), image.digest) is None
    assert ("rlctl/core", "1.sbom") not in registry.manifests


def test_images_of_a_commit_have_the_list_of_their_base_and_take_it_with_them(
    tmp_path: Path, registry: Registry
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "lights.py").write_text("x = 1\n")
    images = ", ".join(f"{name}: {with_list(registry, f'rlctl/{name}')}" for name in ("actor", "learner"))
    (source / "spec.yaml").write_text(
        f"run: pole\nenv: {{id: CartPole-v1}}\ncode: {{path: .}}\nstop: {{agent_steps: 10}}\nimages: {{{images}}}\n"
    )
    job = job_for(tmp_path, registry)
    made = Append().push(job, Append().make(job, source))
    for one in made:
        image = Reference.parse(one.reference)
        beside_it = [name for repository, name in registry.manifests if repository == image.repository]
        (listed,) = [name for name in beside_it if name.endswith(".sbom")]
        manifest, _ = artifact(registry, Reference(image.registry, image.repository, listed))
        assert manifest["subject"]["digest"] == image.digest
    config = Config.model_construct(projects={"pole": job.project})
    unused = [UnusedArtifact("pole", one.reference, 1) for one in made]
    remove(config, Reading(Database(tmp_path / "ci.db")), unused, tmp_path, listed=0.0)
    assert not [name for repository, name in registry.manifests if repository.startswith("team/")]


def test_a_list_with_holes_is_not_read_to_its_end(registry: Registry) -> None:
    size = 256 << 20
    image = with_list(registry, "rlctl/core", spoil=sparse(size))
    tracemalloc.start()
    try:
        referrers.sbom(Client(plain=registry.name), Reference(registry.name, "rlctl/core", "1"), image.digest)
        assert tracemalloc.get_traced_memory()[1] < size / 2
    finally:
        tracemalloc.stop()


def test_a_push_goes_on_without_a_registry_that_takes_the_list(tmp_path: Path) -> None:
    said: list[str] = []
    unused: Any = None
    maker = ImageMaker(unused, Client(), BuildOptions("127.0.0.1:1"), tmp_path, True, said.append)
    assert maker._listed(Reference("127.0.0.1:1", "rlctl-core", "1"), "sha256:" + "0" * 64) == ""
    assert "no SBOM beside 127.0.0.1:1/rlctl-core:1" in said[0]
