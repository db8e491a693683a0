"""For all tests."""

import gc
from collections.abc import Generator

import pytest
from hypothesis import settings

# how long one example takes says how busy the machine is
settings.register_profile("rlctl", deadline=None)
settings.register_profile("quick", settings.get_profile("rlctl"), max_examples=50)  # of `make test-fast`
settings.load_profile("rlctl")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Six thousand tests and all they import stay until the end: looking for garbage among them costs seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
