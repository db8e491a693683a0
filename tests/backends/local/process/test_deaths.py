"""Deaths of processes, what becomes of the others, and messages: against the real supervisor, with fake roles."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from rlctl.backends.base import Process
from tests.backends.local.machine import Machine, read_log, role_plan, until, whats

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def test_a_killed_replica_comes_back_at_once_and_the_others_go_on(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 2))
    until(lambda: "actor-0 starts" in read_log(machine, "one", "actor-0"), "the actor")
    before = machine.pids("one")
    os.kill(before["manager/0"], signal.SIGKILL)
    os.kill(before["actor/0"], signal.SIGKILL)
    until(
        lambda: (
            len(pids := machine.pids("one")) == 3
            and all(pids[name] != before[name] for name in ("actor/0", "manager/0"))
        ),
        "both to be back",
    )
    assert machine.pids("one")["actor/1"] == before["actor/1"]
    # the watch starts it, then stores that it did
    until(lambda: machine.processes("one")["actor/0"].restarts == 1, "the restart to be counted")
    assert machine.phase("one") == "running"
    until(lambda: machine.backend.control("one", "GET", "/status")["phase"] == "running", "the manager's socket")


def simulator_of(machine: Machine) -> psutil.Process:
    """The process that the only actor of run one has started; it does not end at SIGTERM."""
    pid = machine.pids("one")["actor/0"]
    until(lambda: len(psutil.Process(pid).children()) == 1, "the simulator")
    (simulator,) = psutil.Process(pid).children()
    return simulator


def ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # reaped between the two looks
        return True


def test_what_a_dead_replica_started_dies_too(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1, {"spawns": True}))
    simulator = simulator_of(machine)
    os.kill(machine.pids("one")["actor/0"], signal.SIGKILL)
    until(lambda: ended(simulator), "the simulator to die")


def test_what_a_replica_started_does_not_outlast_its_end_by_a_command(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1, {"spawns": True}))
    first = simulator_of(machine)
    list(machine.backend.restart("one", "actor"))
    until(lambda: ended(first), "the simulator to die at a restart", 10)
    second = simulator_of(machine)
    list(machine.backend.delete("one", volumes=False, grace_s=10))
    until(lambda: ended(second), "the simulator to die at the end of the run", 10)


def test_a_crash_loop_backs_off_gives_up_and_reports_the_first_cause(machine: Machine) -> None:
    broken = {
        "first_only": "learner-0",
        "after_s": 0.1,
        "exit_code": 1,
        "says": "loss is NaN",
        "exc": "Traceback\nValueError: bad",
    }
    machine.up("one", role_plan("manager"), role_plan("learner", 1, broken), role_plan("actor", 2))
    seen: list[Process] = []

    def backs_off() -> bool:
        seen.append(machine.processes("one")["learner/0"])
        return seen[-1].state == "backoff"

    until(backs_off, "a back-off")
    reason = seen[-1].reason  # of the same look: a back-off is over after a second
    assert reason.startswith("learner 0 exited 1 after 00:00:0")
    assert "loss is NaN: ValueError: bad" in reason
    assert "starts again in" in reason

    until(lambda: machine.phase("one") == "failed", "giving up")
    found = machine.backend.find("one")
    assert found is not None
    assert found.failure is not None
    assert found.failure.process == "learner/0"
    assert "loss is NaN: ValueError: bad" in found.failure.text
    assert "5 short lives in a row" in found.failure.text
    assert any("loss is NaN" in line for line in found.failure.last_lines)
    assert set(found.failure.stopped_because) == {"manager/0", "actor/0", "actor/1"}
    assert not machine.survivors()
    assert machine.processes("one")["learner/0"].state == "failed"
    assert machine.processes("one")["actor/0"].reason == "stopped because learner/0 failed"

    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2))
    assert machine.phase("one") == "running", "a repaired run starts again"
    assert len(machine.pids("one")) == 4


def test_a_signal_is_named(machine: Machine) -> None:
    bad = {"after_s": 0.2, "exit_code": 0, "signal": int(signal.SIGSEGV), "first_only": "actor-0"}
    machine.up("one", role_plan("manager"), role_plan("actor", 1, bad))
    until(lambda: "killed by signal 11" in machine.processes("one")["actor/0"].reason, "the reason")


def test_no_child_outlives_a_killed_supervisor_and_up_starts_again(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("learner"), role_plan("actor", 3)
    machine.up("one", *roles)
    until(lambda: "actor-2 starts" in read_log(machine, "one", "actor-2"), "the last actor")
    os.kill(machine.supervisor_pid("one"), signal.SIGKILL)
    until(lambda: not machine.survivors(), "all children to die")

    found = machine.backend.find("one")
    assert found is not None
    assert found.phase == "failed"
    assert found.failure is not None
    assert "supervisord is gone" in found.failure.text
    assert {process.state for process in machine.backend.processes("one")} == {"exited"}

    again = machine.up("one", *roles)
    assert whats(again)["supervisord"] == "created"
    until(lambda: len(machine.pids("one")) == 5, "everything again")
    assert machine.phase("one") == "running"


def test_a_killed_watch_comes_back_and_sees_what_it_missed(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    until(lambda: "actor-0 starts" in read_log(machine, "one", "actor-0"), "the actor")
    supervisor = psutil.Process(machine.supervisor_pid("one"))
    (watch,) = [child for child in supervisor.children() if "rlctl.backends.local.process.watch" in child.cmdline()]
    before = machine.pids("one")
    watch.kill()
    os.kill(before["actor/0"], signal.SIGKILL)
    until(lambda: machine.pids("one").get("actor/0", before["actor/0"]) != before["actor/0"], "the actor to be back")
