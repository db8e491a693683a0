"""One life of the service, with a forge and targets that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_ci.config.settings import Config
from rlctl_ci.core.service import Service
from tests.ci.world import Clock, Outside, hands


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "outside.jsonl")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(tmp_path: Path, outside: Outside, clock: Clock) -> Iterator[Service]:
    (tmp_path / "secret").write_text("a secret of sixteen or more\n")
    project = {
        "forge": "github", "repository": "/srv/pole.git", "secret_file": tmp_path / "secret", "run": "pole",
        "paths": ["agents/**"], "branches": ["main", "dev"],
    }  # fmt: skip
    config = Config.model_validate({"state": tmp_path / "state", "projects": {"pole": project}})
    found = Service(config, lambda project, service: hands(outside), clock, clock)
    yield found
    found.close()
