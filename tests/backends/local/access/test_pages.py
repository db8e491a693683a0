"""A page of a run in a browser: the manager's, behind its Unix socket, and TensorBoard's."""

from __future__ import annotations

import os
import socket
import socketserver
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError, URLError

import psutil
import pytest

from rlctl.backends.local import LocalBackend, doctor
from rlctl.backends.local.state import lock, places
from rlctl.backends.local.state.places import Place
from rlctl.errors import BackendUnreachable, Conflict

ROOT = Path(__file__).parents[4]


@pytest.fixture
def place(homes: Path) -> Iterator[Place]:
    """A run that lives, as far as can be told from outside."""
    made = replace(places.place("one"), uid="0" * 32, sockets=homes / "r" / "rlctl" / "00000000", recorded=True)
    made.layout.make()
    places.record(made)
    places.make_sockets(made.sockets)
    with lock.life(made.life):
        yield made


@pytest.fixture
def real_agents(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rlctl_agents` is the package of this tree, not the fake one."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / part) for part in ("", "agents")))


class Page(BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        body = f"page {self.path} ".encode() * 50_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def manager(place: Place) -> Iterator[None]:
    with Server(str(place.sockets / "manager-0.probe"), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


class Browser:
    """Opens what it is given, and keeps cookies."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def read(self, url: str) -> bytes:
        with self._opener.open(url, timeout=60) as answer:
            return bytes(answer.read())


def test_the_managers_page_is_behind_a_port_of_the_loopback_as_long_as_it_is_open(place: Place, manager: None) -> None:
    browser = Browser()
    with LocalBackend().forward("one", "status") as url:
        assert url.startswith("http://127.0.0.1:")
        assert browser.read(url) == b"page / " * 50_000
        answers, plain = [], url.partition("?")[0]
        readers = [
            threading.Thread(target=lambda n=n: answers.append(browser.read(f"{plain}{n}")))  # type: ignore[misc]
            for n in range(6)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert len(answers) == 6
    with pytest.raises(URLError):
        browser.read(plain)


@pytest.mark.usefixtures("real_agents")
@pytest.mark.parametrize("what", ["status", pytest.param("tensorboard", marks=pytest.mark.processes)])
def test_another_user_of_the_machine_reads_no_page(
    place: Place, manager: None, what: Literal["status", "tensorboard"]
) -> None:
    (place.layout.results / "tensorboard").mkdir()
    with LocalBackend().forward("one", what) as url:
        plain = url.partition("?")[0]
        for other in (plain, "/".join(url.split("/")[:3]) + "/", plain + "data/runs"):
            with pytest.raises(HTTPError, match="403") as refused:
                Browser().read(other)
            refused.value.close()
        Browser().read(url)
        with pytest.raises(HTTPError, match="403") as refused:
            Browser().read(url)
        assert f"rlctl open {what} one" in refused.value.read().decode()
    with LocalBackend().forward("one", what) as again:
        assert again != url, "another token"


def test_a_manager_that_does_not_listen_is_said(place: Place) -> None:
    with pytest.raises(BackendUnreachable, match="does not listen"), LocalBackend().forward("one", "status"):
        pass


def test_a_manager_that_goes_away_is_said_in_the_browser(place: Place, manager: None) -> None:
    with LocalBackend().forward("one", "status") as url:
        (place.sockets / "manager-0.probe").unlink()
        with pytest.raises(HTTPError, match="502") as refused:
            Browser().read(url)
        assert b"is the run still there?" in refused.value.read()


def test_a_run_that_is_over_and_has_left_nothing_has_no_pages(homes: Path) -> None:
    made = replace(places.place("one"), recorded=True)
    made.layout.make()
    places.record(made)
    with pytest.raises(Conflict, match="has left no figures"), LocalBackend().forward("one", "status"):
        pass
    with pytest.raises(Conflict, match="no curves yet"), LocalBackend().forward("one", "tensorboard"):
        pass
    with pytest.raises(Conflict, match="no run two"), LocalBackend().forward("two", "status"):
        pass


@pytest.mark.processes
@pytest.mark.usefixtures("real_agents")
def test_tensorboard_serves_the_curves_at_no_port_of_its_own_and_ends_with_the_block(place: Place) -> None:
    (place.layout.results / "tensorboard").mkdir()
    with LocalBackend().forward("one", "tensorboard") as url:
        assert b"TensorBoard" in Browser().read(url)
        (child,) = psutil.Process().children()
        assert "tensorboard" in child.cmdline()
        assert child.net_connections("inet") == [], "any user could ask it"
        (path,) = {Path(one.laddr) for one in child.net_connections("unix") if one.laddr and one.laddr.startswith("/")}
        assert path.stat().st_mode & 0o077 == 0
        assert path.parent.stat().st_mode & 0o077 == 0
        port = int(url.split("/")[2].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass
    assert not child.is_running()
    assert not path.parent.exists()


@pytest.mark.processes
@pytest.mark.usefixtures("real_agents")
def test_a_run_that_is_over_has_the_page_of_what_it_has_stored(homes: Path) -> None:
    made = replace(places.place("one"), recorded=True)
    made.layout.make()
    places.record(made)
    results = made.layout.results
    (results / "status.json").write_text('{"run": "one", "phase": "running"}')
    before = {path: path.stat().st_mtime_ns for path in made.layout.root.rglob("*")}
    with LocalBackend().forward("one", "status") as url:
        assert "one: over" in Browser().read(url).decode()
        (child,) = psutil.Process().children()
        assert child.net_connections("inet") == [], "any user could ask it"
    assert not child.is_running()
    assert {path: path.stat().st_mtime_ns for path in made.layout.root.rglob("*")} == before
    (results / "status.json").write_text("{")
    with (
        pytest.raises(BackendUnreachable, match="the page did not start: the last figures of the run cannot be read"),
        LocalBackend().forward("one", "status"),
    ):
        pass


@pytest.mark.processes
@pytest.mark.usefixtures("real_agents")
def test_why_tensorboard_does_not_start_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.layout.results / "tensorboard").mkdir()
    monkeypatch.setenv("TMPDIR", str(deep := place.layout.results / ("x" * 100)))
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    with (
        pytest.raises(BackendUnreachable, match=r"cannot listen at .*xxx/.*too long"),
        LocalBackend().forward("one", "tensorboard"),
    ):
        pass


def test_doctor_looks_at_packages_disk_sockets_files_and_machine(homes: Path) -> None:
    found = doctor.look()
    assert [check.name for check in found] == ["system", "packages", "disk", "sockets", "open files", "machine"]
    assert all(check.verdict in ("ok", "warning") for check in found), found
    assert not (homes / "state").exists(), "it changes nothing"


def test_doctor_says_when_the_state_folder_cannot_be_written(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    disk = next(check for check in doctor.look() if check.name == "disk")
    assert disk.verdict == "problem"
    assert disk.next
