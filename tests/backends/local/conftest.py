from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.local.machine import Machine, fakes_first


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder and a short runtime folder of the test's own."""
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp", ignore_cleanup_errors=True) as short:
        (Path(short) / "r").mkdir(mode=0o700)
        monkeypatch.setenv("XDG_STATE_HOME", short + "/state")
        monkeypatch.setenv("XDG_RUNTIME_DIR", short + "/r")
        monkeypatch.setenv("PYTHONPATH", fakes_first())
        yield Path(short)


@pytest.fixture
def machine(homes: Path) -> Iterator[Machine]:
    found = Machine()
    try:
        yield found
    finally:
        found.clean()
