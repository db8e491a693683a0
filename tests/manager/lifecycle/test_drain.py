"""SIGTERM: what is saved, what is sent, and that it does not take longer than it may."""

from __future__ import annotations

import hashlib
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.envs.base import EnvError
from rlctl_agents.roles import actor, learner
from rlctl_agents.runtime.manager_session import ManagerSession, Snapshot
from rlctl_agents.runtime.process import STOP_S, Process, open_wire, run_role
from rlctl_agents.types.control import Match
from rlctl_agents.types.experience import ModelRef
from tests.roles.test_main import environment
from tests.support.chain import private_folder
from tests.support.fakes import RUN, Manager, Pool, process_of, running, wait_until
from tests.support.ports import free_ports
from tests.support.workers.small import SPEC, consumed


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        Layout(folder).make()
        yield folder


class OffHost(Manager):
    """A manager at a port: its clients take themselves to be on another machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.port,) = free_ports(1)
        self.matches["actor"] = Match(1, {0: ModelRef("main", -1, -1)}, (0,), 7)

    def __enter__(self) -> OffHost:
        super().__enter__()
        return self

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"


@pytest.fixture
def manager(folder: Path) -> Iterator[OffHost]:
    with OffHost(folder) as manager:
        yield manager


def command(folder: Path, role: str, manager: Manager) -> list[str]:
    run_file = folder / f"{role}.json"
    spec = SPEC.model_dump(mode="json")
    run_file.write_text(json.dumps({"format": 1, "run": "test", "uid": RUN, "role": role, "spec": spec}))
    return [
        role, "--name", f"test-{role}-0", "--run-file", str(run_file), "--manager", manager.address,
        "--probe", f"unix:{folder}/{role}.probe", "--volume", str(folder), "--ordinal", f"test-{role}-0",
    ]  # fmt: skip


def started(folder: Path, role: str, manager: Manager) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "rlctl_agents", *command(folder, role, manager)]
    return subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, text=True)


def drained(process: subprocess.Popen[str]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds from SIGTERM to the end, and what it said."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=STOP_S + 10)
    assert process.returncode == 0, out
    return time.monotonic() - began, [json.loads(line) for line in out.splitlines()]


@pytest.mark.processes
def test_a_learner_that_is_asked_to_go_leaves_a_valid_generation_within_ten_seconds(
    folder: Path, manager: OffHost
) -> None:
    with Pool(folder), running(actor.main, process_of("actor", manager, SPEC)):
        process = started(folder, "learner", manager)
        try:
            wait_until(lambda: consumed(manager) >= 400, "ten updates", timeout_s=100)
            seconds, _ = drained(process)
        finally:
            process.kill()
            process.communicate()
    assert seconds < STOP_S
    last, report = manager.commits[-1].generation, manager.newest("learner")
    assert report is not None
    assert last.steps == report.counters["consumed_steps"], "nothing that was learned is lost"
    part = Layout(folder).checkpoints / last.parts["learner"]
    assert hashlib.sha256(part.read_bytes()).hexdigest() == last.sha256["learner"]


@pytest.mark.processes
def test_an_actor_that_is_asked_to_go_ends_in_time_although_nobody_takes_what_it_has(
    folder: Path, manager: OffHost
) -> None:
    process = started(folder, "actor", manager)
    try:
        with Pool(folder) as pool:
            with running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
                wait_until(lambda: consumed(manager) >= 80, "updates", timeout_s=100)
            wait_until(lambda: pool.newest is not None, "weights")
            seconds, said = drained(process)
    finally:
        process.kill()
        process.communicate()
    assert seconds < STOP_S
    assert said[-1]["msg"] == "ended in good order"
    report = manager.newest("actor")
    assert report is not None
    assert report.gauges["stopping"] == 1


def ending(error: Exception) -> Any:
    """A role that joins and fails."""

    def main(process: Process) -> None:
        process.explained = (EnvError,)
        wire = open_wire(process.arguments)
        member = ManagerSession(process, wire)
        try:
            assert member.join() is not None
            member.start(Snapshot)
            process.metrics.add("env_steps", 7)
            raise error
        finally:
            member.close()
            wire.close()

    return main


@pytest.fixture
def quiet() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, threading.excepthook
    yield
    root.handlers[:], root.level, threading.excepthook = handlers, level, hook
    logging.captureWarnings(False)


@pytest.mark.usefixtures("quiet")
def test_why_a_process_ended_reaches_the_manager_although_its_pod_is_gone(folder: Path, manager: OffHost) -> None:
    error = EnvError.at("step returned NaN reward", "pong", 41, 7)
    assert run_role(command(folder, "actor", manager), ending(error)) == 1
    last = manager.reports[-1]
    assert json.loads(last.log[-1])["msg"] == "EnvError: step returned NaN reward (pong, seed 41, step 7)"
    assert last.gauges["stopping"] == 1, "its lease ends at once"
    assert last.counters["env_steps"] == 7
    assert sum("NaN reward" in line for report in manager.reports for line in report.log) == 1
