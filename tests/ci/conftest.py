from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.kubernetes.conftest import home, lab
from tests.ci.world import Service

__all__ = ["home", "lab"]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)
