"""Record of an end on the volume: a finished run, a last model that was not saved, or a volume that takes nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl_agents.manager.lifecycle.stop import LEARNER_S, SAVE_S, TELL_S, NothingLearned, TooLate
from rlctl_agents.manager.logs.log_queries import LogQueries
from rlctl_agents.manager.loop import ManagerContext, RunningLoop
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.trackers.curves import Curves
from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.manager.web.initial_policy import InitialPolicy
from rlctl_agents.manager.web.stored_files import StoredFiles
from rlctl_agents.runtime.process import Refusals, UserFault
from tests.manager.world import LEARNER, UID, Run, Volume, Waiting, commit, everybody
from tests.support.fakes import Manager, process_of


@pytest.fixture
def loop_of(short: Path) -> Iterator[Callable[[Run, Waiting], RunningLoop]]:
    opened = ExitStack()

    def make(run: Run, stop: Waiting) -> RunningLoop:
        process = process_of("manager", Manager(short), run.settings, volume=run.layout.root)
        process.stop = stop
        static = {"format": 1, "run": "r", "uid": UID, "role": "manager", "spec": run.settings.model_dump(mode="json")}
        (short / "run.json").write_text(json.dumps(static))
        (short / "live.json").write_text(json.dumps({"stop": run.settings.stop.model_dump()}))
        process.arguments = replace(process.arguments, run_file=short / "run.json", live=short / "live.json")
        lines = run.manager.members.lines
        control = ControlApi(
            f"unix:{short}/control",
            LogQueries(run.layout.logs, lines, None, "").answer,
            StoredFiles(run.layout).answer,
            InitialPolicy(run.layout).answer,
        )
        curves = Curves(CurveWriter(run.layout.results / "tensorboard", run.manager.life.term))
        opened.callback(control.close)
        opened.enter_context(curves)
        context = ManagerContext(process, lines, None, Refusals(process.metrics), control)
        return RunningLoop(context, run.manager, curves)

    with opened:
        yield make


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


@pytest.mark.parametrize("saved", [True, False])
def test_a_request_to_stop_is_done_with_once_its_manager_has_ended(
    tmp_path: Path, saved: bool, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    loop = loop_of(run, Waiting(run.time))
    assert loop.carry_out("/stop", {}) == {"stopping": True}
    assert StateStore(run.layout.results).progress.requested == "stopped on request"
    if saved:
        commit(run, 1, steps=5000, version=50)
    run.after(SAVE_S["finish"] + TELL_S + 2)
    with contextlib.nullcontext() if saved else pytest.raises(UserFault, match="was not saved"):
        loop.end()
    assert StateStore(run.layout.results).progress.requested == ""
    assert (run.layout.run / "finished.json").exists() == saved


def test_a_request_to_stop_does_not_outlive_its_run_where_the_volume_is_full_for_a_moment(
    tmp_path: Path, loop_of: Callable[[Run, Waiting], RunningLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    stop, really = Waiting(run.time), os.fsync
    loop = loop_of(run, stop)
    loop.carry_out("/stop", {})
    commit(run, 1, steps=5000, version=50)
    run.after(SAVE_S["finish"] + TELL_S + 2)

    def fsync(handle: int) -> None:
        is_progress = ".progress.json" in os.readlink(f"/proc/self/fd/{handle}")
        if is_progress and (run.layout.run / "finished.json").exists() and not stop.waits:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    loop.end()
    assert StateStore(run.layout.results).progress.requested == ""


@pytest.mark.parametrize("learned", [False, True])
def test_a_run_that_has_failed_before_its_managers_first_turn_is_stored_with_its_status(
    tmp_path: Path, learned: bool, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    run = Run(tmp_path, stop={"wall_time": 60})
    run.manager.state.progress.started = learned
    run.time.now += 60 + LEARNER_S
    run.manager.store()
    run.start()
    loop = loop_of(run, Waiting(run.time))
    with pytest.raises(NothingLearned, match=r"stop\.wall_time of 60 s is over"):
        loop.turn()
    loop.fail("stop.wall_time of 60 s is over")
    assert json.loads((run.layout.results / "status.json").read_text())["wall_s"] == 60 + LEARNER_S
    assert json.loads((run.layout.run / "finished.json").read_text())["failed"]


def test_settings_that_come_too_late_do_not_hold_once_the_run_has_ended(
    tmp_path: Path, loop_of: Callable[[Run, Waiting], RunningLoop]
) -> None:
    run = Run(tmp_path, stop={"agent_steps": 5000})
    loop = loop_of(run, Waiting(run.time))
    settings = loop._context.settings
    assert settings.read() == run.settings
    everybody(run)
    run.learn(LEARNER, steps=5000, version=50)
    run.manager.stop.finish("stopped on request")
    with pytest.raises(TooLate, match="the run is ending"):
        loop.carry_out("/reload", {"live": {"stop": {"agent_steps": 9000}}})
    assert settings.read() == run.settings
