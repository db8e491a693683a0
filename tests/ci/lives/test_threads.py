"""The threads of one life, and what they do to each other."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from rlctl_ci.errors import CiError
from rlctl_ci.service import Service
from rlctl_ci.store.records import Push
from tests.ci.lives.pushes import pushed
from tests.ci.world import MAIN, Clock, Outside, sha


def test_a_clock_that_is_set_forward_gives_nobody_elses_build_away(
    service: Service, outside: Outside, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[bool] = []

    def fetch(job: Any) -> Path:
        clock.s += 10_000
        others.append(service.one())  # as another worker does
        outside.say("fetch")
        return Path(job.folder)

    monkeypatch.setattr(outside, "fetch", fetch)
    pushed(service, outside, 1)
    assert service.one()
    assert others == [False]
    assert len(outside.said("fetch")) == 1
    assert service.reading.build(1).state == "succeeded"


def test_a_fault_ends_no_thread(service: Service, outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    seen = threading.Event()

    def fault(*_: Any, **__: Any) -> bool:
        seen.set()
        raise sqlite3.OperationalError("unable to open database file")

    service.one = fault  # type: ignore[method-assign]
    service.start()
    assert seen.wait(10)
    assert service.healthy()
    service.close()
    assert "ci: a worker: OperationalError: unable to open database file" in capsys.readouterr().out


def test_a_branch_that_cannot_be_looked_at_hides_no_other(
    service: Service,
    outside: Outside,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def at(ref: str) -> str:
        if ref == MAIN:
            raise PermissionError("the token file")
        return commits.pop()

    commits = [sha(7), sha(6)]
    monkeypatch.setattr(outside, "at", at)
    service.look()
    clock.s += 301
    service.look()
    assert [build.sha for build in service.reading.builds()] == [sha(7)]
    assert "a look at main of pole: PermissionError: the token file" in capsys.readouterr().out


def test_a_build_of_a_project_that_is_gone_cannot_be_tried_again(service: Service) -> None:
    with pytest.raises(CiError, match="no longer configured"):
        service.trigger("gone", Push(MAIN, sha(1)))
