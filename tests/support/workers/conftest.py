"""A volume, and a manager and a modelpool over the real wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.types.control import Match
from tests.support.chain import private_folder
from tests.support.fakes import Manager, Pool
from tests.support.workers.small import NEWEST


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        Layout(folder).make()
        yield folder


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(folder) as manager:
        manager.matches["actor"] = Match(1, {0: NEWEST}, (0,), 7)
        yield manager


@pytest.fixture
def pool(folder: Path) -> Iterator[Pool]:
    with Pool(folder) as pool:
        yield pool
