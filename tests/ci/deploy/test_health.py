"""When a run is said to be ready, and when to be well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.backends.base import Backend, Process
from rlctl.errors import BackendUnreachable, TimedOut
from rlctl_ci.deploy import health
from tests.ci.deploy.test_deploy import Time, acting
from tests.conformance.targets import Memory


def test_a_run_that_is_not_ready_in_time_is_not_well(tmp_path: Path) -> None:
    target = Memory()
    target.up()
    list(target.backend.scale("pole", {"actor": 10_000}))
    others = sum(target.state().replicas.values()) - 10_000
    target.memory.silence("pole")
    with pytest.raises(TimedOut, match=f"not ready after {60 + 0.1 * (10_000 + others):g} s"):
        acting(target).verify({})


def test_a_process_that_dies_again_and_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*restarts: int) -> list[health.RunHealth]:
        down = Process("actor", 0, "backoff", reason="exited 1: ValueError: x")
        return [replace(unready, processes=(replace(down, restarts=number),)) for number in restarts]

    unready = replace(WELL, ready=False, missing="actor: 0 of 1 run")
    often = replace(unready, processes=(Process("actor", 0, "running", restarts=7),))
    with pytest.raises(health.RunUnhealthy, match=r"actor/0: exited 1: ValueError: x"):
        awaited(monkeypatch, [unready, *dies(1, 2)])
    assert awaited(monkeypatch, [unready, *dies(1), WELL]) == WELL, "once is borne"
    assert awaited(monkeypatch, [often, *dies(8), WELL]) == WELL, "what was before the push is not held against it"
    with pytest.raises(TimedOut, match=r"actor: 0 of 1 run; actor/0: exited 1: ValueError: x"):
        awaited(monkeypatch, [unready, *dies(1)])


def awaited(monkeypatch: pytest.MonkeyPatch, looks: list[health.RunHealth]) -> health.RunHealth:
    Scripted(monkeypatch, looks)
    time = Time(Memory())
    return health.await_ready(Memory().backend, "pole", 60.0, clock=time, sleep=time.sleep)


class Scripted:
    """Looks that were written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: list[health.RunHealth]) -> None:
        self.looks = looks
        monkeypatch.setattr(
            health, "look", lambda backend, run: self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        )


WELL = health.RunHealth(True, "", 0.0, 0, False)


def watched(monkeypatch: pytest.MonkeyPatch, looks: list[health.RunHealth], before: float) -> str:
    Scripted(monkeypatch, looks)
    time = Time(Memory())
    backend: Backend = Memory().backend
    return health.watch(backend, "pole", watch_s=5, before_per_s=before, least=0.5, clock=time, sleep=time.sleep)


def test_a_run_that_does_what_it_did_before_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [replace(WELL, steps=50.0 * number) for number in range(20)]
    assert "100 steps/s" in watched(monkeypatch, looks, 150.0)


def test_a_run_that_does_less_than_half_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [replace(WELL, steps=50.0 * number) for number in range(20)]
    with pytest.raises(health.RunUnhealthy, match="steps/s"):
        watched(monkeypatch, looks, 300.0)


def test_a_learner_that_fills_its_first_batch_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [WELL] * 25 + [replace(WELL, steps=50.0 * number) for number in range(20)]
    assert "100 steps/s" in watched(monkeypatch, looks, 150.0)
    with pytest.raises(health.RunUnhealthy, match="0 steps/s, and it was 150 before"):
        watched(monkeypatch, [WELL], 150.0)


def test_a_process_that_dies_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [WELL, replace(WELL, restarts=1, trouble="actor 0 exited 1: ValueError: x")]
    with pytest.raises(health.RunUnhealthy, match="ValueError"):
        watched(monkeypatch, looks, 0.0)


def test_one_look_at_the_end_that_is_not_answered_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [replace(WELL, steps=50.0 * number) for number in range(60)]
    silent = replace(WELL, ready=False, missing="the manager has not reported")
    assert "ready" in watched(monkeypatch, [*looks[:10], silent, *looks[11:]], 0.0)
    with pytest.raises(health.RunUnhealthy, match="ready no more: the manager has not reported"):
        watched(monkeypatch, [*looks[:8], silent], 0.0)


def test_a_target_that_is_away_at_the_end_is_asked_again_by_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(backend: Backend, run: str) -> health.RunHealth:
        seen.append(run)
        if len(seen) > 5:
            raise BackendUnreachable("the API server is away")
        return WELL

    monkeypatch.setattr(health, "look", look)
    time = Time(Memory())
    with pytest.raises(BackendUnreachable, match="at the end of its watch"):
        health.watch(Memory().backend, "pole", watch_s=5, before_per_s=0, least=0.5, clock=time, sleep=time.sleep)
