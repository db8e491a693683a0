"""A volume that takes nothing more: it is named as the cause, and what was reached is stored when space returns."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlctl_agents.manager.checkpoints.fencing_term import read_term, standing_term
from rlctl_agents.manager.lifecycle.stop import SAVE_S, TELL_S
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.loop import ManagerContext, RunningLoop
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.manager.web.tensorboard import CurveWriter
from rlctl_agents.runtime.process import Refusals, UserFault
from rlctl_agents.runtime.storage import FULL_S, LONGEST_DELAY_S, patiently, refusal
from tests.manager.world import LEARNER, POOL, Run, Time, commit, everybody, measure, ref, status
from tests.support.fakes import Manager, process_of


class Volume:
    """Takes nothing that must be durable while `error` is set. Only the operating system is replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        really = os.fsync

        def fsync(handle: int) -> None:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            really(handle)

        monkeypatch.setattr(os, "fsync", fsync)


class Waiting(threading.Event):
    """Who waits for it lets time pass, and other things happen."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time, self.waits = time, list[float]()
        self.then: Callable[[], None] | None = None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.time.now += timeout
        self.waits.append(timeout)
        if self.then is not None:
            self.then()
        return self.is_set()


@pytest.fixture
def volume(monkeypatch: pytest.MonkeyPatch) -> Volume:
    return Volume(monkeypatch)


@pytest.fixture
def ended(tmp_path: Path) -> Run:
    """A run that has done what was asked, and of which everybody has gone."""
    run = Run(tmp_path, stop={"eval_return": 5}, evaluation={"episodes": 2})
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.report("modelpool", POOL, model=ref(50))
    for _ in range(2):  # chosen and confirmed; then in the other mode
        measure(run, 7.0, 9.0)
    assert run.manager.state.progress.met is not None
    return run


@pytest.fixture
def loop_of(short: Path) -> Iterator[Callable[[Run, Waiting], RunningLoop]]:
    opened = ExitStack()

    def make(run: Run, stop: Waiting) -> RunningLoop:
        process = process_of("manager", Manager(short), run.settings, volume=run.layout.root)
        process.stop = stop
        lines = run.manager.members.lines
        control = ControlApi(
            f"unix:{short}/control", LogQueries(run.layout.logs, lines, None, "").answer, StoredFiles(run.layout).answer
        )
        curves = CurveWriter(run.layout.results / "tensorboard", run.manager.term)
        opened.callback(control.close)
        opened.callback(curves.close)
        context = ManagerContext(process, lines, None, Refusals(process.metrics), control)
        return RunningLoop(context, run.manager, curves)

    with opened:
        yield make


def test_what_is_wrong_with_the_volume_is_said_in_words_and_names_the_place() -> None:
    assert refusal(OSError(errno.ENOSPC, "x"), "/v/term") == "the volume is full: /v/term"
    assert refusal(OSError(errno.EROFS, "x", "/v/a")) == "the volume is read-only: /v/a"
    assert refusal(OSError(errno.EDQUOT, "x", "/v/a")) == "the quota of the volume is used up: /v/a"
    assert refusal(OSError(errno.EIO, "x", "/v/a")) == ""


def test_whoever_needs_the_volume_tries_again_ever_more_rarely_and_gives_up_with_its_name() -> None:
    time, tries, beats = Time(), list[float](), list[float]()
    stop = Waiting(time)

    def act() -> None:
        tries.append(time.now)
        raise OSError(errno.ENOSPC, "No space left on device", "/v/run/term")

    with pytest.raises(UserFault, match="the volume is full: /v/run/term"):
        patiently(act, stop=stop, beat=lambda: beats.append(time.now), clock=time)
    assert stop.waits[:5] == [1, 2, 4, 8, LONGEST_DELAY_S]
    assert FULL_S <= tries[-1] - tries[0] <= FULL_S + LONGEST_DELAY_S
    assert len(beats) == len(stop.waits)


def test_who_is_asked_to_stop_does_not_wait_for_space() -> None:
    stop = Waiting(Time())
    stop.set()

    def act() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/v")

    with pytest.raises(UserFault, match="full"):
        patiently(act, stop=stop, beat=lambda: None, clock=stop.time)
    assert stop.waits == []


def test_a_fault_that_is_not_for_want_of_space_is_not_waited_for() -> None:
    def act() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input"):
        patiently(act, stop=threading.Event(), beat=lambda: None)


def test_a_manager_that_starts_on_a_full_volume_goes_on_when_there_is_space_and_loses_no_evaluation(
    ended: Run, volume: Volume
) -> None:
    ended.manager.store()
    volume.error = errno.ENOSPC
    stop = Waiting(ended.time)

    def free() -> None:
        volume.error = 0 if len(stop.waits) == 3 else errno.ENOSPC

    stop.then = free
    manager = patiently(ended.start, stop=stop, beat=lambda: None, clock=ended.time)
    assert len(stop.waits) == 3
    assert manager.term == read_term(ended.layout.run)
    assert manager.state.progress.evaluation is not None
    assert manager.state.progress.evaluation.mean == 8


def test_a_manager_that_cannot_count_its_start_names_the_volume(ended: Run, volume: Volume) -> None:
    volume.error = errno.EROFS
    with pytest.raises(UserFault, match=f"the volume is read-only: {ended.layout.run}/term"):
        patiently(ended.start, stop=Waiting(ended.time), beat=lambda: None, clock=ended.time)


def test_a_torn_counter_that_cannot_be_written_anew_does_not_end_the_manager(tmp_path: Path, volume: Volume) -> None:
    (tmp_path / "term").write_bytes(b"\0")
    volume.error = errno.ENOSPC
    assert standing_term(tmp_path, 7) == 7


def test_what_was_not_stored_stays_a_problem_although_something_else_could_be(ended: Run, volume: Volume) -> None:
    volume.error = errno.ENOSPC
    ended.manager.store()  # the ledger need not be durable
    (problem,) = (one for one in status(ended)["problems"] if "volume" in one["text"])
    assert problem["text"] == f"the volume is full: {ended.layout.results}/progress.json.1"
    assert problem["next"] == "df -h"
    volume.error = 0
    ended.manager.store()
    assert StateStore(ended.layout.results).progress.evaluation is not None
    assert not any("volume" in one["text"] for one in status(ended)["problems"])


def test_the_end_of_a_run_waits_for_space_and_is_stored_then(
    ended: Run, volume: Volume, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    commit(ended, 1, steps=5000)
    volume.error, stop, shown = errno.ENOSPC, Waiting(ended.time), list[str]()

    def free() -> None:
        shown.append((ended.layout.results / "status.json").read_text())
        volume.error = 0 if len(stop.waits) == 4 else errno.ENOSPC

    stop.then = free
    loop_of(ended, stop).end()
    assert all("the volume is full" in one and '"finished"' not in one for one in shown)
    assert json.loads((ended.layout.run / "finished.json").read_text())["met"].startswith("evaluation mean 8")
    stored = StateStore(ended.layout.results).progress.evaluation
    assert stored is not None
    assert stored.mean == 8
    assert json.loads((ended.layout.results / "status.json").read_text())["phase"] == "finished"


def test_the_end_of_a_run_on_a_volume_that_stays_full_is_a_failure_that_names_it(
    ended: Run, volume: Volume, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    commit(ended, 1, steps=5000)
    volume.error = errno.ENOSPC
    with pytest.raises(UserFault, match=f"the volume is full: {ended.layout.results}"):
        loop_of(ended, Waiting(ended.time)).end()
    assert not (ended.layout.run / "finished.json").exists()


def test_a_run_whose_last_model_is_not_saved_fails_and_says_so(
    ended: Run, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    commit(ended, 1, steps=2000)
    ended.after(SAVE_S["finish"] + TELL_S + 2)
    assert ended.manager.stop.phase == "over"
    text = "the last model, at 5000 steps, was not saved: newest generation 1 at 2000 steps"
    with pytest.raises(UserFault, match=text):
        loop_of(ended, Waiting(ended.time)).end()
    assert not (ended.layout.run / "finished.json").exists()
    kept = json.loads((ended.layout.results / "status.json").read_text())
    assert kept["phase"] == "running"
    assert text in [problem["text"] for problem in kept["problems"]]
    events = [json.loads(line) for line in (ended.layout.results / "events.jsonl").read_text().splitlines()]
    assert (events[-1]["kind"], events[-1]["text"]) == ("not_saved", text)


def test_a_manager_that_leaves_writes_no_end(ended: Run, loop_of: Callable[[Run, Waiting], RunningLoop]) -> None:
    commit(ended, 1, steps=5000)
    ended.manager.stop.leave()
    loop_of(ended, Waiting(ended.time)).end()
    assert not (ended.layout.run / "finished.json").exists()
    assert json.loads((ended.layout.results / "status.json").read_text())["stop"]["met"] is None
