"""Bytes that a node pulls, asked of registries that answer, refuse or say nothing."""

from __future__ import annotations

import socket
import time

import pytest

from rlctl.image_names import Reference
from rlctl.images.registry.client import USUAL, Registry
from rlctl.images.registry.sizes import sizes
from tests.images.fakes import DIGEST, FakeRegistry, encoded

PATIENT_S = 60.0
KINDS = "sha256:" + "a" * 64


def several(*platforms: dict[str, str]) -> bytes:
    """The list of an image for several kinds of machine; each of them is the one that the registry has."""
    return encoded({"manifests": [{"digest": DIGEST, "platform": platform} for platform in platforms]})


def test_a_registry_on_this_machine_tells_the_bytes_of_an_image_over_plain_http(registry: FakeRegistry) -> None:
    image = f"{registry.host}/team/rlctl-actor@{DIGEST}"
    assert sizes([image], deadline_s=PATIENT_S) == {image: 111}


def test_a_login_is_used_where_the_registry_asks_for_one(registry: FakeRegistry) -> None:
    registry.door = "bearer"
    image = f"{registry.host}/team/rlctl-actor@{DIGEST}"
    assert sizes([image], deadline_s=PATIENT_S) == {}
    known = {registry.host: ("me", "secret")}
    assert sizes([image], known.get, PATIENT_S) == {image: 111}


@pytest.mark.parametrize(
    ("platforms", "size"),
    [
        (({"architecture": "arm64", "os": "linux"}, USUAL), 111),
        (({**USUAL, "os.version": "1"},), 111),
        (({"architecture": "arm64", "os": "linux"},), None),
    ],
)
def test_of_an_image_for_several_kinds_of_machine_the_usual_one_counts(
    registry: FakeRegistry, platforms: tuple[dict[str, str], ...], size: int | None
) -> None:
    registry.images["/v2/team/rlctl-actor/manifests/kinds"] = several(*platforms)
    image = Reference.parse(f"{registry.host}/team/rlctl-actor:kinds")
    assert Registry(verify=False).size(image) == size


def test_what_is_not_told_is_left_out_and_hides_nothing_else(registry: FakeRegistry) -> None:
    registry.images[f"/v2/team/odd/manifests/{KINDS}"] = encoded({"layers": [{"size": 5}], "manifests": None})
    there = f"{registry.host}/team/rlctl-actor@{DIGEST}"
    absent, page, odd = (
        f"{registry.host}/team/{name}" for name in (f"other@{DIGEST}", "page:latest", f"odd@{KINDS}")
    )  # fmt: skip
    assert sizes([absent, page, odd, "busybox", "localhost/mine:1", "No Name!", there], deadline_s=PATIENT_S) == {
        there: 111
    }


def test_a_registry_that_says_nothing_is_not_waited_for(registry: FakeRegistry) -> None:
    there = f"{registry.host}/team/rlctl-actor@{DIGEST}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = [f"127.0.0.1:{silent.getsockname()[1]}/team/{name}@{DIGEST}" for name in "abc"]
        began = time.monotonic()
        found = sizes([*mute, there], deadline_s=5.0)
    assert found == {there: 111}
    assert time.monotonic() - began < 10, "each of them alone would take so long: https, then http"
