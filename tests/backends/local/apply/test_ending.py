"""Ends of a run by itself: in good order, or by the user's fault; against the real supervisor, with fake roles."""

from __future__ import annotations

import pytest

from rlctl.backends.local.state import places
from tests.backends.local.machine import Machine, read_log, role_plan, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


def test_a_run_whose_manager_ends_in_good_order_is_finished_leaves_nothing_but_what_went_wrong_and_starts_again(
    machine: Machine,
) -> None:
    broken = {"first_only": "actor-0", "after_s": 0.1, "exit_code": 1, "says": "EnvError: no rom"}
    machine.up("one", role_plan("manager"), role_plan("learner"), role_plan("actor", 2, broken))
    until(lambda: machine.processes("one")["actor/0"].restarts >= 1, "a restart")
    until(lambda: machine.backend.control("one", "POST", "/stop") == {"ok": True}, "the manager")
    until(lambda: machine.phase("one") == "finished", "the end of the run")
    until(lambda: not machine.survivors(), "the supervisor to be gone")
    assert "actor-1 ends" in read_log(machine, "one", "actor-1"), "the others were ended in good order"
    left = machine.processes("one")
    assert "EnvError: no rom" in left["actor/0"].trouble
    assert left["actor/1"].trouble == ""
    assert {left[name].state for name in ("manager/0", "learner/0", "actor/1")} == {"exited"}
    assert not machine.backend.place("one").sockets.exists()

    machine.up("one", role_plan("manager"), role_plan("actor", 2))
    assert machine.phase("one") == "running"
    assert places.find("one") is not None


def test_the_users_own_fault_ends_the_run_at_once_and_leaves_nothing(machine: Machine) -> None:
    wrong = {"after_s": 0.0, "exit_code": 3, "says": "env.id: no such environment: Nope-v0"}
    machine.up("one", role_plan("manager"), role_plan("actor", 3, wrong))
    until(lambda: machine.phase("one") == "failed", "giving up")
    assert not any(one.restarts for one in machine.processes("one").values()), "nobody was started again"
    found = machine.backend.find("one")
    assert found is not None
    assert found.failure is not None
    assert "exited 3" in found.failure.text
    assert "no such environment: Nope-v0" in found.failure.text
    until(lambda: not machine.survivors(), "everything to end")
    assert not machine.backend.place("one").sockets.exists()
