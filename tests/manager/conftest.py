"""Fixtures of the manager's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manager.world import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Short evaluations, a generation every minute, two of which stay."""
    return Run(tmp_path, evaluation={"episodes": 2, "every": 10}, checkpoint={"every": 60, "keep": 2})
