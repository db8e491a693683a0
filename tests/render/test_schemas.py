"""Every object validates against the published schemas, strictly: a key that is misspelt is a fault."""

from __future__ import annotations

from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rlctl.render.kubernetes import admin
from rlctl_ci.config.manifest import manifest
from tests.render.cluster import VARIATIONS, Run, spec_of
from tests.render.write import IMAGE, SERVICE
from tests.support.samples import sample

OLDEST, CURRENT = "1.30", "1.34"
"""The oldest release that we promise to work with, and that of the test cluster."""
NEWEST = kubernetes_validate.latest_version()
VERSIONS = [OLDEST, CURRENT, NEWEST]


def validate(found: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(found, version, strict=True)  # a kind that the release does not know is an error


@cache
def different_objects() -> list[dict[str, Any]]:
    """Of all variations, one object of each kind and shape."""
    found: dict[str, dict[str, Any]] = {}
    for more in VARIATIONS.values():
        for it in Run(spec_of(**more)).objects:
            found.setdefault(f"{it['kind']} {_shape(it)}", it)
    return list(found.values())


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _shape(below)) for key, below in value.items())
    return [_shape(item) for item in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("version", sample("versions of Kubernetes", VERSIONS, 2))
def test_every_object_of_a_run_validates(version: str) -> None:
    for found in different_objects():
        validate(found, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_for_an_administrator_validates(version: str) -> None:
    for document in admin("team", "ann"):
        validate(yaml.safe_load(document.text), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_of_the_service_that_redeploys_validates(version: str) -> None:
    for found in yaml.safe_load_all(manifest(SERVICE, namespace="team", image=IMAGE, host="ci.example.org")):
        validate(found, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_see_a_misspelt_key(plain: Run, version: str) -> None:
    wrong = yaml.safe_load(next(document.text for document in plain.documents if document.role == "actor"))
    wrong["metadata"]["lables"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong, version)
