"""Fixtures of the manager's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manager.world import LEARNER, POOL, Run, Volume, everybody, measure, ref


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Short evaluations, a generation every minute, two of which stay."""
    return Run(tmp_path, evaluation={"episodes": 2, "every": 10}, checkpoint={"every": 60, "keep": 2})


@pytest.fixture
def volume(monkeypatch: pytest.MonkeyPatch) -> Volume:
    return Volume(monkeypatch)


@pytest.fixture
def ended(tmp_path: Path) -> Run:
    """A run that has done what was asked, without any process left."""
    run = Run(tmp_path, stop={"eval_return": 5}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.report("modelpool", POOL, model=ref(50))
    for _ in range(2):  # chosen and confirmed; then in the other mode
        measure(run, 7.0, 9.0)
    assert run.manager.state.progress.met is not None
    return run
