"""The threads of one life, and what they do to each other."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rlctl_ci.core.build_attempt import Job
from rlctl_ci.core.errors import CiError
from rlctl_ci.core.service import Service
from rlctl_ci.store.records import Push
from rlctl_ci.web.app import make
from rlctl_ci.web.masked_reading import MaskedReading
from tests.ci.lives.pushes import pushed
from tests.ci.world import MAIN, Clock, Outside, hands, sha


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


@pytest.mark.parametrize("step", ["fetch", "apply", "verify"])
def test_the_end_of_the_service_ends_an_attempt_where_it_is_and_records_nothing_that_is_not_so(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    as_usual = getattr(outside, step)

    def ending(job: Job, *arguments: Any) -> Any:
        done = as_usual(job, *arguments)
        service.end()
        job.stop()
        return done

    monkeypatch.setattr(outside, step, ending)
    pushed(service, outside, 1)
    assert service.one()
    build = service.reading.build(1)
    assert (build.state, build.attempts) == ("queued", 0), "it was no fault of the commit"
    why = "the service ends; its next life goes on with this build"
    assert why in service.log(1).read_text()
    assert service.queue.recover(at_start=True) == []
    assert ("interrupted", why) in [(then, note) for _, then, note in service.reading.events(1)]


def test_the_end_of_the_service_waits_for_its_threads_and_they_hear_of_it(
    service: Service, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def fetch(job: Job) -> Path:
        begun.set()
        while True:
            job.stop()

    monkeypatch.setattr(outside, "fetch", fetch)
    service.start()
    pushed(service, outside, 1)
    assert begun.wait(30)
    service.close(grace_s=30.0)
    assert not service.healthy()
    assert not any(thread.name.startswith(("build-", "lease-")) for thread in threading.enumerate())


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
    service.look("pole")
    clock.s += 301
    service.look("pole")
    assert [build.sha for build in service.reading.builds()] == [sha(7)]
    assert "a look at main of pole: PermissionError: the token file" in capsys.readouterr().out
    http = TestClient(make(service), base_url="http://127.0.0.1:8710", client=("127.0.0.1", 1))
    since = "pole cannot be looked at (main: PermissionError: the token file)"
    assert since in http.get("/").text
    assert http.get("/index.json").json()["blind"][0]["since"] is None
    assert 'rlctl_ci_last_look_timestamp_seconds{project="pole"} 0.0' in http.get("/metrics").text
    monkeypatch.undo()
    before = service.reading.mark(), MaskedReading(service).mark()
    clock.s += 301
    service.look("pole")
    assert "cannot be looked at" not in http.get("/").text
    assert 'last_look_timestamp_seconds{project="pole"} 1.000602e+06' in http.get("/metrics").text
    assert (service.reading.mark() == before[0], MaskedReading(service).mark() == before[1]) == (True, False)


def test_a_forge_that_does_not_answer_delays_no_poll_of_another_project(
    service: Service, outside: Outside, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = service.config.projects["pole"]
    asked, looked, over = threading.Event(), threading.Event(), threading.Event()

    def at(ref: str) -> str:
        if ref == MAIN:
            asked.set()
            over.wait(60)
        elif asked.wait(30):
            looked.set()
        return sha(7)

    monkeypatch.setattr(outside, "at", at)
    projects = {"pole": given, "lab": given.model_copy(update={"branches": ["lab"], "run": "lab"})}
    config = service.config.model_copy(update={"state": tmp_path / "two", "projects": projects})
    both = Service(config, lambda project, service: hands(outside), clock, clock)
    both.start()
    try:
        assert asked.wait(30)
        assert looked.wait(30)
    finally:
        over.set()
        both.close(grace_s=30.0)


def test_a_build_of_a_project_that_is_gone_cannot_be_tried_again(service: Service) -> None:
    with pytest.raises(CiError, match="no longer configured"):
        service.trigger("gone", Push(MAIN, sha(1)))
