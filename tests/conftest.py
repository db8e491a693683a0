"""For all tests."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from rlctl_agents.runtime import logs
from tests.support import samples, slow
from tests.support.home import Home

# how long one example takes says how busy the machine is
settings.register_profile("rlctl", deadline=None, max_examples=samples.size(50, 100))
settings.register_profile("quick", settings.get_profile("rlctl"), max_examples=25)  # of `make test-fast`
settings.load_profile("rlctl")

HOME = pytest.StashKey[Home]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before anything is imported that looks at the environment; workers of xdist inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts us in the background has had it ignored
    if not hasattr(config, "workerinput"):
        config.stash[HOME] = Home(os.environ)
        samples.seed()  # workers inherit it


def pytest_report_header() -> str:
    if samples.FULL:
        return "every point of the exhaustive tests is tried"
    again = f"the same points again: {samples.SEED}={samples.seed()} make test; all of them: make test-full"
    return f"exhaustive tests are sampled; {again}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No test may touch the user's home; one that does makes the whole session fail."""
    home = session.config.stash.get(HOME, None)
    if home is None:
        return
    changed = home.close()
    if changed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        lines = "\n".join(f"  {line}" for line in changed)
        session.config.get_terminal_writer().line(f"\nFAILED: tests wrote outside the folders of their own:\n{lines}")


_PYTESTMARK = re.compile(r"^pytestmark = (?:pytest\.mark\..*|\[[^\]]*\].*)$", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module if `-m` leaves out all its tests: one that bears the mark M, where it says `not M`."""
    expression = config.option.markexpr
    if collection_path.suffix != ".py" or " or " in expression or "(" in expression:
        return None
    left_out = set(re.findall(r"\bnot (\w+)", expression))
    marked = _PYTESTMARK.search(collection_path.read_text()) if left_out else None
    borne = set(re.findall(r"\bpytest\.mark\.(\w+)", marked[0])) if marked else set()
    return True if left_out & borne else None


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the list says is slow."""
    names = slow.listed()
    for item in items:
        if item.nodeid.partition("[")[0] in names:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Six thousand tests and all they import stay until the end: looking for garbage among them costs seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a name short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rlctl-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def quiet_again() -> Iterator[None]:
    """The log of the test's own process is as it was before."""
    root, ours = logging.getLogger(), logging.getLogger(logs.PACKAGE)
    handlers, level, hook, disabled = (
        list(root.handlers),
        root.level,
        threading.excepthook,
        logging.root.manager.disable,
    )
    yield
    root.handlers[:], root.level, threading.excepthook = handlers, level, hook
    ours.handlers[:], ours.level, ours.propagate = [], logging.NOTSET, True
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.startswith(logs.PACKAGE):
            logger.manager = logging.root.manager
    logging.disable(disabled)
    logging.captureWarnings(False)
