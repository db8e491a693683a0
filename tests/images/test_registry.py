"""Requests to a registry, over real HTTP on this machine."""

import base64
import hashlib
from pathlib import Path

import pytest

from rlctl.errors import BackendUnreachable
from rlctl.image_names import Reference
from rlctl.images.registry.client import Manifest, Registry
from rlctl.images.registry.logins import logins, passwords
from tests.images.fakes import CONFIG_DIGEST, DIGEST, LABELS, FakeRegistry, encoded


def image(registry: FakeRegistry, name: str = "team/rlctl-actor:1.0") -> Reference:
    return Reference.parse(f"{registry.host}/{name}")


INSECURE = Registry(verify=False)


def known() -> Registry:
    return Registry(verify=False, credentials=lambda _: ("me", "secret"))


def test_a_manifest_tells_digest_and_size(registry: FakeRegistry) -> None:
    manifest = INSECURE.manifest(image(registry))
    assert manifest is not None
    assert (manifest.digest, manifest.size, manifest.config) == (DIGEST, 111, CONFIG_DIGEST)
    assert INSECURE.manifest(image(registry).by_digest(DIGEST)) == manifest


def test_labels_come_from_the_configuration(registry: FakeRegistry) -> None:
    manifest = INSECURE.manifest(image(registry))
    assert manifest is not None
    assert INSECURE.labels(image(registry), manifest) == LABELS


def test_the_list_of_an_image_for_several_machines_has_no_labels(registry: FakeRegistry) -> None:
    assert INSECURE.labels(image(registry), Manifest(DIGEST)) == {}


def test_a_label_of_such_a_list_is_that_of_the_first_image_that_has_it(registry: FakeRegistry) -> None:
    plain = encoded({"config": {"digest": "sha256:" + "3" * 64}, "layers": []})
    digest = "sha256:" + hashlib.sha256(plain).hexdigest()
    path = "/v2/team/rlctl-actor"
    registry.images[f"{path}/manifests/{digest}"] = plain
    registry.images[f"{path}/manifests/list"] = encoded({"manifests": [{"digest": digest}, {"digest": DIGEST}]})
    registry.images[f"{path}/manifests/plain"] = encoded({"manifests": [{"digest": digest}]})
    (name, value), *_ = LABELS.items()
    assert INSECURE.label(image(registry, "team/rlctl-actor:list"), name) == value
    assert INSECURE.label(image(registry), name) == value
    assert INSECURE.label(image(registry), "other") == ""
    assert INSECURE.label(image(registry, "team/rlctl-actor:plain"), name) == ""
    assert INSECURE.label(image(registry, "team/rlctl-actor:none"), name) is None
    registry.images[f"{path}/manifests/many"] = encoded({"manifests": [{"digest": digest}] * 65})
    with pytest.raises(BackendUnreachable, match="more than 64"):
        INSECURE.label(image(registry, "team/rlctl-actor:many"), name)


@pytest.mark.parametrize(
    "content", [{}, {"errors": []}, {"config": {}}, {"config": []}, {"config": {"digest": "x"}, "layers": [1]},
                {"manifests": [{}]}, {"manifests": 3}]
)  # fmt: skip
def test_an_answer_that_is_no_manifest_is_none_of_an_image(registry: FakeRegistry, content: object) -> None:
    registry.images["/v2/team/rlctl-actor/manifests/odd"] = encoded(content)
    with pytest.raises(BackendUnreachable, match="no manifest"):
        INSECURE.manifest(image(registry, "team/rlctl-actor:odd"))


@pytest.mark.parametrize(
    ("name", "asked"),
    [("python:3", "docker.io/library/python:3"), ("team/a:3", "docker.io/team/a:3"), ("r.example/a:3", "r.example/a:3"),
     ("docker.io/a:3", "docker.io/library/a:3")],
)  # fmt: skip
def test_what_names_no_registry_is_asked_of_docker_hub_as_every_node_does(name: str, asked: str) -> None:
    assert str(Reference.parse(name).asked) == asked


def test_what_is_not_there_is_none(registry: FakeRegistry) -> None:
    assert INSECURE.manifest(image(registry, "team/rlctl-actor:2.0")) is None


def test_plain_http_is_spoken_only_when_asked_for(registry: FakeRegistry) -> None:
    with pytest.raises(BackendUnreachable, match="does not say") as caught:
        Registry().manifest(image(registry))
    assert "--no-tls-verify" in caught.value.hint
    assert not registry.asked


def test_a_token_is_fetched_with_the_login_of_the_builder(registry: FakeRegistry) -> None:
    registry.door = "bearer"
    assert known().manifest(image(registry)) is not None
    paths = [path.partition("?")[0] for path, _ in registry.asked]
    assert paths == ["/v2/team/rlctl-actor/manifests/1.0", "/token", "/v2/team/rlctl-actor/manifests/1.0"]


def test_a_registry_with_passwords_is_told_them_when_it_asks(registry: FakeRegistry) -> None:
    registry.door = "basic"
    assert known().manifest(image(registry)) is not None
    assert [authorization != "" for _, authorization in registry.asked] == [False, True]


def test_a_registry_that_refuses_is_a_fault_with_a_way_out(registry: FakeRegistry) -> None:
    registry.door = "bearer"
    with pytest.raises(BackendUnreachable, match="403") as caught:
        INSECURE.manifest(image(registry))
    assert caught.value.exit_code == 4
    assert "logged in" in caught.value.hint


def test_a_page_in_place_of_a_registry_is_said_so(registry: FakeRegistry) -> None:
    with pytest.raises(BackendUnreachable, match="no JSON object"):
        INSECURE.manifest(image(registry, "team/page"))


def test_logins_of_all_builders_are_found(tmp_path: Path) -> None:
    entry = {"auth": base64.b64encode(b"me:sec:ret").decode()}
    for folder, file, registry in (
        (".docker", "config.json", "https://index.example.org/v1/"),
        (".config/containers", "auth.json", "127.0.0.1:5000"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / file).write_bytes(encoded({"auths": {registry: entry, "empty.example.org": {}}}))
    (tmp_path / "broken.json").write_text("{")
    known = logins({"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": str(tmp_path / "broken.json")})
    assert known("127.0.0.1:5000") == known("index.example.org") == ("me", "sec:ret")
    assert known("empty.example.org") is None
    assert known("other.example.org") is None


def test_a_login_without_a_name_is_that_of_docker_io(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(
        encoded({"auths": {"https://index.docker.io/v1/": {"auth": base64.b64encode(b"me:secret").decode()}}})
    )
    known = logins({"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path)})
    assert known("docker.io") == ("me", "secret")
    assert known("ghcr.io") is None


def test_every_secret_of_a_file_of_logins_is_found_beside_what_is_no_base64(tmp_path: Path) -> None:
    auth = base64.b64encode(b"me:sec:ret").decode()
    about = {"a": {"auth": auth, "username": "me-and-me", "email": "me@example.org", "password": "sec:ret"},
             "b": {"auth": "not base64!", "identitytoken": "token-1"}, "c": 3, "d": {"auth": None}}  # fmt: skip
    (tmp_path / "config.json").write_bytes(encoded({"auths": about}))
    places = {"HOME": "/nonexistent", "DOCKER_CONFIG": str(tmp_path)}
    assert set(passwords(places)) == {auth.encode(), b"sec:ret", b"not base64!", b"token-1"}
    (tmp_path / "config.json").write_text("[]")
    assert passwords(places) == []
