from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci.world import Service


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)
