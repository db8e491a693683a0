"""The command lines of builders, as data, and what their failures become."""

from pathlib import Path

import pytest

from rlctl.errors import BackendUnreachable, UsageError
from rlctl.images.builders.base import Build, BuildFailed, Ended, PushFailed
from rlctl.images.builders.buildah import Buildah, Podman
from rlctl.images.builders.choose import BUILDERS, choose
from rlctl.images.builders.docker import Docker
from tests.images.fakes import CONFIG, PUSHED, FakePrograms

TAG = "registry.example.org/team/rlctl-core:1.0"
BUILD = Build(
    tag=TAG,
    context=Path("/context"),
    file=Path("/context/Dockerfile.actor"),
    target="core",
    args={"BASE": "localhost/python:3.11-slim", "EXTRAS": "atari box2d"},
    volumes=("/etc/pip.conf:/etc/pip.conf:ro",),
    network="host",
    verify=False,
)
PLAIN = Build(tag=TAG, context=Path("/context"), file=Path("/context/Dockerfile.learner"))


def test_buildah_keeps_layers_and_equal_times(tmp_path: Path) -> None:
    assert Buildah(FakePrograms(), tmp_path).build_argv(PLAIN, Path("/id")) == [
        "buildah", "build", "--layers", "--timestamp", "0", "--file", "/context/Dockerfile.learner",
        "--tag", TAG, "--iidfile", "/id", "/context",
    ]  # fmt: skip


def test_buildah_is_told_target_arguments_volumes_network_and_an_insecure_registry(tmp_path: Path) -> None:
    assert Buildah(FakePrograms(), tmp_path).build_argv(BUILD, Path("/id")) == [
        "buildah", "build", "--layers", "--timestamp", "0", "--file", "/context/Dockerfile.actor",
        "--tag", TAG, "--iidfile", "/id", "--target", "core",
        "--build-arg", "BASE=localhost/python:3.11-slim", "--build-arg", "EXTRAS=atari box2d",
        "--volume", "/etc/pip.conf:/etc/pip.conf:ro", "--network", "host", "--tls-verify=false", "/context",
    ]  # fmt: skip


def test_podman_takes_the_options_of_buildah(tmp_path: Path) -> None:
    buildah = Buildah(FakePrograms(), tmp_path).build_argv(BUILD, Path("/id"))
    assert Podman(FakePrograms(), tmp_path).build_argv(BUILD, Path("/id")) == ["podman", *buildah[1:]]


def test_docker_is_told_what_it_understands(tmp_path: Path) -> None:
    assert Docker(FakePrograms(), tmp_path).build_argv(PLAIN, Path("/id")) == [
        "docker", "build", "--file", "/context/Dockerfile.learner", "--tag", TAG, "--iidfile", "/id", "/context",
    ]  # fmt: skip


def test_docker_says_that_it_binds_no_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="binds no folders"):
        Docker(FakePrograms(), tmp_path).build(BUILD)


@pytest.mark.parametrize(
    ("verify", "command"),
    [
        (True, ["buildah", "push", "--digestfile", "/digest", TAG, f"docker://{TAG}"]),
        (False, ["buildah", "push", "--digestfile", "/digest", "--tls-verify=false", TAG, f"docker://{TAG}"]),
    ],
)
def test_a_push_looks_at_certificates_unless_told_otherwise(tmp_path: Path, verify: bool, command: list[str]) -> None:
    assert Buildah(FakePrograms(), tmp_path).push_argv(TAG, Path("/digest"), verify=verify) == command


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_builds_finds_and_pushes(tmp_path: Path, name: str) -> None:
    programs = FakePrograms()
    builder = BUILDERS[name](programs, tmp_path)
    assert builder.name == name
    assert builder.find(TAG) is None
    assert builder.build(PLAIN) == CONFIG
    assert builder.find(TAG) == CONFIG
    assert builder.push(TAG, verify=True) == PUSHED
    assert {command[0] for command in programs.commands} == {name}


def test_a_failed_build_tells_its_last_lines_and_exits_7(tmp_path: Path) -> None:
    said = tuple(f"line {number}" for number in range(40))
    builder = Buildah(FakePrograms(broken={"build": Ended(125, said)}), tmp_path)
    with pytest.raises(BuildFailed, match=r"buildah could not build .*rlctl-core:1.0 \(exit 125\)") as caught:
        builder.build(PLAIN)
    assert caught.value.exit_code == 7
    assert caught.value.details == said[-15:]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("unauthorized: authentication required", "buildah login registry.example.org"),
        ("requested access to the resource is denied", "buildah login registry.example.org"),
        ("http: server gave HTTP response to HTTPS client", "--no-tls-verify"),
        ("x509: certificate signed by unknown authority", "install its authority"),
        ("dial tcp: lookup registry.example.org: no such host", "check --registry"),
    ],
)
def test_a_registry_that_refuses_says_what_helps_and_exits_4(tmp_path: Path, said: str, hint: str) -> None:
    builder = Buildah(FakePrograms(broken={"push": Ended(125, ("Getting image source", said))}), tmp_path)
    with pytest.raises(PushFailed) as caught:
        builder.push(TAG, verify=True)
    assert caught.value.exit_code == 4
    assert hint in caught.value.hint
    assert said in caught.value.details


def test_docker_that_names_no_digest_has_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(PushFailed):
        Docker(FakePrograms(broken={"push": Ended(0, ("done",))}), tmp_path).push(TAG, verify=True)


def chosen(tmp_path: Path, *there: str, wanted: str | None = None, programs: FakePrograms | None = None) -> str:
    return choose(
        wanted,
        which=lambda name: f"/usr/bin/{name}" if name in there else None,
        run=programs or FakePrograms(),
        scratch=tmp_path,
    ).name


def test_the_first_builder_that_is_there_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path, "docker", "podman", "buildah") == "buildah"
    assert chosen(tmp_path, "docker", "podman") == "podman"
    assert chosen(tmp_path, "docker") == "docker"
    assert chosen(tmp_path, "docker", "buildah", wanted="docker") == "docker"


def test_without_a_builder_the_error_says_what_to_install_and_exits_4(tmp_path: Path) -> None:
    with pytest.raises(BackendUnreachable, match="no builder of images") as caught:
        chosen(tmp_path)
    assert caught.value.exit_code == 4
    assert "apt-get install buildah" in caught.value.hint


def test_docker_without_its_daemon_cannot_be_used(tmp_path: Path) -> None:
    programs = FakePrograms(broken={"version": Ended(1, ("Cannot connect to the Docker daemon",))})
    with pytest.raises(BackendUnreachable) as caught:
        chosen(tmp_path, "docker", programs=programs)
    assert "docker: its daemon does not answer: Cannot connect to the Docker daemon" in caught.value.hint
