"""Curves of a run, shown to those that may look."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from tests.roles.test_main import environment
from tests.support.fakes import wait_until
from tests.support.ports import free_ports

pytestmark = pytest.mark.processes


def ask(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except ConnectionRefusedError:
        return 0, b""
    finally:
        connection.close()


def test_tensorboard_shows_the_curves_and_writes_nothing_beside_them(tmp_path: Path) -> None:
    curves = CurveWriter(tmp_path / "tensorboard", 1)
    curves.add(100, {"return/train": 7.0})
    curves.close()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "tensorboard").chmod(0o500)
    (port,) = free_ports(1)
    words = ["tensorboard", "--logdir", str(tmp_path / "tensorboard"), "--port", str(port), "--bind", "127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rlctl_agents", *words, "--run", "cartpole"],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: ask(port, "/")[0] == 200, "the page", timeout_s=90)
        wait_until(lambda: b"return/train" in ask(port, "/data/plugin/scalars/tags")[1], "the curve", timeout_s=60)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
        (tmp_path / "tensorboard").chmod(0o700)
    assert process.returncode == 0, out
    lines = [json.loads(text) for text in out.splitlines()]
    assert lines[-1]["msg"] == "ended in good order"
    assert {line["role"] for line in lines} == {"tensorboard"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_address_that_is_no_number_is_the_users_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlctl_agents", "tensorboard", "--logdir", str(tmp_path), "--bind", "localhost"],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "by number" in json.loads(done.stdout.splitlines()[-1])["msg"]
