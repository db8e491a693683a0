"""Answers for a run that is finished, until a person takes it down or lets it go on."""

from __future__ import annotations

import errno
import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlctl.spec.layout import Layout
from rlctl.spec.schema import Spec
from rlctl_agents.manager.lifecycle.finished import (
    FAILED,
    GOES_ON,
    ON_REQUEST,
    OVER,
    PATIENCE_S,
    EndedRun,
    RunEnd,
    read_end,
    record_end,
    workloads_of,
)
from rlctl_agents.manager.lifecycle.scale_down import Release, workloads
from rlctl_agents.manager.state_store import StateStore
from rlctl_agents.manager.web.control_api import ControlApi
from rlctl_agents.runtime import logs
from rlctl_agents.runtime.http_server import Request, Response
from rlctl_agents.runtime.logs import Lines
from rlctl_agents.runtime.process import Arguments, Process
from rlctl_agents.types.control import Hello, Orders, Report
from tests.manager.world import UID, boot, spec
from tests.support.api_server import cluster, serving
from tests.support.chain import private_folder
from tests.support.fakes import wait_until

MET = "5000 agent steps >= 5000"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A run that has learned from 5000 steps, which was its goal."""
    layout = Layout(tmp_path)
    layout.make()
    store = StateStore(layout.results)
    store.progress.steps["main"] = 5000
    store.progress.started = True
    assert store.save_progress()
    status = {
        "run": "r",
        "phase": "running",
        "stop": {"conditions": {"agent_steps": 5000}, "met": MET},
        "problems": ["x"],
    }
    (layout.results / "status.json").write_text(json.dumps(status))
    return layout


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


def begun(release: Release) -> bool:
    return release._thread.ident is not None


class Rest:
    """Remains of the manager, without its sockets."""

    def __init__(
        self, layout: Layout, folder: Path, met: str = MET, release: Release | None = None, end: RunEnd | None = None,
        others: Sequence[Release] = (), found: bool = False,
    ) -> None:  # fmt: skip
        self.now = 1000.0
        self.layout, self.settings = layout, spec(stop={"agent_steps": 5000})
        record_end(layout, end or RunEnd("2026-11-21T19:00:00+00:00", met, 3))
        self.release = release or Release([], None)
        self.lines = Lines()
        arguments = Arguments("manager", "m", Path("f"), "ipc:///m", "")
        identity = logs.Identity("r", "manager", "manager/0", boot(1))
        process = Process(arguments, "r", UID, self.settings, boot(1), identity, logs.RecentLines())
        known = read_end(layout)
        assert known is not None
        releases = iter([self.release, *others])
        self.manager = EndedRun(
            process, layout, known, self.lines, found=found,
            settings=SimpleNamespace(read=lambda: self.settings, reload=self.given),
            release=lambda: next(releases), clock=lambda: self.now,
        )  # fmt: skip
        self.control = ControlApi(f"unix:{folder}/c", *[lambda query: Response.of({})] * 3)

    def given(self, live: Mapping[str, Any] | None) -> Spec:
        return self.settings if live is None else spec(**live)

    def order(self, path: str, body: Any = None) -> tuple[int, Any]:
        answers: list[tuple[int, Any]] = []

        def ask() -> None:
            answer = self.control.answer(Request("POST", path, {}, json.dumps(body).encode() if body else b""))
            answers.append((answer.status, json.loads(answer.body)))

        client = threading.Thread(target=ask)
        client.start()
        while client.is_alive():
            self.turn()
            client.join(0.01)
        return answers[0]

    def joins(self, said: str = OVER) -> None:
        with pytest.raises(ValueError, match=said):
            self.manager.answer(Hello("actor", boot(9), 0, UID))

    def turn(self) -> None:
        self.control.carry_out(self.manager.carry_out)
        self.manager.turn()

    def turned(self) -> list[str]:
        self.turn()
        return self.events()

    def events(self) -> list[str]:
        return [event["kind"] for event in self.manager.events.since(0)[0]]


@pytest.fixture
def rest(layout: Layout, folder: Path) -> Iterator[Rest]:
    rest = Rest(layout, folder)
    yield rest
    rest.control.close()


def test_a_run_folder_says_that_the_run_is_finished_even_when_it_is_torn(layout: Layout) -> None:
    assert read_end(layout) is None
    record_end(layout, RunEnd("2026-11-21T19:00:00+00:00", MET, 3))
    assert read_end(layout) == RunEnd("2026-11-21T19:00:00+00:00", MET, 3, released=False)
    (layout.run / "finished.json").write_text('{"at')
    torn = read_end(layout)
    assert torn is not None
    assert torn.met == OVER


def test_its_status_is_the_last_one_and_says_finished(rest: Rest) -> None:
    status = rest.manager.status
    assert (status["run"], status["phase"], status["problems"]) == ("r", "finished", [])
    assert status["stop"] == {"conditions": {"agent_steps": 5000}, "met": MET}


def test_a_status_that_cannot_be_read_is_still_finished(layout: Layout, folder: Path) -> None:
    (layout.results / "status.json").write_text("{")
    rest = Rest(layout, folder)
    rest.control.close()
    status = rest.manager.status
    assert (status["run"], status["phase"], status["stop"]["met"]) == ("r", "finished", MET)


def test_whoever_still_runs_is_told_to_stop_and_what_it_says_is_kept(rest: Rest) -> None:
    with pytest.raises(ValueError, match="the run is finished"):
        rest.manager.answer(Hello("actor", boot(3), 0, UID))
    orders = rest.manager.answer(Report("actor", boot(3), 3, log=["last words"]))
    assert isinstance(orders, Orders)
    assert (orders.stop, orders.known, orders.term) == (True, True, 3)
    assert rest.lines.since(0)[0] == ["last words"]


def test_it_stays_finished_by_the_settings_by_which_it_ended(rest: Rest) -> None:
    rest.manager.begin()
    assert not rest.manager.goes_on
    assert rest.order("/reload", {"live": {"stop": {"agent_steps": 4000}}}) == (200, {"changes": [], "resumed": False})
    assert rest.order("/stop") == (200, {"stopping": True})
    assert rest.order("/checkpoint")[0] == 400
    assert read_end(rest.layout) is not None


def test_it_goes_on_by_settings_that_it_does_not_meet(rest: Rest) -> None:
    rest.manager.begin()
    assert rest.order("/reload", {"live": {"stop": {"agent_steps": 9000}}}) == (200, {"changes": [], "resumed": True})
    assert rest.manager.goes_on
    assert read_end(rest.layout) is None
    assert rest.events() == ["resume"]


def test_settings_that_changed_while_nobody_answered_are_seen_at_the_start(rest: Rest) -> None:
    rest.settings = spec()
    rest.manager.begin()
    assert rest.manager.goes_on


def test_a_run_that_was_stopped_on_request_goes_on_only_when_it_is_asked_to(layout: Layout, folder: Path) -> None:
    rest = Rest(layout, folder, met=ON_REQUEST)
    try:
        rest.settings = spec()
        rest.manager.begin()
        assert not rest.manager.goes_on
        assert rest.order("/reload") == (200, {"changes": [], "resumed": True})
    finally:
        rest.control.close()


def test_its_pods_are_given_back_once_and_it_is_remembered(layout: Layout, folder: Path, tmp_path: Path) -> None:
    def release() -> Release:
        return Release(workloads("deployments/r-actor-0"), cluster(tmp_path / "account"), server.connect)

    with serving("deployments/r-actor-0") as server:
        rest = Rest(layout, folder, release=release())
        try:
            rest.manager.begin()
            wait_until(lambda: rest.turned() == ["release"], "the release")
            rest.turn()
        finally:
            rest.control.close()
        assert rest.events() == ["release"]
        assert server.replicas == {"deployments/r-actor-0": 0}
        end = read_end(layout)
        assert end is not None
        assert end.released
        asked = len(server.asked)
        again = Rest(layout, folder, release=release(), end=end)
        again.control.close()
        again.manager.begin()
        assert not begun(again.release), "a user may have scaled it up since"
        assert len(server.asked) == asked


def test_a_full_volume_ends_no_manager_that_has_given_its_pods_back(
    layout: Layout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = Rest(layout, folder)
    rest.control.close()
    rest.release.said, rest.release.done = "the run is over", True

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("rlctl_agents.manager.lifecycle.finished.record_end", full)
        rest.manager.turn()
    rest.now += 5
    rest.manager.turn()
    end = read_end(layout)
    assert end is not None
    assert end.released


def test_pods_that_somebody_has_scaled_up_are_given_back_again_when_they_stay(
    layout: Layout, folder: Path, tmp_path: Path
) -> None:
    with serving("deployments/r-actor-0") as server:
        releases = [
            Release(workloads("deployments/r-actor-0"), cluster(tmp_path / "account"), server.connect) for _ in range(2)
        ]
        rest = Rest(layout, folder, release=releases[0], others=releases[1:])
        try:
            rest.manager.begin()
            wait_until(lambda: rest.turned() == ["release"], "the release")
            rest.joins()  # one that takes its time to end
            rest.now += PATIENCE_S + 1
            assert rest.turned() == ["release"]
            assert not begun(releases[1]), "nothing runs there any more"

            server.replicas["deployments/r-actor-0"] = 5
            for _ in range(5):
                rest.joins()
                rest.turned()
                rest.now += PATIENCE_S / 4
            wait_until(lambda: rest.turned() == ["release", "release"], "the second release")
        finally:
            rest.control.close()
        assert server.replicas == {"deployments/r-actor-0": 0}


def test_a_run_that_is_said_to_go_on_is_released_no_more_and_stays_unfinished(
    layout: Layout, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlctl_agents.manager.lifecycle.scale_down.CANCEL_S", 60.0)
    with serving("deployments/r-actor-0", "deployments/r-evaluator") as server:
        under_way, go_on = threading.Event(), threading.Event()

        def slowly() -> http.client.HTTPConnection:
            under_way.set()
            assert go_on.wait(60)
            return server.connect()

        wanted = workloads("deployments/r-actor-0,deployments/r-evaluator")
        release = Release(wanted, cluster(tmp_path / "account"), slowly)
        cancel = release.cancel

        def cancelled() -> None:
            threading.Timer(0.2, go_on.set).start()  # the request stays in flight for a while
            cancel()

        monkeypatch.setattr(release, "cancel", cancelled)
        rest = Rest(layout, folder, ON_REQUEST, release=release)
        rest.settings = spec()
        try:
            rest.manager.begin()
            assert under_way.wait(60)
            assert rest.order("/reload") == (200, {"changes": [], "resumed": True})
            assert server.replicas == {"deployments/r-actor-0": 0, "deployments/r-evaluator": 5}
            release.said = "it has just been done"
            assert rest.turned() == ["resume"]
            assert read_end(layout) is None
        finally:
            rest.control.close()


def test_the_names_of_workloads_come_from_the_mounted_file_where_there_is_one(tmp_path: Path) -> None:
    live = tmp_path / "live.json"
    assert not workloads_of(live)
    (tmp_path / "workloads").write_text("deployments/a,deployments/b\n")
    assert workloads_of(live) == "deployments/a,deployments/b"


VAIN = "stop.wall_time of 40 s is over, and nothing was ever learned from: no learner had joined"


@pytest.fixture
def untaught(layout: Layout) -> Layout:
    """A run that never learned from anything."""
    for path in layout.results.glob("progress*"):
        path.unlink()
    return layout


@pytest.mark.parametrize("found", [False, True])
def test_a_failed_run_says_why_and_stays_so_whatever_the_settings(untaught: Layout, folder: Path, found: bool) -> None:
    end = RunEnd("2026-11-21T19:00:00+00:00", VAIN, 3, released=found, failed=True)
    rest = Rest(untaught, folder, end=end, found=found)
    rest.control.close()
    rest.manager.begin()
    assert not rest.manager.goes_on, "only a person can say that it shall"
    status = rest.manager.status
    assert (status["phase"], status["stop"]["met"]) == ("failed", None)
    assert status["failure"] == {"process": "manager/0", "text": VAIN, "at": end.at}
    assert [one["text"] for one in status["problems"]] == [VAIN]
    known = read_end(untaught)
    assert known is not None
    assert known.failed


def test_a_failed_run_goes_on_when_it_is_asked_to(untaught: Layout, folder: Path) -> None:
    rest = Rest(untaught, folder, end=RunEnd("2026-11-21T19:00:00+00:00", VAIN, 3, failed=True))
    try:
        rest.manager.begin()
        rest.joins(FAILED)
        assert not rest.manager.goes_on, "a process of before that comes late"
        assert rest.order("/reload", {"live": {"stop": {"agent_steps": 5000}}})[1]["resumed"] is True
        assert read_end(untaught) is None
        assert rest.manager.events.since(0)[0][-1]["text"] == GOES_ON
    finally:
        rest.control.close()


def test_a_failed_run_whose_pods_were_given_back_goes_on_as_soon_as_others_join_a_manager_that_was_started_again(
    untaught: Layout, folder: Path
) -> None:
    end = RunEnd("2026-11-21T19:00:00+00:00", VAIN, 3, released=True, failed=True)
    rest = Rest(untaught, folder, end=end, found=True)
    rest.control.close()
    rest.manager.begin()
    assert not rest.manager.over
    rest.joins(FAILED)
    assert rest.manager.goes_on
    assert read_end(untaught) is None


def test_a_failed_run_whose_pods_may_not_be_given_back_goes_on_when_its_manager_is_started_again(
    untaught: Layout, folder: Path
) -> None:
    rest = Rest(untaught, folder, end=RunEnd("2026-11-21T19:00:00+00:00", VAIN, 3, failed=True), found=True)
    rest.control.close()
    rest.manager.begin()
    assert rest.manager.goes_on
