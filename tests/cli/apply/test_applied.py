"""Changes by a target are told while it makes them, and made whether or not they are heard."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rlctl.backends.base import Applied
from rlctl.cli.apply.applied import follow
from rlctl.cli.apply.bring_up import undo
from rlctl.cli.context import ReaderGone, World
from rlctl.errors import PartlyApplied, RlctlError
from tests.cli.conftest import Rlctl
from tests.support.memory import MemoryBackend


class Deaf(io.StringIO):
    """A stream that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


FULL, GONE = OSError(errno.ENOSPC, "No space left on device"), BrokenPipeError()
ENDED = [Applied("actor/0", "removed"), Applied("learner/0", "removed"), Applied("supervisord", "removed")]


@pytest.mark.parametrize(("error", "raised"), [(FULL, RlctlError), (GONE, ReaderGone)])
def test_a_target_ends_its_work_when_nobody_hears_of_it(error: OSError, raised: type[BaseException]) -> None:
    ended: list[str] = []

    def end() -> Iterator[Applied]:
        for applied in ENDED:
            ended.append(applied.object)
            yield applied

    with pytest.raises(raised):
        follow(World(stderr=Deaf(error)), end())
    assert ended == ["actor/0", "learner/0", "supervisord"]
    assert follow(World(stderr=Deaf(error)), end(), heard=False) == ENDED


def test_what_went_wrong_is_raised_before_what_could_not_be_said_of_it() -> None:
    def fail() -> Iterator[Applied]:
        yield from ENDED
        raise PartlyApplied("the supervisor refused")

    with pytest.raises(PartlyApplied):
        follow(World(stderr=Deaf(FULL)), fail())


@pytest.mark.parametrize("error", [FULL, GONE])
def test_a_line_about_a_wait_that_cannot_be_written_ends_no_work(error: OSError) -> None:
    world = World(stderr=Deaf(error), targets={"local": MemoryBackend})
    world.backend("local").waiting("waiting for actor/0 to end since 10 s, 20 s at most")


@pytest.mark.parametrize("error", [FULL, GONE])
def test_atomic_puts_back_what_was_there_when_nobody_hears_of_it(rlctl: Rlctl, error: OSError) -> None:
    rlctl.up()
    plan = SimpleNamespace(run="pole")
    prepared: Any = SimpleNamespace(backend=rlctl.backend, state=None, remains=False, plan=plan)
    assert undo(World(stderr=Deaf(error)), prepared) == "pole is removed again"
    assert rlctl.backend.find("pole") is None
