"""The backend against the real supervisor, with fake roles: the life of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rlctl.backends.local import LocalBackend
from rlctl.errors import BackendUnreachable, Conflict, RlctlError
from tests.backends.local.machine import Machine, read_log, role_plan, until, whats

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


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
    machine.up(
        "one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2), live={"stop": {"agent_steps": 1}}
    )
    before = machine.pids("one")
    until(
        lambda: machine.backend.control("one", "GET", "/status")["live"] == {"stop": {"agent_steps": 1}}, "the manager"
    )

    changed = machine.up(
        "one",
        role_plan("manager"),
        role_plan("learner", 1, {"lr": 1}),
        role_plan("actor", 2),
        live={"stop": {"agent_steps": 1}},
    )
    assert whats(changed)["learner/0"] == "restarted"
    after = machine.pids("one")
    assert {name for name in before if before[name] != after[name]} == {"learner/0"}

    roles = role_plan("manager"), role_plan("learner", 1, {"lr": 1}), role_plan("actor", 2)
    live = machine.up("one", *roles, live={"stop": {"agent_steps": 2}})
    assert whats(live) == {
        "manager/0": "reloaded", "learner/0": "unchanged", "actor/0": "unchanged", "actor/1": "unchanged",
    }  # fmt: skip
    assert machine.pids("one") == after
    assert machine.backend.control("one", "GET", "/status")["live"] == {"stop": {"agent_steps": 2}}
    found = machine.backend.find("one")
    assert found is not None
    assert found.revision == 3
    assert not list((machine.backend.place("one").layout.run).glob("learner-*.json"))[1:], "old run files are removed"


def test_up_of_a_run_that_is_ending_is_a_conflict_and_records_nothing(machine: Machine) -> None:
    sentence = "the run is ending; run the same command again when it has ended"
    roles = role_plan("manager", 1, {"refuses": sentence}), role_plan("actor")
    machine.up("one", *roles, live={"stop": {"agent_steps": 1}})
    until(
        lambda: machine.backend.control("one", "GET", "/status")["live"] == {"stop": {"agent_steps": 1}}, "the manager"
    )
    before = machine.backend.find("one"), machine.backend.documents("one"), machine.pids("one")
    with pytest.raises(Conflict, match="the run is ending") as refused:
        machine.up("one", *roles, live={"stop": {"agent_steps": 2}})
    assert "run the same command again when it has ended" in refused.value.hint
    assert (machine.backend.find("one"), machine.backend.documents("one"), machine.pids("one")) == before
    live = machine.backend.place("one").layout.run / "live.json"
    assert json.loads(live.read_text()) == {"stop": {"agent_steps": 1}}


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


def test_down_ends_everything_keeps_the_data_and_up_goes_on_with_the_same_uid(machine: Machine) -> None:
    roles = role_plan("manager"), role_plan("learner"), role_plan("actor", 20)
    machine.up("one", *roles)
    until(lambda: "actor-19 starts" in read_log(machine, "one", "actor-19"), "the last actor", 60)
    uid = machine.backend.place("one").uid
    (machine.backend.place("one").layout.results / "status.json").write_text('{"phase": "running"}')

    removed = [each.object for each in machine.backend.delete("one", volumes=False, grace_s=10)]
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


def test_deaf_processes_are_killed_after_their_grace_all_of_a_role_at_the_same_time(machine: Machine) -> None:
    machine.up("one", role_plan("manager"), role_plan("actor", 20, {"deaf": True}))
    until(lambda: "actor-19 starts" in read_log(machine, "one", "actor-19"), "the last actor", 60)
    began = time.monotonic()
    list(machine.backend.delete("one", volumes=False, grace_s=2.0))
    assert 2.0 <= time.monotonic() - began < 20 * 2.0, "a grace each, one after another"
    assert not machine.survivors()


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


def test_a_manager_that_refuses_says_why(machine: Machine) -> None:
    machine.up("one", role_plan("manager"))
    until(lambda: machine.backend.control("one", "GET", "/status")["phase"] == "running", "the manager")
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
