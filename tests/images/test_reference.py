"""Names of images, taken apart and put together."""

import pytest

from rlctl.errors import UsageError
from rlctl.images.registry.reference import Reference

DIGEST = "sha256:" + "0" * 64


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


def test_a_spec_takes_the_digest_without_the_tag() -> None:
    assert str(Reference.parse("r.example.org/a:1").by_digest(DIGEST)) == f"r.example.org/a@{DIGEST}"
