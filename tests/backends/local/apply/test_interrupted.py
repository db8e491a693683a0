"""Commands killed, interrupted, or given at the same time: the next one goes on, against the real supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from rlctl.backends.base import Applied
from rlctl.backends.files import POLICY_FILES
from rlctl.errors import Conflict
from tests.backends.local.machine import Machine, fakes_first, read_log, role_plan, until, whats
from tests.support.kills import killed_at_every_step
from tests.support.samples import size

pytestmark = [pytest.mark.processes, pytest.mark.timeout(size(240, 900))]


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


def test_a_new_run_begins_from_the_policy_of_this_up_and_not_of_one_that_came_to_nothing(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pulled(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in POLICY_FILES:
            (folder / file).write_text(name)
        return folder

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("rlctl.backends.local.apply.up.reserve", killed)  # what follows the copy
        with pytest.raises(KeyboardInterrupt):
            machine.up("one", role_plan("manager"), initial=lambda: pulled("first"))
    machine.up("one", role_plan("manager"), initial=lambda: pulled("second"))
    assert {file.read_text() for file in machine.backend.place("one").layout.init.iterdir()} == {"second"}


def test_up_converges_after_a_kill_at_any_step(machine: Machine) -> None:
    """First an `up` of a new run, then one that scales and restarts the actors, killed at each step in turn."""
    env = {**os.environ, "PYTHONPATH": fakes_first(os.getcwd())}

    def drive(run: str, actors: int, kill_at: int) -> subprocess.CompletedProcess[str]:
        machine.applied.add(run)
        command = [sys.executable, "-m", "tests.backends.local.driver", run, str(actors), str(kill_at)]
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

    def whole() -> int:
        steps = int(drive("whole", 1, 0).stdout)
        list(machine.backend.delete("whole", volumes=True, grace_s=2))
        return steps

    def killed(at: int) -> None:
        run = f"new-{at}"
        assert drive(run, 1, at).returncode in (-signal.SIGKILL, 0)  # the very first run had a step or two more
        check(run, 1)
        drive(run, 2, at)  # changes the run file and the number; may have fewer steps
        check(run, 2)
        list(machine.backend.delete(run, volumes=True, grace_s=2))
        assert not machine.survivors(), "left behind"

    assert killed_at_every_step("up killed at a step", 2, whole, killed).steps > 15
