from functools import cache

import pytest

from tests.render.cluster import VARIATIONS, Run, spec_of


@cache
def _run(name: str) -> Run:
    return Run(spec_of(**VARIATIONS[name]))


@pytest.fixture(params=sorted(VARIATIONS))
def run(request: pytest.FixtureRequest) -> Run:
    """Every variation in turn."""
    return _run(request.param)


@pytest.fixture
def plain() -> Run:
    return _run("plain")


@pytest.fixture
def exposed() -> Run:
    return _run("exposed")
