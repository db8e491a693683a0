"""Which images a commit may be laid over: what its run uses, and what the owner of the service allows."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from pydantic import ValidationError

from rlctl.errors import BackendUnreachable
from rlctl.image_names import Reference
from rlctl.images.append import read_base
from rlctl.images.code import BASE_LABEL, collect, stage
from rlctl.images.registry import redirects as places
from rlctl.images.registry.client import Registry as Client
from rlctl.images.registry.client import sha256
from rlctl_ci.builders.append import Append
from rlctl_ci.builders.bases import Bases
from rlctl_ci.builders.program import Program, base_of
from rlctl_ci.builders.registry import registry_of
from rlctl_ci.core.build_attempt import Job, Live
from rlctl_ci.core.errors import BuildStopped
from tests.ci.builders.test_builders import job_for
from tests.ci.git.test_repository import job_of
from tests.ci.oci import Registry, elsewhere, registry
from tests.ci.world import here, project, sha

__all__ = ["elsewhere", "registry"]

STRANGE = (
    "169.254.169.254/latest/meta-data", "127.0.0.1:{port}/rlctl/actor",
    "localhost:{port}/rlctl/actor", "127.1:{port}/rlctl/actor",
    "2130706433:{port}/rlctl/actor", "10.0.0.1/rlctl/actor", "192.168.0.1:5000/rlctl/actor", "100.64.0.1/rlctl/actor",
    "registry.example.org/other/actor", "registry.example.org/team-of-others/actor", "registry.example.org/teams/actor",
    "registry.example.org:444/team/actor", "registry.example.org.evil.example/team/actor", "evil.example/team/actor",
    "REGISTRY.example.org/other/actor", "team/actor", "actor", "localhost/team/actor", "docker.io/team/actor",
    "kubernetes.default.svc:443/api/v1", "metadata.google.internal/compute-metadata/v1",
)  # fmt: skip
"""Bases that a stranger may name; the project has registry.example.org/team, and nothing else."""


def a_commit(folder: Path, image: str) -> Path:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "lights.py").write_text("x = 1\n")
    head = "run: pole\nenv: {id: CartPole-v1}\ncode: {path: .}\nstop: {agent_steps: 10}\n"
    (source / "spec.yaml").write_text(f"{head}images: {{actor: {json.dumps(image)}, learner: {json.dumps(image)}}}\n")
    return source


def running(*images: str) -> Any:
    return lambda _: Live(1, {}, images)


@pytest.mark.parametrize("image", STRANGE)
@pytest.mark.parametrize("builder", ["append", "buildah"])
def test_nobody_is_asked_for_a_base_that_a_stranger_names(
    tmp_path: Path, elsewhere: Registry, builder: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_one(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody is asked")

    named = f"{image.format(port=elsewhere.name.rpartition(':')[2])}@sha256:{'0' * 64}"
    job = job_of(tmp_path, sha(1), target="kubernetes", builder=builder, registry="registry.example.org/team")
    program = tmp_path / "bin" / "buildah"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(socket, "create_connection", no_one)
    monkeypatch.setattr(socket, "getaddrinfo", no_one)
    maker = (
        Append(read=here)
        if builder == "append"
        else Program("buildah", tmp_path / "home", environ={"PATH": str(program.parent)}, read=here)
    )
    with pytest.raises(BuildStopped, match="uses no image of") as refusal:
        maker.push(job, maker.make(job, a_commit(tmp_path, named)))
    assert "bases: [" in refusal.value.hint
    assert not elsewhere.asked


def appended(job: Job, source: Path, *images: str) -> list[str]:
    maker = Append(running(*images), here)
    return [one.base for one in maker.push(job, maker.make(job, source))]


def test_a_base_of_the_run_is_taken_also_when_a_push_has_replaced_it(tmp_path: Path, registry: Registry) -> None:
    base = str(registry.image("public/actor", "1"))
    newer = str(registry.image("public/actor", "2", User="1"))
    job = job_for(tmp_path, registry, bases=[])
    maker = Append(running(base), here)
    made = maker.push(job, maker.make(job, a_commit(tmp_path, base)))
    assert {one.base for one in made} == {base}
    now = [one.reference for one in made]
    assert set(appended(job, a_commit(tmp_path, newer), *now)) == {newer}
    with pytest.raises(BuildStopped, match="uses no image of"):
        appended(job, a_commit(tmp_path, str(registry.image("public/other", "1"))), *now)


@pytest.mark.parametrize("how", ["bases", "sets"])
def test_the_owner_of_the_service_allows_more(tmp_path: Path, registry: Registry, how: str) -> None:
    base = str(registry.image("public/actor", "1"))
    said = {"bases": [f"{registry.name}/public"]} if how == "bases" else {"bases": [], "sets": [f"images.actor={base}"]}
    assert set(appended(job_for(tmp_path, registry, **said), a_commit(tmp_path, base))) == {base}


@pytest.mark.parametrize("name", ["python", "ghcr.io/team:1", "https://ghcr.io", "ghcr.io/../x", "", "a b", "ghcr.io/"])
def test_what_is_allowed_is_a_registry_and_the_beginning_of_repositories(name: str) -> None:
    with pytest.raises(ValidationError, match="without a tag"):
        project(bases=[name])
    assert project(bases=["ghcr.io", "127.0.0.1:5000/team"]).bases


def test_a_base_that_says_it_lies_over_something_else_leads_nowhere(
    tmp_path: Path, registry: Registry, elsewhere: Registry
) -> None:
    below = elsewhere.image("rlctl/actor", "1")
    base = registry.image("rlctl/actor", "1", Labels={BASE_LABEL: str(below)})
    with pytest.raises(BuildStopped, match="uses no image of"):
        appended(job_for(tmp_path, registry), a_commit(tmp_path, str(base)))
    assert not elsewhere.asked


def test_what_a_base_lies_over_is_asked_of_the_registry_that_has_it(registry: Registry, elsewhere: Registry) -> None:
    below = elsewhere.image("rlctl/actor", "1")
    base = registry.image("rlctl/actor", "1", Labels={BASE_LABEL: str(below)})
    found = read_base(Client(verify=False), base, "linux/amd64", lambda _: None)
    assert found.reference == below


def test_a_manifest_whose_digests_are_paths_is_no_base(tmp_path: Path, registry: Registry) -> None:
    base = registry.image("rlctl/actor", "1")
    manifest = json.loads(registry.manifests["rlctl/actor", "1"][0])
    manifest["layers"][0]["digest"] = "../../team/rlctl-actor/blobs/sha256:0"
    raw = json.dumps(manifest).encode()
    registry.manifests["rlctl/actor", sha256(raw)] = raw, registry.manifests["rlctl/actor", "1"][1]
    with pytest.raises(BuildStopped, match="which is no digest"):
        appended(job_for(tmp_path, registry), a_commit(tmp_path, str(base.by_digest(sha256(raw)))))


def test_a_run_that_does_not_run_allows_nothing(registry: Registry) -> None:
    about = project(target="kubernetes", registry=f"{registry.name}/team", plain_http=True)
    with pytest.raises(BuildStopped):
        Bases(about, tuple).check(Reference.parse("ghcr.io/rlctl/actor:1"))
    Bases(about, tuple).check(Reference.parse(f"{registry.name}/team/rlctl-actor:1"))


def login(folder: Path, registry: str) -> Path:
    file = folder / "auth.json"
    file.write_text(json.dumps({"auths": {registry: {"auth": base64.b64encode(b"me:secret").decode()}}}))
    return file


def test_a_login_is_told_to_its_own_registry_alone(tmp_path: Path, registry: Registry, elsewhere: Registry) -> None:
    registry.locked = True
    base, auth = registry.image("rlctl/actor", "1"), login(tmp_path, registry.name)
    about = project(target="kubernetes", registry=f"{registry.name}/team", plain_http=True, registry_auth=auth)
    assert registry_of(about).document(base) is not None
    assert any(registry.told)
    elsewhere.locked = True
    for registries in (
        registry_of(about),
        Client(plain=elsewhere.name, credentials=lambda name: _known(auth, name)),
    ):
        with pytest.raises(BackendUnreachable):
            registries.document(elsewhere.image("rlctl/actor", "1"))
    assert not any(elsewhere.told)


def _known(auth: Path, registry: str) -> tuple[str, str] | None:
    return ("me", "secret") if registry in json.loads(auth.read_text())["auths"] else None


def test_where_a_blob_is_said_to_lie_nobody_is_told_who_asks(registry: Registry, elsewhere: Registry) -> None:
    registry.locked = True
    base = registry.image("rlctl/actor", "1")
    content = b"{}"
    registry.blobs["rlctl/actor", sha256(content)] = elsewhere.blobs["rlctl/actor", sha256(content)] = content
    registry.moved = f"http://{elsewhere.name}"
    known = Client(plain=registry.name, credentials=lambda _: ("me", "secret"))
    assert known.document(base, sha256(content), blob=True) is not None
    assert elsewhere.told == [""]


@pytest.mark.parametrize(
    ("address", "far"),
    [
        ("127.0.0.1", places.HERE), ("::1", places.HERE), ("::ffff:127.0.0.1", places.HERE), ("127.9.9.9", places.HERE),
        ("10.0.0.1", places.NEAR), ("172.31.0.1", places.NEAR), ("192.168.1.1", places.NEAR), ("fd00::1", places.NEAR),
        ("100.64.0.1", places.NEAR), ("::ffff:10.0.0.1", places.NEAR), ("64:ff9b::a00:1", places.NEAR),
        ("169.254.169.254", places.NOWHERE), ("fe80::1%eth0", places.NOWHERE), ("0.0.0.0", places.NOWHERE),
        ("::", places.NOWHERE), ("::ffff:169.254.169.254", places.NOWHERE), ("64:ff9b::a9fe:a9fe", places.NOWHERE),
        ("224.0.0.1", places.NOWHERE), ("255.255.255.255", places.NOWHERE),
        ("8.8.8.8", places.FAR), ("2606:4700::1111", places.FAR), ("64:ff9b::808:808", places.FAR),
    ],
)  # fmt: skip
def test_how_far_an_address_is(address: str, far: int) -> None:
    assert places.distance(address) == far


@pytest.mark.parametrize(
    ("registry", "names", "may"),
    [
        ("8.8.8.8", "8.8.4.4", True), ("8.8.8.8", "10.0.0.1", False), ("8.8.8.8", "127.0.0.1", False),
        ("8.8.8.8", "169.254.169.254", False),
        ("10.0.0.1", "10.0.0.2", True), ("10.0.0.1", "8.8.8.8", True), ("10.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "169.254.169.254", False), ("127.0.0.1", "127.0.0.1", True),
        ("8.8.8.8", "::ffff:10.0.0.1", False),
    ],
)  # fmt: skip
def test_a_registry_sends_nobody_nearer_than_it_is_itself(
    registry: str, names: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The realm of a challenge, which is asked with the login of the registry."""
    asked: list[str] = []

    def found(host: str, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (names if host == "token.example.org" else registry, 443))]

    def connected(address: tuple[str, int], *_: Any) -> socket.socket:
        asked.append(address[0])
        raise OSError("far enough")

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(socket, "create_connection", connected)
    image = Reference("registry.example.org", "team/actor", "1")
    with pytest.raises(URLError, match="far enough" if may else "nearer to us"):
        Client()._authorise(image, 'Bearer realm="https://token.example.org/token"', "x", "https")
    assert asked == ([names] if may else [])


@pytest.mark.parametrize(
    ("names", "asked", "says"),
    [
        (["8.8.4.4", "8.8.4.5"], ["8.8.4.4", "8.8.4.5"], "no answer of 8.8.4.5"),
        (["8.8.4.4", "10.0.0.1"], [], "10.0.0.1: nearer to us"),
    ],
)
def test_a_redirect_tries_each_address_of_a_name_once_none_is_too_near(
    names: list[str], asked: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def found(host: str, *_: Any, **__: Any) -> list[Any]:
        known = names if host == "blobs.example.org" else ["8.8.8.8"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 443)) for address in known]

    def connected(address: tuple[str, int], *_: Any) -> socket.socket:
        tried.append(address[0])
        raise OSError(f"no answer of {address[0]}")

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(socket, "create_connection", connected)
    with pytest.raises(URLError, match=says):
        places.opener("registry.example.org", places.certificates()).open("https://blobs.example.org/layer")
    assert tried == asked


@pytest.mark.parametrize("realm", ["http://token.example.org/", "file:///etc/passwd", "ftp://x/", "", "token", "//x/"])
def test_a_login_goes_nowhere_that_proves_nothing(realm: str) -> None:
    image = Reference("registry.example.org", "team/actor", "1")
    with pytest.raises(ValueError, match="proves who it is"):
        Client()._authorise(image, f'Bearer realm="{realm}"', "x", "https")


def test_a_base_that_is_named_by_tag_holds_until_the_spec_names_another(tmp_path: Path, registry: Registry) -> None:
    first, tag = registry.image("public/actor", "1"), f"{registry.name}/public/actor:1"
    job, source = job_for(tmp_path, registry, bases=[]), a_commit(tmp_path, tag)
    recorded = f"{tag}@{first.digest}"  # as a person's `up` has it
    maker = Append(running(recorded))
    made = maker.push(job, maker.make(job, source))
    assert {one.base for one in made} == {recorded}
    now = [one.reference for one in made]
    moved = registry.image("public/actor", "1", User="1")
    assert set(appended(job, source, *now)) == {recorded}
    assert set(appended(job, source, str(moved))) == {f"{tag}@{moved.digest}"}, "what runs was not named by this tag"
    second = registry.image("public/actor", "2", User="2")
    other = a_commit(tmp_path, f"{registry.name}/public/actor:2")
    assert set(appended(job, other, *now)) == {f"{registry.name}/public/actor:2@{second.digest}"}


def test_a_builder_lays_code_over_the_digest_that_the_run_has_of_a_tag(registry: Registry) -> None:
    about = project(target="kubernetes", registry=f"{registry.name}/team", plain_http=True)
    first, tag = registry.image("public/actor", "1"), f"{registry.name}/public/actor:1"
    recorded = f"{tag}@{first.digest}"
    moved = registry.image("public/actor", "1", User="1")
    assert base_of(about, Bases(about, lambda: [recorded]), tag) == recorded
    newer = Bases(about, lambda: [f"{registry.name}/public/actor:0@{first.digest}"])
    assert base_of(about, newer, tag) == f"{tag}@{moved.digest}"
    assert base_of(about, newer, None) is None
    with pytest.raises(BuildStopped, match="there is no"):
        base_of(about, newer, f"{registry.name}/public/actor:9")
    with pytest.raises(BuildStopped, match="uses no image of"):
        base_of(about, Bases(about, tuple), tag)


def test_a_builder_is_given_a_digest_alone_and_the_image_remembers_the_tag(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    code = collect(tmp_path / "code", into=tmp_path / "code.tar")
    base = f"registry.example.org/team/actor:1.0@sha256:{'0' * 64}"
    text = stage(code, base, tmp_path).read_text()
    assert f"FROM registry.example.org/team/actor@sha256:{'0' * 64}\n" in text
    assert f'LABEL {BASE_LABEL}="{base}"\n' in text
