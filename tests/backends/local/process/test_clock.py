"""A clock that is set while a run is up: the supervisor remembers what it said before, everything else goes by it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

from rlctl.backends.base import Process
from rlctl.backends.local.access import listing
from rlctl.backends.local.state import lock, run_state
from tests.backends.local.process.test_half_done import answering
from tests.backends.local.state.test_damaged_index import enter

HOUR_S = 3600


def listed(homes: Path, pid: int, start: int) -> Process:
    """The one process of a run, which the supervisor says it started then."""
    place = enter(homes, "one")
    known = run_state.read_stored(place)
    assert known is not None
    info = {
        "name": "actor-0", "statename": "RUNNING", "pid": pid, "start": start, "stop": 0, "now": int(time.time()),
        "exitstatus": 0, "spawnerr": "",
    }  # fmt: skip
    with lock.life(place.life), answering(place.supervisor_socket, 1, [info]):
        (found,) = listing.processes(place, known)
    return found


@pytest.mark.parametrize("set_by_s", [-HOUR_S, HOUR_S])
def test_when_a_process_started_is_told_by_the_clock_as_it_is_now(homes: Path, set_by_s: int) -> None:
    found = listed(homes, os.getpid(), int(time.time()) - set_by_s)
    assert found.started is not None
    assert found.started.timestamp() == pytest.approx(psutil.Process().create_time(), abs=1.0)


def test_of_a_process_that_the_kernel_does_not_show_the_supervisor_is_believed(homes: Path) -> None:
    start = int(time.time()) - 5
    found = listed(homes, 2**22 + 1, start)
    assert found.started is not None
    assert found.started.timestamp() == start
