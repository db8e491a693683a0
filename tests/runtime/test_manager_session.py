"""Standing with the manager, over the real wire."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlctl.spec.schema import Env, Spec
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.process import Process
from rlctl_agents.types.control import MOST_NAMES, Account, Experience, Match, Origin, Sampling
from rlctl_agents.types.experience import Ledger, ModelRef, Schema
from rlctl_agents.types.spaces import Box, Discrete, Spaces
from rlctl_agents.wire.sockets import Wire
from tests.support.chain import opened_wire, private_folder
from tests.support.fakes import Manager, process_of, wait_until

SPEC = Spec(run="test", env=Env(id="-"))
SEEN = Experience(Spaces(Box((1,), "float32"), Discrete(2)), Schema(5, ()))


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        yield folder


@pytest.fixture
def wire() -> Iterator[Wire]:
    with opened_wire() as wire:
        yield wire


@pytest.fixture
def process(folder: Path) -> Process:
    return process_of("actor", Manager(folder), SPEC, name="actor-3")


def joined(process: Process, wire: Wire, snapshot: Snapshot = Snapshot()) -> ManagerSession:  # noqa: B008
    member = ManagerSession(process, wire, streams=4)
    assert member.join(SEEN) is not None
    member.start(lambda: snapshot)
    return member


def test_hello_says_who_we_are_and_the_lease_is_known_everywhere(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder, term=7) as manager:
        manager.index = 3
        member = joined(process, wire)
        (hello,) = manager.hellos
        assert (hello.role, hello.boot, hello.prefer, hello.streams) == ("actor", process.boot, 3, 4)
        assert hello.experience == SEEN
        assert (member.lease.index, member.term) == (3, 7)
        assert process.identity.id == "actor/3"
        assert member.peers_of("modelpool") == {0: manager.peers()["modelpool/0"]}
        member.close()


@pytest.mark.parametrize(
    ("variables", "origin"),
    [
        ({"RLCTL_NODE": "node-7", "RLCTL_IMAGE": "actor@sha256:1"}, Origin("node-7", "actor@sha256:1")),
        ({}, Origin(platform.node())),
    ],
)
def test_hello_says_on_which_node_and_of_which_image_we_run(
    folder: Path,
    wire: Wire,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    origin: Origin,
) -> None:
    for name in ("RLCTL_NODE", "RLCTL_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with Manager(folder) as manager:
        joined(process, wire).close()
        assert manager.hellos[0].origin == origin


def test_a_report_carries_metrics_and_books_and_the_last_one_comes_when_we_end(
    folder: Path, wire: Wire, process: Process
) -> None:
    with Manager(folder) as manager:
        books = Snapshot(sent={"l": Ledger(5, 0, 5)}, pending=2, model=ModelRef("main", 1, 2))
        member = joined(process, wire, books)
        process.metrics.add("env_steps", 10)
        wait_until(lambda: bool(manager.reports), "a report")
        process.metrics.add("env_steps", 32)
        member.close()
        last = manager.reports[-1]
        assert last.counters["env_steps"] == 42
        assert last.sent["l"].produced == 5
        assert (last.pending, last.model) == (2, ModelRef("main", 1, 2))


def test_accounts_are_told_when_they_change_and_to_a_new_manager_all_of_them(
    folder: Path, wire: Wire, process: Process
) -> None:
    gone, live = Account(Ledger(5, 0, 5), received=5, consumed=5), Account(Ledger(1, 0, 1), received=1, queued=1)
    books = {"gone": gone, "live": live}
    with Manager(folder, term=1) as manager:
        member = joined(process, wire, Snapshot(accounts=books))
        wait_until(lambda: len(manager.reports) >= 2, "two reports")
        assert [one.accounts for one in manager.reports[:2]] == [books, {}]
        changed = {"gone": gone, "live": Account(Ledger(1, 0, 1), received=1, consumed=1)}
        before = len(manager.reports)
        member.snapshot = lambda: Snapshot(accounts=changed)
        wait_until(lambda: any(one.accounts for one in manager.reports[before:]), "what has changed")
        assert [one.accounts for one in manager.reports[before:] if one.accounts] == [{"live": changed["live"]}]
    with Manager(folder, term=2, boot="manager2") as manager:
        wait_until(lambda: any(one.accounts == changed for one in manager.reports), "all of them")
        member.close()


def test_log_lines_are_told_until_a_manager_that_knows_us_has_them(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        wait_until(lambda: bool(manager.reports), "a report")
        manager.known = False
        before = len(manager.reports)
        process.recent._lines.add(["one", "two"])
        wait_until(lambda: len(manager.reports) > before + 1, "the lines")
        manager.known = True
        wait_until(lambda: bool(manager.reports) and not manager.reports[-1].log, "that they are known")
        process.recent._lines.add(["three"])
        member.close()
        told = [(one.log_from, one.log) for one in manager.reports if one.log]
        first = told[0][0]
        assert told[0] == (first, ["one", "two"])
        assert told[-1] == (first + 2, ["three"])


def test_orders_are_followed_as_they_change(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        assert member.match is None
        match = Match(1, {0: ModelRef("main", -1, -1)}, (0,), 5)
        manager.matches["actor"], manager.checkpoint = match, 4
        wait_until(lambda: member.match == match and member.checkpoint == 4, "the orders")
        assert not process.stop.is_set()
        manager.stop = True
        wait_until(process.stop.is_set, "the order to stop")
        assert process.dismissed
        member.close()


def test_a_generation_that_another_learner_has_saved_is_wanted_no_more(
    folder: Path, wire: Wire, process: Process
) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        manager.checkpoint = 4
        wait_until(lambda: member.wanted == 4, "the order")
        manager.checkpoint = 0
        wait_until(lambda: member.wanted == 0, "the end of it")
        assert member.checkpoint == 4, "another one gets a larger number"
        member.close()


def test_a_manager_that_restarts_is_greeted_again_and_its_term_taken(
    folder: Path, wire: Wire, process: Process
) -> None:
    with Manager(folder, term=1):
        member = joined(process, wire)
    with Manager(folder, term=2, boot="manager2") as manager:
        manager.known = False
        wait_until(lambda: member.term == 2, "the new term")
        assert [hello.boot for hello in manager.hellos] == [process.boot]
        wait_until(lambda: bool(manager.reports) and manager.reports[-1].term == 2, "a report under the new term")
        assert not process.stop.is_set()
        member.close()


def test_orders_of_a_manager_that_was_replaced_are_ignored(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder, term=5) as manager:
        member = joined(process, wire)
        manager.term, manager.stop = 4, True
        seen = len(manager.reports)
        wait_until(lambda: len(manager.reports) > seen + 2, "reports")
        assert not process.stop.is_set()
        assert member.term == 5
        member.close()


def test_a_process_whose_index_went_to_somebody_else_stops_and_says_so(
    folder: Path, wire: Wire, process: Process
) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        manager.index, manager.known = 9, False
        wait_until(process.stop.is_set, "the end")
        assert "index 0 went to another process" in member.moved
        member.close()


def test_a_process_that_cannot_report_any_more_ends_and_says_why(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder):
        member = joined(process, wire)
        member.snapshot = lambda: Snapshot(gauges={"odd": object()})  # type: ignore[dict-item]
        wait_until(process.stop.is_set, "the end")
        assert "it cannot report any more: TypeError" in member.moved
        member.close()


def test_numbers_of_numpy_are_reported_as_any_other(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        process.metrics.add("env_steps", np.int64(3))
        process.metrics.set("loss.x", np.float32(0.5))
        member.close()
        assert (manager.reports[-1].counters["env_steps"], manager.reports[-1].gauges["loss.x"]) == (3, 0.5)


def test_more_figures_than_a_report_may_hold_are_left_out(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        for number in range(MOST_NAMES + 5):
            process.metrics.set(f"layer.{number}", 1.0)
        process.metrics.set("world", 1.0)
        seen = len(manager.reports)
        wait_until(lambda: len(manager.reports) > seen + 2, "reports")
        member.close()
        gauges = manager.reports[-1].gauges
        assert (len(gauges), gauges["world"]) == (MOST_NAMES, 1.0)


def test_a_learner_waits_until_somebody_says_what_the_environment_looks_like(folder: Path, wire: Wire) -> None:
    with Manager(folder) as manager:
        process = process_of("learner", manager, SPEC)
        member = ManagerSession(process, wire)

        class Stop:
            """The wait between two hellos, in which an actor appears."""

            def is_set(self) -> bool:
                return False

            def wait(self, seconds: float) -> bool:
                manager.experience = SEEN
                return False

        process.stop = Stop()  # type: ignore[assignment]
        lease = member.join(needs_experience=True)
        assert lease is not None
        assert lease.experience == SEEN
        assert len(manager.hellos) == 2
        member.close()


def test_a_process_that_has_to_wait_is_ready_and_asks_again(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        manager.wait = "learner/1 must leave first"

        class Stop(threading.Event):
            """The wait between two hellos, in which the other leaves."""

            def wait(self, timeout: float | None = None) -> bool:
                assert process.pulse.ready
                manager.wait = ""
                return False

        process.stop = Stop()
        member = ManagerSession(process, wire)
        lease = member.join(SEEN)
        assert (lease is not None and lease.wait, len(manager.hellos)) == ("", 2)
        member.close()


def test_a_process_that_lost_its_lease_and_may_not_come_back_ends(folder: Path, wire: Wire, process: Process) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        manager.wait, manager.known = "learner/1 must leave first", False
        wait_until(process.stop.is_set, "the process to end")
        assert member.moved == "learner/1 must leave first"
        member.close()


def test_joining_ends_when_the_process_is_asked_to_stop(folder: Path, wire: Wire, process: Process) -> None:
    process.stop.set()
    assert ManagerSession(process, wire).join() is None


def test_a_process_that_is_asked_looks_at_itself_once_and_tells_the_manager(
    folder: Path, wire: Wire, process: Process
) -> None:
    with Manager(folder) as manager:
        member = joined(process, wire)
        manager.profile = Sampling("p1", 0.1)
        wait_until(lambda: bool(manager.profiles), "a profile")
        reports = len(manager.reports)
        wait_until(lambda: len(manager.reports) >= reports + 3, "more reports")
        (told,) = manager.profiles
        assert (told.id, told.role, told.boot) == ("p1", "actor", process.boot)
        assert told.samples > 0
        assert "MainThread" in told.frames
        member.close()
