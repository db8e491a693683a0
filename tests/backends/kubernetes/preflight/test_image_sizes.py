"""Sizes of a run's images on its nodes, before anything is sent."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import ApiError
from rlctl.backends.kubernetes.preflight import findings
from tests.backends.kubernetes.preflight.test_findings import IMAGE, NODES, checks, documents, node, objects, plan, room


def test_images_are_reckoned_for_the_nodes_that_lack_them() -> None:
    api = room()
    api.answers[NODES]["items"] += [node(f"new{number}") for number in range(560)]

    found = checks(api, actor=1000)["images"]

    assert found.text == (
        "registry.example.com/team/actor 400 MB x 560 of 563 nodes: 224.0 GB, 179 s from a registry with 10 Gbit/s"
    )


def told(nodes: object, size: int | None, asked: list[str] | None = None, **replicas: int) -> Check:
    """Check of images when a registry says so many bytes, or nothing."""

    def sizes(images: Collection[str]) -> dict[str, int]:
        if asked is not None:
            asked.extend(images)
        return {} if size is None else dict.fromkeys(images, size)

    api = room()
    api.answers[NODES] = nodes
    found = findings.checks(api, plan(**replicas), documents(objects()), sizes)
    return next(each for each in found if each.name == "images")


def test_an_image_that_no_node_has_is_not_checked() -> None:
    found = told({"items": [node("n1")]}, None, actor=10)

    assert found.verdict == "not checked"
    assert found.text == (
        "size not known, as no node has it and no registry says it: registry.example.com/team/actor on up to 1 nodes"
    )


def test_an_image_that_no_node_has_is_reckoned_with_what_its_registry_says() -> None:
    found = told({"items": [node(f"n{number}") for number in range(600)]}, 900_000_000, actor=1000)

    assert found.verdict == "warning"
    assert found.text == (
        "registry.example.com/team/actor 900 MB x 600 of 600 nodes: 540.0 GB, 432 s from a registry with 10 Gbit/s"
    )


@pytest.mark.parametrize("nodes", [ApiError("no", status=403), {"items": []}])
def test_of_nodes_that_nobody_sees_there_is_one_for_each_pod_at_most(nodes: object) -> None:
    assert told(nodes, 900_000_000, actor=1000).verdict == "ok", (
        "no reason to warn: nobody knows that there are so many"
    )
    found = told(nodes, 900_000_000, actor=16)  # manager, two modelpools and the learner have that image too

    assert found.verdict == "ok"
    assert found.text == (
        "registry.example.com/team/actor 900 MB x up to 20 nodes: 18.0 GB, 14 s from a registry with 10 Gbit/s"
    )


def test_no_registry_is_asked_for_what_a_node_knows() -> None:
    asked: list[str] = []
    found = told({"items": [node("n1", images={IMAGE: 400_000_000}), node("n2")]}, 5, asked, actor=10)

    assert found.text.startswith("registry.example.com/team/actor 400 MB x 1 of 2 nodes")
    assert asked == []
