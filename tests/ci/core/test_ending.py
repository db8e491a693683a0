"""SIGTERM of the service while a build is stuck and a page is followed: seconds, in words, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl_ci.config.settings import load
from rlctl_ci.core.service import Service
from tests.ci.web.test_slow import pushed
from tests.ci.world import no_hands
from tests.end_to_end.conftest import wait_until
from tests.support.ports import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]
SECONDS = 10.0
"""On a machine that is busy with something else; less than one where it is not."""


class Stuck:
    """`rlctl ci serve` with one build, which asks a repository that never answers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.silent = folder, socket.create_server(("127.0.0.1", 0))
        (self.port,) = free_ports(1)
        (folder / "secret").write_text("a secret of sixteen or more\n")
        project = {
            "forge": "github", "repository": f"https://127.0.0.1:{self.silent.getsockname()[1]}/x.git",
            "secret_file": "secret", "run": "pole", "poll_s": 0,
        }  # fmt: skip
        content = {"listen": f"127.0.0.1:{self.port}", "state": "state", "projects": {"pole": project}}
        (folder / "ci.yaml").write_text(yaml.safe_dump(content))
        homes = {name: str(folder / name) for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        with (folder / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rlctl", "ci", "serve"], cwd=folder, env={**os.environ, **homes},
                stdout=said, stderr=said, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        wait_until(self._listens, timeout_s=60, what="the service")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def rows(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.folder}/state/ci.db?mode=ro", uri=True, timeout=30)) as database:
            return database.execute(statement).fetchall()

    @property
    def said(self) -> str:
        return (self.folder / "said").read_text()


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[Stuck]:
    found = Stuck(tmp_path)
    yield found
    found.process.kill()
    found.process.wait(30)
    found.silent.close()


@pytest.mark.parametrize("who", ["follows a page", "does not read a log"])
def test_sigterm_ends_a_service_with_a_stuck_build_in_seconds_and_the_next_life_finds_it_interrupted(
    stuck: Stuck, who: str
) -> None:
    assert pushed(stuck.port, 1) == 202
    wait_until(lambda: stuck.rows("SELECT state FROM builds") == [("fetching",)], timeout_s=60, what="the build")
    asked, _ = stuck.silent.accept()  # now it is asked, and does not answer
    (stuck.folder / "state" / "logs" / "1.log").write_bytes(b"x" * (16 << 20))
    path = "/live" if who == "follows a page" else "/api/v1/builds/1/log"
    with asked, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", stuck.port))
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{stuck.port}\r\n\r\n".encode())
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        stuck.process.send_signal(signal.SIGTERM)
        assert stuck.process.wait(60) == 143
        assert time.monotonic() - began < SECONDS
    assert "Traceback" not in stuck.said
    assert "rror" not in stuck.said

    assert stuck.rows("SELECT state, attempts FROM builds") == [("queued", 0)], "an orderly end costs no attempt"
    next_life = Service(load(stuck.folder / "ci.yaml"), no_hands)
    try:
        assert next_life.queue.recover(at_start=True) == []
        events = [(state, note) for _, state, note in next_life.reading.events(1)]
    finally:
        next_life.close()
    why = "the service ends; its next life goes on with this build"
    assert events[-2:] == [("interrupted", why), ("queued", f"again in 0 s: {why}")]
