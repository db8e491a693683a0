"""The listener's side of supervisor's event protocol."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from xmlrpc.client import Fault

from rlctl.backends.files import read_json
from rlctl.backends.local.process.supervisord import Child, Supervisor
from rlctl.backends.local.process.watch import Events, Watch
from rlctl.backends.local.state import run_state
from rlctl.spec.layout import Layout


def event(name: str, payload: str) -> bytes:
    return f"ver:3.0 server:x serial:1 pool:watch poolserial:1 eventname:{name} len:{len(payload)}\n{payload}".encode()


def test_events_are_answered_and_those_that_ended_are_named() -> None:
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    events = Events(ours_in, ours_out)
    assert os.read(theirs_in, 100) == b"READY\n"
    both = event("PROCESS_STATE_RUNNING", "processname:a groupname:a from_state:STARTING pid:5")
    both += event("PROCESS_STATE_EXITED", "processname:a groupname:a from_state:RUNNING expected:0 pid:7")
    os.write(theirs_out, both[:100])
    assert events.wait(1.0) == []
    os.write(theirs_out, both[100:])
    assert events.wait(1.0) == [7]
    assert os.read(theirs_in, 100) == b"RESULT 2\nOKREADY\n" * 2
    assert events.wait(0.0) == []
    os.close(theirs_out)
    assert events.wait(1.0) is None
    for handle in (theirs_in, ours_out, ours_in):
        os.close(handle)


@dataclass
class Bench:
    """A watch over processes that live and die as told; the clock is theirs."""

    root: Path
    now: int = 1000
    set_back_s: int = 0  # by how much the clock on the wall was
    children_: dict[str, Child] = field(default_factory=dict)
    shut_down: bool = False
    fault: Fault | None = None  # of every start

    def __post_init__(self) -> None:
        self.layout = Layout(self.root)
        self.layout.make()
        self.watch = Watch(self.layout, cast(Supervisor, self), self.root, clock=lambda: float(self.now))

    @property
    def wall(self) -> int:
        return self.now - self.set_back_s

    def children(self) -> dict[str, Child]:
        return {name: replace(child, now=self.wall) for name, child in self.children_.items()}

    def batch(self, method: str, calls: list[tuple[Any, ...]]) -> list[Fault | None]:
        if method == "startProcess" and self.fault is not None:
            return [self.fault for _ in calls]
        for name, *_ in calls if method == "startProcess" else []:
            self.start(name)
        for name, *_ in calls if method == "stopProcess" else []:
            self.children_[name] = replace(self.children_[name], state="STOPPED")
        return [None for _ in calls]

    def say(self, text: str) -> None:
        pass

    def shutdown(self) -> None:
        self.shut_down = True

    def start(self, name: str) -> None:
        self.children_[name] = Child(name, "RUNNING", 10**9 + self.now, self.wall, 0, self.wall, 0, "")

    def die(self, name: str, exit_status: int, error: str) -> bool:
        self.log(name, error, "ERROR")
        child = self.children_[name]
        self.children_[name] = replace(child, state="EXITED", stop=self.wall, exit_status=exit_status)
        return self.watch.look()

    def log(self, name: str, message: str, level: str = "INFO") -> None:
        line = {"ts": datetime.fromtimestamp(self.wall, UTC).isoformat(), "level": level, "msg": message}
        with (self.layout.logs / f"{name}.log").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        assert self.watch.look()

    def stored(self, name: str) -> dict[str, Any]:
        return dict((read_json(run_state.watch_file(self.layout), "") or {})[name])


def test_a_run_in_vain_ends_with_the_error_of_the_actor_that_never_joined(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("manager-0", "actor-0"):
        bench.start(name)
    for delay_s in (1, 2):
        bench.pass_time(25)
        assert bench.die("actor-0", 1, "EnvError: no rom")
        bench.pass_time(delay_s)
        bench.log("actor-0", "started")
    bench.pass_time(20)
    assert bench.stored("actor-0")["in_trouble"]
    assert not bench.die("manager-0", 3, "stop.wall_time of 60 s is over, and nothing was ever learned from")
    end = run_state.read_end(bench.layout)
    assert end is not None
    assert end.failure is not None
    assert end.failure.process == "actor/0"
    assert end.failure.text.startswith("actor 0 exited 1 after 00:00:25: EnvError: no rom")
    assert "then manager 0 exited 3 after 00:01:13: stop.wall_time of 60 s is over" in end.failure.text
    assert any("EnvError: no rom" in line for line in end.failure.last_lines)


def test_a_process_that_has_joined_and_lives_on_is_in_trouble_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start("actor-0")
    bench.pass_time(5)
    assert bench.die("actor-0", 1, "EnvError: no rom")
    bench.pass_time(1)
    bench.pass_time(20)
    bench.log("actor-0", "lease granted")
    bench.pass_time(9)
    assert bench.stored("actor-0")["in_trouble"]
    bench.pass_time(1)
    assert not bench.stored("actor-0")["in_trouble"]
    assert bench.stored("actor-0")["restarts"] == 1


def test_the_error_that_ended_a_process_is_told_although_the_clock_was_set_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start("actor-0")
    bench.pass_time(25)
    bench.set_back_s = 500
    assert bench.die("actor-0", 1, "EnvError: no rom")
    assert bench.stored("actor-0")["reason"] == "actor 0 exited 1 after 00:00:25: EnvError: no rom"


def test_a_process_has_joined_although_the_clock_was_set_back_before_it_did(tmp_path: Path) -> None:
    bench = Bench(tmp_path, now=int(time.time()))
    bench.start("actor-0")
    bench.pass_time(1)
    assert bench.die("actor-0", 1, "EnvError: no rom")
    bench.pass_time(1)
    # what the supervisor has started is there, and remembers the clock of before
    with subprocess.Popen(["sleep", "20"], start_new_session=True) as process:
        bench.children_["actor-0"] = replace(bench.children_["actor-0"], pid=process.pid, start=bench.wall + 3600)
        bench.pass_time(1)
        bench.log("actor-0", "lease granted")
        assert bench.stored("actor-0")["in_trouble"]
        bench.pass_time(30)
        process.kill()
    assert not bench.stored("actor-0")["in_trouble"]


def test_an_end_in_good_order_leaves_the_trouble_before_it_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start("learner-0")
    bench.pass_time(5)
    assert bench.die("learner-0", 1, "CUDA error")
    bench.pass_time(1)
    bench.pass_time(3)
    assert bench.die("learner-0", 0, "the last words")
    stored = bench.stored("learner-0")
    assert stored["in_trouble"]
    assert stored["reason"] == "learner 0 exited 1 after 00:00:05: CUDA error"


def test_a_process_whose_program_is_gone_is_given_up_after_five_tries(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.start("learner-0")
    bench.pass_time(3600)
    bench.fault = Fault(20, "can't find command '/venv/bin/python'")
    assert bench.die("learner-0", 1, "CUDA error")
    text = "learner 0 could not be started: can't find command '/venv/bin/python'"
    for delay_s in (1, 2, 4):
        bench.pass_time(delay_s)
        assert bench.stored("learner-0")["reason"] == text
    bench.now += 8
    assert not bench.watch.look()
    end = run_state.read_end(bench.layout)
    assert end is not None
    assert end.failure is not None
    assert end.failure.text == f"{text} (5 short lives in a row: not started again)"
