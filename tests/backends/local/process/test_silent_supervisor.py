"""A supervisor that does not answer, and a run with an unreadable record: what runs is named, shown and ended."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from rlctl.backends.base import Applied, LogQuery
from rlctl.backends.local.process.daemon import Daemon
from rlctl.backends.local.process.unix_http import request
from rlctl.backends.local.state import run_state
from rlctl.cli.context import World
from rlctl.cli.run.snapshot import take
from rlctl.errors import BackendUnreachable, Unreadable
from tests.backends.local.machine import Machine, read_log, role_plan, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def test_down_kills_a_supervisor_that_does_not_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    monkeypatch.setattr("rlctl.backends.local.apply.down.ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rlctl.backends.local.apply.down.END_TIMEOUT_S", 1.0)
    os.kill(machine.supervisor_pid("one"), signal.SIGSTOP)
    removed = list(machine.backend.delete("one", volumes=False, grace_s=1.0))
    assert removed[-1] == Applied("supervisord", "removed", "killed: it did not answer")
    until(lambda: not machine.survivors(), "all children to die")
    assert machine.phase("one") == "stopped"


def test_a_verb_that_waits_for_a_frozen_supervisor_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    monkeypatch.setattr("rlctl.backends.local.apply.down.ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rlctl.backends.local.apply.down.END_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rlctl.waiting.HEARTBEAT_S", 0.01)  # the first line is due long before half a second
    said: list[str] = []
    machine.backend.waiting = said.append
    pid = machine.supervisor_pid("one")
    os.kill(pid, signal.SIGSTOP)
    list(machine.backend.delete("one", volumes=False, grace_s=1.0))
    assert said[0] == f"waiting for supervisord (pid {pid}) since 0 s, 1 s at most"
    assert said[-1] == f"supervisord (pid {pid}) does not end: killed"


def test_status_of_a_frozen_supervisor_answers_within_seconds_and_says_how_to_wake_it(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    until(lambda: machine.backend.control("one", "GET", "/status")["phase"] == "running", "the manager")
    pid = machine.supervisor_pid("one")
    os.kill(pid, signal.SIGSTOP)
    pauses: list[float] = []
    snapshot = take(World(sleep=pauses.append), machine.backend, "one")
    os.kill(pid, signal.SIGCONT)
    assert pauses == [], "it is asked once, for the three seconds that are told below"
    assert snapshot is not None
    assert snapshot.answered, "the manager goes on, and its figures are shown"
    assert snapshot.problems() == [
        {
            "text": f"supervisord (pid {pid}) does not answer within 3 s: a signal has stopped it",
            "next": f"kill -CONT {pid}",
        }
    ]
    until(lambda: len(machine.pids("one")) == 2, "the supervisor to answer again")


def test_a_supervisor_is_found_when_its_pid_file_is_torn_and_its_sockets_would_lie_elsewhere_now(
    machine: Machine,
) -> None:
    machine.up("one", role_plan("manager"))
    pid, place = machine.supervisor_pid("one"), machine.backend.place("one")
    (place.layout.run / "supervisord.pid").write_text("\0\0")
    assert Daemon(replace(place, sockets=place.sockets.parent.parent / "other" / place.sockets.name)).pid() == pid


def test_down_ends_a_run_whose_state_is_torn_and_keeps_the_file_as_it_is(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("actor", 1)
    machine.up("one", *roles)
    until(lambda: "actor-0 starts" in read_log(machine, "one", "actor-0"), "the actor")
    path = run_state.state_file(machine.backend.place("one").layout)
    path.write_text('{"format": 1, "run": "o')
    assert [record.process for record in machine.backend.logs("one", LogQuery(role="actor"))] == ["actor/0"]

    removed = [each.object for each in machine.backend.delete("one", volumes=False, grace_s=5)]

    assert removed == ["actor/0", "manager/0", "supervisord"]
    assert not machine.survivors()
    assert path.read_text() == '{"format": 1, "run": "o'
    with pytest.raises(Unreadable, match=r"state\.json does not hold the state of run one") as caught:
        machine.up("one", *roles)
    assert "Move the file away to go on" in caught.value.hint
    path.rename(path.with_name("state.json.unreadable-1"))
    machine.up("one", *roles)
    assert machine.phase("one") == "running", "moved away, the run goes on in its folder"


def test_down_ends_a_run_whose_state_is_torn_and_whose_supervisor_is_frozen(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    monkeypatch.setattr("rlctl.backends.local.apply.down.ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rlctl.backends.local.apply.down.END_TIMEOUT_S", 1.0)
    pid, layout = machine.supervisor_pid("one"), machine.backend.place("one").layout
    for name in ("state.json", "supervisord.pid"):
        (layout.run / name).write_text("\0")
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(BackendUnreachable):
        machine.backend.find("one")
    list(machine.backend.delete("one", volumes=False, grace_s=1.0))
    until(lambda: not machine.survivors(), "everything to die")


def test_who_does_not_answer_is_named_while_it_is_waited_for(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlctl.waiting.HEARTBEAT_S", 0.01)
    said: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(homes / "deaf"))
        listener.listen()
        with pytest.raises(BackendUnreachable, match=r"the manager did not answer within 0\.35 s"):
            request(homes / "deaf", "GET", "/status", timeout_s=0.35, who="the manager", say=said.append)
    assert said[0] == "waiting for the manager since 0 s, 0.35 s at most"
