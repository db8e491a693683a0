"""A supervisor that ends, or does not answer, in the middle: what is written then, and what is said of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socketserver
import threading
import xmlrpc.client
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from rlctl.backends.base import Document
from rlctl.backends.local import LocalBackend
from rlctl.backends.local.access import listing
from rlctl.backends.local.state import lock, places, run_state
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Conflict, PartlyApplied
from tests.backends.local.machine import Machine, read_only, role_plan, until, whats
from tests.backends.local.state.test_damaged_index import enter


@pytest.fixture
def place(homes: Path) -> Iterator[Place]:
    """A run that counts as live: its life is locked."""
    made = enter(homes, "one")
    stored = run_state.read_stored(made)
    assert stored is not None
    run_state.write_state(made.layout, replace(stored, phase="running"))
    run_state.write_documents(made.layout, [Document("programs/actor.conf", "command = x\n", "actor")])
    with lock.life(made.life):
        yield made


@contextlib.contextmanager
def answering(path: Path, answers: int, value: Any = 4711) -> Iterator[None]:
    """A supervisor that answers so many requests, all alike, and then breaks off."""
    left = answers

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

        def do_POST(self) -> None:
            nonlocal left
            self.rfile.read(int(self.headers["Content-Length"]))
            if left:
                left -= 1
                body = xmlrpc.client.dumps((value,), methodresponse=True).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/xml")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    with socketserver.UnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def files_of(place: Place) -> dict[Path, str]:
    return {path: path.read_text() for path in place.layout.run.rglob("*") if path.is_file()}


def test_scale_writes_nothing_when_the_supervisor_does_not_answer(place: Place) -> None:
    before = files_of(place)
    with pytest.raises(BackendUnreachable, match="does not listen") as caught:
        list(LocalBackend().scale("one", {"actor": 3}))
    assert caught.value.exit_code == 4
    assert files_of(place) == before


def test_scale_changes_nothing_where_the_documents_of_a_run_are_gone(place: Place) -> None:
    (place.layout.run / "documents.json").unlink()
    before = files_of(place)
    with pytest.raises(Conflict, match="the documents of run one are gone"):
        list(LocalBackend().scale("one", {"actor": 3}))
    assert files_of(place) == before


def test_scale_is_partly_applied_when_the_supervisor_breaks_off_in_between(place: Place) -> None:
    with answering(place.supervisor_socket, 1), pytest.raises(PartlyApplied) as caught:
        list(LocalBackend().scale("one", {"actor": 3}))
    assert caught.value.exit_code == 8
    assert "the same command again" in caught.value.hint
    found = run_state.read(place)
    assert found is not None
    assert found.replicas == {"actor": 3}


def test_a_supervisor_that_a_signal_ended_is_told_so(place: Place) -> None:
    ended = replace(place, uid="f" * 32, run="two")  # nobody holds its life
    ended.layout.make()
    stored = run_state.read_stored(place)
    assert stored is not None
    run_state.write_state(ended.layout, replace(stored, run="two", uid="f" * 32))
    log = ended.layout.logs / "supervisord.log"
    line = "2026-11-21 21:00:03,000 WARN received SIGTERM indicating exit request"
    log.write_text(f"2026-11-21 21:00:00,000 INFO supervisord started with pid 7\n{line}\n")
    found = run_state.read(ended)
    assert found is not None
    assert found.failure is not None
    assert found.failure.text.startswith("supervisord received SIGTERM and ended the run")
    assert found.failure.last_lines == (line,)

    log.write_text(log.read_text() + "2026-11-21 22:00:00,000 INFO supervisord started with pid 8\n")
    found = run_state.read(ended)
    assert found is not None
    assert found.failure is not None
    assert "without a word" in found.failure.text, "what an earlier supervisor was told ended no later one"


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_sigterm_to_the_supervisor_is_what_status_reports(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    os.kill(machine.supervisor_pid("one"), signal.SIGTERM)
    until(lambda: machine.phase("one") == "failed", "the supervisor to end")
    found = machine.backend.find("one")
    assert found is not None
    assert found.failure is not None
    assert found.failure.text.startswith("supervisord received SIGTERM")


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_what_an_interrupted_scale_left_is_shown_and_the_same_scale_adds_it(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    layout = machine.backend.place("one").layout
    known = machine.backend.find("one")
    assert known is not None
    run_state.write_state(layout, replace(known, replicas={"manager": 1, "actor": 2}))
    assert machine.processes("one")["actor/1"].reason == listing.NOT_ADDED
    list(machine.backend.scale("one", {"actor": 2}))
    until(lambda: len(machine.pids("one")) == 3, "the second actor")


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_run_is_stopped_on_a_file_system_that_is_only_read(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    said: list[str] = []
    machine.backend.waiting = said.append
    with monkeypatch.context() as patch:
        read_only(patch)
        removed = [each.object for each in machine.backend.delete("one", volumes=False, grace_s=5)]
    assert removed == ["actor/0", "manager/0", "supervisord"]
    assert not machine.survivors()
    assert said[-1].startswith("cannot record that run one was stopped: ")
    assert said[-1].endswith("Read-only file system")


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_scale_and_up_go_on_when_tmp_was_cleared_of_old_files(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    link = machine.backend.place("one").sockets / places.LINK
    link.unlink()
    assert whats(machine.backend.scale("one", {"actor": 2}))["actor/1"] == "created"
    link.unlink()
    assert whats(machine.up("one", role_plan("manager"), role_plan("actor", 3)))["actor/2"] == "created"
