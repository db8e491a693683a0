"""kill -9 of the real service, at any moment: HTTP, threads, git and the builder of folders; only its target is a file.

Each series of kills is one service over many lives, which is sent hooks all the while, some of them twice.
`RLCTL_TEST_FULL=1 pytest tests/ci/core/test_kill_service.py` is the long form: a third of a second for each kill.
RLCTL_TEST_SEED=1 kills at other moments.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from rlctl_ci.core.states import TERMINAL
from tests.ci.counts import tell
from tests.ci.killed import Killed
from tests.support.samples import FULL, chance, seed, size

KILLS = size(4, 200)
SERIES = size(1, 4)
pytestmark = [pytest.mark.processes, pytest.mark.timeout(120 + 6 * KILLS)]


def check(service: Killed) -> Counter[str]:
    """Every acknowledged delivery has one build, every build one end, and at most one deployment, which is decided.

    Returns:
        State -> builds that have ended in it.
    """
    stored = service.rows("SELECT delivery, build FROM deliveries")
    assert len(stored) == len({delivery for delivery, _ in stored})
    told = dict(stored)
    assert {delivery: told.get(delivery) for delivery in service.acknowledged} == service.acknowledged

    states = dict(service.rows("SELECT id, state FROM builds"))
    ends = Counter(build for build, state in service.rows("SELECT build, state FROM events") if state in TERMINAL)
    assert ends == dict.fromkeys(states, 1), "every build has exactly one end"
    assert set(states.values()) <= TERMINAL

    applied = Counter(line["build"] for line in service.outside.said("revision") if line["by"] == "apply")
    assert set(applied.values()) <= {1}, f"a build was deployed twice: {applied}"
    deploys = dict(service.rows("SELECT build, state FROM deploys"))
    assert set(applied) <= set(deploys)
    assert set(deploys.values()) <= {"verified", "rolled_back", "failed"}
    assert service.outside.history[-1] == service.last, "the last good commit runs"
    assert service.rows("PRAGMA integrity_check") == [("ok",)]
    return Counter(states.values())


def test_whatever_is_acknowledged_ends_once_and_is_deployed_at_most_once_however_often_the_service_is_killed(
    tmp_path: Path,
) -> None:
    begun = time.monotonic()
    ended: Counter[str] = Counter()
    at_work: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for series in range(SERIES):
        folder = tmp_path / str(series)
        folder.mkdir()
        service = Killed(folder, chance(f"kills of the service {series}"), commits=20 * KILLS)
        for _ in range(-(-KILLS // SERIES)):
            service.life()
        service.life(kill=False)
        ended += check(service)
        at_work += service.at_work
        applied = sum(line["by"] == "apply" for line in service.outside.said("revision"))
        numbers.update(
            kills=service.kills, acknowledged=len(service.acknowledged), deploys=applied,
            rollbacks=len(service.outside.said("revision")) - applied,
        )  # fmt: skip
    counts = {
        **numbers, "builds": ended.total(), "ended": dict(ended), "kills_by_state_of_a_build": dict(at_work),
        "seed": seed(), "seconds": round(time.monotonic() - begun, 1),
    }  # fmt: skip
    tell("ci-kills-of-the-service", counts)
    assert numbers["kills"] >= KILLS
    if FULL:  # else chance may leave one out
        assert {"fetching", "deploying", "verifying"} <= set(at_work), at_work
