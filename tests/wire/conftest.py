from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl_agents.wire.sockets import Wire


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of our own, short enough for Unix sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def address(folder: Path) -> str:
    return f"ipc://{folder}/socket"
