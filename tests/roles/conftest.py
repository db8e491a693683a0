"""Fixtures that several modules of tests need."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.world import Run


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def quiet_again() -> Iterator[None]:
    """The log of the test's own process is as it was before."""
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, threading.excepthook
    yield
    root.handlers[:], root.level, threading.excepthook = handlers, level, hook
    logging.captureWarnings(False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Short evaluations, a generation every minute, two of which stay."""
    return Run(tmp_path, evaluation={"episodes": 2, "every": 10}, checkpoint={"every": 60, "keep": 2})
