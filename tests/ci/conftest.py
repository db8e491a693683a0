from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci.world import Service
from tests.kubernetes.conftest import home, lab

__all__ = ["home", "lab"]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)
