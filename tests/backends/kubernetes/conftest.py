from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.kubernetes.fakes.lab import Lab


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder, with its index of runs, of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def lab(home: Path) -> Lab:
    return Lab()
