"""Builders that push: what they make of a commit, where they send it, and what lies beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.errors import BackendUnreachable
from rlctl.images.make import Wish
from rlctl.images.reference import Reference
from rlctl_ci.builders.registry import plain, reader, uploader
from tests.ci.oci import Registry, elsewhere, registry
from tests.ci.world import project

__all__ = ["elsewhere", "registry"]


def test_only_the_registry_of_the_project_is_spoken_to_without_certificates(
    registry: Registry, elsewhere: Registry
) -> None:
    about = project(target="kubernetes", registry=f"{registry.name}/team", plain_http=True)
    asked = replace(reader(about), timeout_s=2.0)
    assert asked.manifest(registry.image("rlctl/actor", "1")) is not None
    with pytest.raises(BackendUnreachable):
        asked.manifest(elsewhere.image("rlctl/actor", "1"))
    assert elsewhere.asked == []
    assert uploader(about, registry.name).scheme == "http"
    assert uploader(about, elsewhere.name).scheme == "https"
    wish = Wish(about.registry, plain=plain(about))
    assert not wish.verifies(registry.name)
    assert wish.verifies("registry.example.org")
    built = wish.build(Reference(registry.name, "x"), Path(), Path(), None, {}, "registry.example.org")
    assert built.verify, "a base from elsewhere is pulled over HTTPS"
    assert plain(project(target="kubernetes", registry="registry.example.org/team")) is None
