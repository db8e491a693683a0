"""Names of images, taken apart and put together."""

import re

import pytest

from rlctl.errors import UsageError
from rlctl.image_names import IMAGE, IMAGE_BY_DIGEST, Reference, loopback, registry_of_folder

DIGEST = "sha256:" + "0" * 64
OTHER = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("text", "parts", "remote"),
    [
        ("python:3.11-slim", ("", "python", "3.11-slim", ""), False),
        ("localhost/python:3.11-slim", ("localhost", "python", "3.11-slim", ""), False),
        ("localhost:5000/a", ("localhost:5000", "a", "", ""), True),
        ("127.0.0.1:5000/rlctl-core:1", ("127.0.0.1:5000", "rlctl-core", "1", ""), True),
        (f"ghcr.io/team/x/rlctl-core:1@{DIGEST}", ("ghcr.io", "team/x/rlctl-core", "1", DIGEST), True),
        (f"team/rlctl@{DIGEST}", ("", "team/rlctl", "", DIGEST), False),
    ],
)
def test_a_name_has_registry_repository_tag_and_digest(
    text: str, parts: tuple[str, str, str, str], remote: bool
) -> None:
    reference = Reference.parse(text)
    assert (reference.registry, reference.repository, reference.tag, reference.digest) == parts
    assert str(reference) == text
    assert reference.remote is remote
    assert bool(re.search(IMAGE, text)) is bool(reference.tag or reference.digest)
    assert bool(re.search(IMAGE_BY_DIGEST, text)) is bool(reference.digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Team/Image",
        "a b",
        "a:",
        f"a@{DIGEST[:-1]}",
        "a@sha512:0",
        "https://x.y/a",
        "../a",
        "r.example.org/team/../a",
        "r.example.org/team//a",
        "r.example.org/team/./a",
        "r.example.org/a/..",
        "a..b",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no name of an image"):
        Reference.parse(text)
    assert Reference.try_parse(text) is None
    assert not re.search(IMAGE, text)


def test_a_spec_takes_the_digest_without_the_tag() -> None:
    assert str(Reference.parse("r.example.org/a:1").by_digest(DIGEST)) == f"r.example.org/a@{DIGEST}"
    both = Reference.parse(f"r.example.org:5000/a:1@{DIGEST}")
    assert str(both.by_digest()) == f"r.example.org:5000/a@{DIGEST}"
    assert str(both.by_digest(OTHER)) == f"r.example.org:5000/a@{OTHER}"
    assert str(both.by_tag) == "r.example.org:5000/a:1"
    with pytest.raises(ValueError, match="an image without a digest: a:1"):
        Reference.parse("a:1").by_digest()


@pytest.mark.parametrize(
    ("folder", "registry"),
    [
        ("r.example.org", "r.example.org"), ("r.example.org:5000/team/x", "r.example.org:5000"), ("team", ""),
        ("localhost/team", "localhost"), ("r.example.org/team:1", ""), ("", ""), ("https://r.example.org", ""),
    ],
)  # fmt: skip
def test_a_place_for_images_begins_with_its_registry(folder: str, registry: str) -> None:
    assert registry_of_folder(folder) == registry


@pytest.mark.parametrize(
    ("registry", "here"),
    [
        ("localhost", True), ("localhost:5000", True), ("127.0.0.1:5000", True), ("127.9.9.9", True), ("::1", True),
        ("[::1]:5000", True), ("r.example.org:5000", False), ("10.0.0.1:5000", False), ("[fd00::1]:5000", False),
        ("localhost.example.org", False), ("", False),
    ],
)  # fmt: skip
def test_a_registry_on_this_machine_is_known_by_its_name_with_and_without_a_port(registry: str, here: bool) -> None:
    assert loopback(registry) is here
