"""The backend against the real supervisor, with fake roles: the life of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rlctl.backends.base import Applied
from rlctl.backends.local import LocalBackend
from rlctl.errors import BackendUnreachable, Conflict, RlctlError
from tests.local.machine import Machine, role_plan, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def whats(applied: list[Applied]) -> dict[str, str]:
    return {each.object: each.what for each in applied}


def test_up_starts_every_replica_and_a_second_up_changes_nothing(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("learner"), role_plan("actor", 3)
    first = machine.up("one", *roles)
    assert whats(first) == {
        "supervisord": "created", "manager/0": "created", "learner/0": "created",
        "actor/0": "created", "actor/1": "created", "actor/2": "created",
    }  # fmt: skip
    until(lambda: len(machine.pids("one")) == 5, "five live processes")
    assert machine.phase("one") == "running"
    root = machine.backend.place("one").layout.root
    before = machine.pids("one"), {path: path.stat().st_mtime_ns for path in (root / "run").rglob("*")}

    second = machine.up("one", *roles)

    assert set(whats(second).values()) == {"unchanged"}
    after = machine.pids("one"), {path: path.stat().st_mtime_ns for path in (root / "run").rglob("*")}
    assert after == before
    found = machine.backend.find("one")
    assert found is not None
    assert found.revision == 1


def test_another_hash_restarts_that_role_alone_and_live_fields_restart_nobody(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2), live={"stop": {"rows": 1}})
    before = machine.pids("one")
    until(lambda: machine.backend.control("one", "GET", "/status")["live"] == {"stop": {"rows": 1}}, "the manager")

    changed = machine.up(
        "one",
        role_plan("manager"),
        role_plan("learner", 1, {"lr": 1}),
        role_plan("actor", 2),
        live={"stop": {"rows": 1}},
    )
    assert whats(changed)["learner/0"] == "restarted"
    after = machine.pids("one")
    assert {name for name in before if before[name] != after[name]} == {"learner/0"}

    roles = role_plan("manager"), role_plan("learner", 1, {"lr": 1}), role_plan("actor", 2)
    live = machine.up("one", *roles, live={"stop": {"rows": 2}})
    assert whats(live) == {
        "manager/0": "reloaded", "learner/0": "unchanged", "actor/0": "unchanged", "actor/1": "unchanged",
    }  # fmt: skip
    assert machine.pids("one") == after
    assert machine.backend.control("one", "GET", "/status")["live"] == {"stop": {"rows": 2}}
    found = machine.backend.find("one")
    assert found is not None
    assert found.revision == 3
    assert not list((machine.backend.place("one").layout.run).glob("learner-*.json"))[1:], "old run files are removed"


def test_scale_touches_no_other_process_and_up_keeps_the_live_number(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("actor", 3)
    machine.up("one", *roles)
    three = machine.pids("one")

    up = list(machine.backend.scale("one", {"actor": 6}))
    assert [each.object for each in up if each.what == "created"] == ["actor/3", "actor/4", "actor/5"]
    until(lambda: len(machine.pids("one")) == 7, "six actors")
    six = machine.pids("one")
    assert {name: six[name] for name in three} == three

    down = list(machine.backend.scale("one", {"actor": 2}))
    assert sorted(each.object for each in down if each.what == "removed") == [
        f"actor/{index}" for index in (2, 3, 4, 5)
    ]
    two = machine.pids("one")
    assert two == {name: three[name] for name in ("manager/0", "actor/0", "actor/1")}

    assert set(whats(machine.up("one", *roles)).values()) == {"unchanged"}
    assert machine.pids("one") == two
    machine.up("one", role_plan("manager"), role_plan("actor", 4))
    assert len(machine.pids("one")) == 5, "another number in the spec wins"
    with pytest.raises(Conflict, match="no role evaluator"):
        list(machine.backend.scale("one", {"evaluator": 1}))


def test_restart_stops_a_role_in_good_order_and_starts_it_again(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2))
    until(lambda: "starts" in read_log(machine, "one", "learner-0"), "the learner")
    before = machine.pids("one")
    assert whats(list(machine.backend.restart("one", "learner"))) == {"learner/0": "restarted"}
    until(lambda: len(machine.pids("one")) == 4, "the learner again")
    after = machine.pids("one")
    assert {name for name in before if before[name] != after[name]} == {"learner/0"}
    assert "learner-0 ends" in read_log(machine, "one", "learner-0")
    assert machine.processes("one")["learner/0"].restarts == 0, "a command is no crash"


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
    process = machine.processes("one")["actor/0"]
    assert process.restarts == 1
    assert machine.phase("one") == "running"
    until(lambda: machine.backend.control("one", "GET", "/status")["phase"] == "running", "the manager's socket")


def test_what_a_dead_replica_started_dies_too(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1, {"spawns": True}))
    pid = machine.pids("one")["actor/0"]
    until(lambda: len(psutil.Process(pid).children()) == 1, "the simulator")
    (simulator,) = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not simulator.is_running() or simulator.status() == psutil.STATUS_ZOMBIE, "the simulator to die")


def test_a_crash_loop_backs_off_gives_up_and_reports_the_first_cause(machine: Machine) -> None:
    broken = {
        "first_only": "learner-0",
        "after_s": 0.1,
        "exit_code": 1,
        "says": "loss is NaN",
        "exc": "Traceback\nValueError: bad",
    }
    machine.up("one", role_plan("manager"), role_plan("learner", 1, broken), role_plan("actor", 2))
    until(lambda: machine.processes("one")["learner/0"].state == "backoff", "a back-off")
    reason = machine.processes("one")["learner/0"].reason
    assert reason.startswith("learner 0 exited 1 after 00:00:0")
    assert "loss is NaN: ValueError: bad" in reason
    assert "starts again in" in reason

    until(lambda: machine.phase("one") == "failed", "giving up", 60)
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


def test_the_users_own_fault_ends_the_run_at_once(machine: Machine) -> None:
    wrong = {"after_s": 0.0, "exit_code": 3, "says": "env.id: no such environment: Nope-v0"}
    machine.up("one", role_plan("manager"), role_plan("actor", 3, wrong))
    began = time.monotonic()
    until(lambda: machine.phase("one") == "failed", "giving up")
    assert time.monotonic() - began < 10
    found = machine.backend.find("one")
    assert found is not None
    assert found.failure is not None
    assert "exited 3" in found.failure.text
    assert "no such environment: Nope-v0" in found.failure.text


def test_a_signal_is_named(machine: Machine) -> None:
    bad = {"after_s": 0.2, "exit_code": 0, "signal": int(signal.SIGSEGV), "first_only": "actor-0"}
    machine.up("one", role_plan("manager"), role_plan("actor", 1, bad))
    until(lambda: "killed by signal 11" in machine.processes("one")["actor/0"].reason, "the reason")


def test_the_run_is_finished_when_the_manager_ends_in_good_order(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2))
    until(lambda: machine.backend.control("one", "POST", "/stop") == {"ok": True}, "the manager")
    until(lambda: machine.phase("one") == "finished", "the end of the run")
    until(lambda: not machine.survivors(), "the supervisor to be gone")
    assert "actor-1 ends" in read_log(machine, "one", "actor-1"), "the others were ended in good order"
    assert {process.state for process in machine.backend.processes("one")} == {"exited"}


def test_down_ends_everything_keeps_the_data_and_up_goes_on_with_the_same_uid(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("learner"), role_plan("actor", 20)
    machine.up("one", *roles)
    until(lambda: "actor-19 starts" in read_log(machine, "one", "actor-19"), "the last actor", 60)
    uid = machine.backend.place("one").uid
    (machine.backend.place("one").layout.results / "status.json").write_text('{"phase": "running"}')

    began = time.monotonic()
    removed = [each.object for each in machine.backend.delete("one", volumes=False, grace_s=10)]
    assert time.monotonic() - began < 8, "all of a role are ended at the same time"
    assert removed[:20] == [f"actor/{index}" for index in range(20)]
    assert removed[20:] == ["learner/0", "manager/0", "supervisord"]
    assert not machine.survivors()
    assert machine.phase("one") == "stopped"
    assert machine.backend.stored_status("one") == {"phase": "running"}
    assert not machine.backend.place("one").sockets.exists()
    assert list(machine.backend.delete("one", volumes=False, grace_s=10)) == []
    assert list(machine.backend.delete("nobody", volumes=True, grace_s=10)) == []
    with pytest.raises(Conflict, match="not live"):
        list(machine.backend.scale("one", {"actor": 1}))
    with pytest.raises(BackendUnreachable, match="manager of run one does not listen"):
        machine.backend.control("one", "GET", "/status")

    machine.up("one", *roles)
    assert machine.backend.place("one").uid == uid
    root = machine.backend.place("one").layout.root
    list(machine.backend.delete("one", volumes=True, grace_s=1))
    assert not root.exists()
    assert machine.backend.find("one") is None


def test_up_repairs_what_an_interrupted_down_left(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("learner"), role_plan("actor", 2)
    machine.up("one", *roles)
    until(lambda: "actor-1 starts" in read_log(machine, "one", "actor-1"), "the last actor")
    down = machine.backend.delete("one", volumes=False, grace_s=5)
    assert next(down) == Applied("actor/0", "removed")
    down.close()  # type: ignore[attr-defined]
    assert set(machine.pids("one")) == {"manager/0", "learner/0"}

    again = whats(machine.up("one", *roles))
    assert again == {
        "watch": "restarted", "actor/0": "restarted", "actor/1": "restarted",
        "manager/0": "unchanged", "learner/0": "unchanged",
    }  # fmt: skip
    assert len(machine.pids("one")) == 4


def test_a_deaf_process_is_killed_after_its_grace(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 3, {"deaf": True}))
    until(lambda: "actor-2 starts" in read_log(machine, "one", "actor-2"), "the last actor")
    began = time.monotonic()
    list(machine.backend.delete("one", volumes=False, grace_s=1.0))
    assert time.monotonic() - began < 6
    assert not machine.survivors()


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
    (watch,) = [child for child in supervisor.children() if "rlctl.backends.local.watch" in child.cmdline()]
    before = machine.pids("one")
    watch.kill()
    os.kill(before["actor/0"], signal.SIGKILL)
    until(lambda: machine.pids("one").get("actor/0", before["actor/0"]) != before["actor/0"], "the actor to be back")


def test_down_kills_a_supervisor_that_does_not_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    monkeypatch.setattr("rlctl.backends.local.down.ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setattr("rlctl.backends.local.down.END_TIMEOUT_S", 1.0)
    os.kill(machine.supervisor_pid("one"), signal.SIGSTOP)
    removed = list(machine.backend.delete("one", volumes=False, grace_s=1.0))
    assert removed[-1] == Applied("supervisord", "removed", "killed: it did not answer")
    until(lambda: not machine.survivors(), "all children to die")
    assert machine.phase("one") == "stopped"


def test_two_runs_and_two_storage_folders_live_side_by_side(machine: Machine, tmp_path: Path) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 1))
    elsewhere = Machine(storage=str(tmp_path / "else where"))
    elsewhere.up("two", role_plan("manager"), role_plan("actor", 2))
    machine.applied.add("two")
    assert (len(machine.pids("one")), len(machine.pids("two"))) == (2, 3)
    assert {state.run for state in machine.backend.runs()} == {"one", "two"}
    assert (tmp_path / "else where" / "runs").is_dir()
    list(machine.backend.delete("two", volumes=True, grace_s=5))
    assert len(machine.pids("one")) == 2


def test_of_two_simultaneous_ups_one_is_told_who_holds_the_run(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("actor", 2)
    machine.up("one", *roles)
    outcomes: list[str] = []

    def up() -> None:
        try:
            Machine().up("one", *roles)
            outcomes.append("done")
        except Conflict as error:
            outcomes.append(error.message)

    held = machine.backend.restart("one", "actor")
    next(held)  # another command is in the middle of its work
    thread = threading.Thread(target=up)
    thread.start()
    thread.join()
    assert f"process {os.getpid()} (rlctl restart)" in outcomes[0]
    held.close()
    up()
    assert outcomes[1] == "done"


def test_up_converges_after_a_kill_at_any_step(machine: Machine) -> None:
    """First an `up` of a new run, then one that scales and restarts the actors, killed at each step in turn."""
    env = {**os.environ, "PYTHONPATH": os.getcwd()}

    def drive(run: str, actors: int, kill_at: int) -> subprocess.CompletedProcess[str]:
        machine.applied.add(run)
        command = [sys.executable, "-m", "tests.local.driver", run, str(actors), str(kill_at)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    def check(run: str, actors: int) -> None:
        machine.up(run, role_plan("manager"), role_plan("actor", actors, {"version": actors}))
        until(lambda: len(machine.pids(run)) == actors + 1, f"{actors} actors and a manager of {run}")
        assert set(machine.pids(run)) == {"manager/0", *(f"actor/{index}" for index in range(actors))}
        wanted = f"actor-{role_plan('actor', actors, {'version': actors}).hash}.json"

        def up_to_date() -> bool:
            pids = [pid for name, pid in machine.pids(run).items() if name != "manager/0"]
            return all(wanted in " ".join(psutil.Process(pid).cmdline()) for pid in pids)

        until(up_to_date, "actors with the new run file")
        repeated = machine.up(run, role_plan("manager"), role_plan("actor", actors, {"version": actors}))
        assert set(whats(repeated).values()) == {"unchanged"}

    steps = int(drive("whole", 1, 0).stdout)
    assert steps > 15
    list(machine.backend.delete("whole", volumes=True, grace_s=2))
    kills = range(1, steps + 1, int(os.environ.get("RLCTL_KILL_STRIDE", "4")))
    for kill_at in kills:
        run = f"new-{kill_at}"
        assert drive(run, 1, kill_at).returncode in (-signal.SIGKILL, 0)  # the very first run had a step or two more
        check(run, 1)
        drive(run, 2, kill_at)  # changes the run file and the number; may have fewer steps
        check(run, 2)
        list(machine.backend.delete(run, volumes=True, grace_s=2))
        assert not machine.survivors(), f"left behind after a kill at step {kill_at}"


def test_a_manager_that_refuses_says_why(machine: Machine) -> None:
    machine.up("one", role_plan("manager"))
    until(lambda: (machine.backend.place("one").sockets / "manager-0.control").exists(), "the manager's socket")
    with pytest.raises(RlctlError, match="refused GET /nothing: no /nothing here"):
        machine.backend.control("one", "GET", "/nothing")


def test_a_folder_that_cannot_be_written_is_reported_in_words(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BackendUnreachable, match="file"):
        Machine(storage=str(tmp_path / "file" / "below")).up("one", role_plan("manager"))


def test_documents_are_as_applied_and_logs_come_merged(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 2))
    names = [document.name for document in LocalBackend().documents("one")]
    assert names[:2] == ["supervisord.conf", "watch.conf"]
    assert "programs/actor.conf" in names
    until(lambda: "actor-1 starts" in read_log(machine, "one", "actor-1"), "the last actor")
    stored = json.loads((machine.backend.place("one").layout.run / "state.json").read_text())
    assert stored["replicas"] == {"manager": 1, "actor": 2}


def read_log(machine: Machine, run: str, name: str) -> str:
    path = machine.backend.place(run).layout.logs / f"{name}.log"
    return path.read_text() if path.exists() else ""
