"""Readiness of a run, as the command line and the CI service both understand it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from rlctl.backends.base import Process, RunState
from rlctl.backends.run_states import Readiness

BEGAN = datetime(2026, 11, 21, tzinfo=UTC)
STATE = RunState(
    run="pole", uid="a" * 32, target="local", phase="running", rlctl_version="0.1", revision=1, created=BEGAN,
    storage="", spec={}, hashes={}, replicas={"manager": 1, "actor": 2}, spec_replicas={"manager": 1, "actor": 2},
)  # fmt: skip
MANAGER = Process("manager", 0, "running", started=BEGAN)
ACTORS = [Process("actor", index, "running", started=BEGAN) for index in range(2)]


def status(*joined: int, phase: str = "running") -> dict[str, Any]:
    """A status of ten seconds after the beginning."""
    actors = [{"index": index, "joined": True, "age_s": 5.0} for index in joined]
    return {"phase": phase, "time": BEGAN.timestamp() + 10.0, "roles": {"actor": actors}}


def lacking(*actors: Process, told: dict[str, Any] | None, target: str = "local", manager: Process = MANAGER) -> str:
    state = replace(STATE, target=target)
    return Readiness(state, [manager, *actors], told or {}, answered=told is not None).lacking()


def test_a_run_is_ready_once_every_replica_runs_and_has_joined() -> None:
    assert lacking(*ACTORS, told=status(0, 1)) == ""
    assert Readiness(STATE, [MANAGER, *ACTORS], status(1), answered=True).count("actor") == 1


def test_the_first_part_that_lacks_is_named() -> None:
    down = replace(ACTORS[1], state="backoff")
    assert lacking(ACTORS[0], down, told=status(0, 1)) == "actor: 1 of 2 run"
    assert lacking(*ACTORS, told=None) == "the manager has not reported"
    assert lacking(*ACTORS, told={}) == "the manager has not reported"
    assert lacking(*ACTORS, told=status(0, 1, phase="starting")) == "the manager has not reported"
    assert lacking(*ACTORS, told=status(0, 1, phase="failed")) == "the run has failed"
    assert lacking(*ACTORS, told=status(0)) == "actor/1 has not joined"
    assert lacking(*ACTORS, told=status(1)) == "actor/0 has not joined"


def test_a_process_whose_start_is_not_known_is_not_ready() -> None:
    unknown = replace(ACTORS[1], started=None)
    assert lacking(ACTORS[0], unknown, told=status(0, 1)) == "actor/1 has not joined"


def test_a_report_on_the_process_before_does_not_count() -> None:
    again = replace(ACTORS[1], started=datetime(2026, 11, 21, 0, 0, 8, tzinfo=UTC))
    assert lacking(ACTORS[0], again, told=status(0, 1)) == "actor/1 has not joined"


def test_a_pod_that_is_ready_has_joined() -> None:
    counted = Process("actor", 0, "running", count=2)
    assert lacking(counted, told=status(), target="kubernetes") == ""
    assert lacking(counted, told=None, target="kubernetes") == "the manager has not reported"


def test_a_replica_too_many_that_has_not_joined_holds_nothing_up() -> None:
    assert lacking(*ACTORS, replace(ACTORS[1], index=2), told=status(0, 1)) == ""


@pytest.mark.parametrize("entries", [None, [], [{"index": 7, "joined": True}]])
def test_a_process_without_a_report_has_none(entries: list[dict[str, Any]] | None) -> None:
    told = {**status(), "roles": {"actor": entries}}
    assert Readiness(STATE, ACTORS, told, answered=True).reported("actor", 3) == {}
