"""Files of a run that is over, as the pod beside its volume hands them out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.manager.web.files_server import answers
from rlctl_agents.runtime.http_server import Request
from tests.roles.test_main import environment
from tests.roles.test_tensorboard_server import ask
from tests.support.fakes import wait_until
from tests.support.ports import free_ports


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "run")
    layout.make()
    (layout.models / "best.json").write_bytes(b"0123456789")
    (layout.results / "status.json").write_bytes(b"{}")
    return layout


@pytest.mark.parametrize(
    ("method", "path", "query", "status"),
    [
        ("GET", "/files", {"folder": "models"}, 200),
        ("GET", "/files", {"folder": "run"}, 400),
        ("GET", "/files", {"folder": "results", "name": "status.json", "offset": "0", "length": "9"}, 404),
        ("POST", "/files", {"folder": "models"}, 405),
        ("GET", "/status", {}, 404),
        ("POST", "/init", {}, 404),
        ("GET", "/", {}, 404),
    ],
)
def test_it_hands_out_files_and_nothing_else(
    layout: Layout, method: str, path: str, query: dict[str, str], status: int
) -> None:
    answer = answers(layout.root)(Request(method, path, query))
    assert answer.status == status
    if status == 200:
        assert json.loads(answer.body) == {"files": {"best.json": 10}}


@pytest.mark.processes
def test_the_program_serves_on_its_loopback_until_it_is_told_to_end_and_writes_nothing(layout: Layout) -> None:
    before = {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")}
    (port,) = free_ports(1)
    words = ["files", "--run-dir", str(layout.root), "--port", str(port), "--run", "pole"]
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "rlctl_agents", *words],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: ask(port, "/files?folder=models")[0] == 200, "the files", timeout_s=90)
        tcp = Path(f"/proc/{process.pid}/net/tcp").read_text() + Path(f"/proc/{process.pid}/net/tcp6").read_text()
        process.send_signal(signal.SIGTERM)
        out, imported = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    listening = [line.split()[1] for line in tcp.splitlines() if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]
    assert process.returncode == 0, out
    lines = [json.loads(text) for text in out.splitlines()]
    assert lines[-1]["msg"] == "ended in good order"
    assert {line["role"] for line in lines} == {"files"}
    assert {path: path.stat().st_mtime_ns for path in layout.root.rglob("*")} == before
    modules = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "rlctl_agents.manager.web.stored_files" in modules
    assert not modules & {"torch", "gymnasium"}


@pytest.mark.processes
def test_a_run_without_a_folder_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlctl_agents", "files", "--run-dir", str(tmp_path / "gone"), "--port", "0"],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert json.loads(done.stdout.splitlines()[-1])["msg"].startswith(f"there is no {tmp_path / 'gone'} on the volume")
