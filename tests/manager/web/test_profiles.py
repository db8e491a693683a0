"""Profiles: what is seen of threads, what is drawn of it, and how an order reaches a process and its answer a file."""

from __future__ import annotations

import json
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from rlctl_agents.manager.membership.leases import Holder
from rlctl_agents.manager.web import flame
from rlctl_agents.manager.web.profiles import KEPT, Profiles
from rlctl_agents.runtime import profiling
from rlctl_agents.runtime.profiling import (
    AGAIN_S,
    ANSWER_S,
    DEEPER,
    MAIN,
    NAME,
    NATIVE,
    RARE,
    ProfiledPeriod,
    Profiler,
    Stacks,
    awake,
    fewer,
    look,
    packed,
    short,
    unpacked,
)
from rlctl_agents.types.control import Sampled, Sampling
from rlctl_agents.wire.rpc.client import RemoteError
from tests.manager.world import ACTOR, LEARNER, Run, boot, everybody

STACKS = {
    (MAIN, "run (a.py:1)", "step (b.py:2)"): 600_000,
    (MAIN, "run (a.py:1)"): 150_000,
    ("reports", "wait (t.py:3)"): 250_000,
}
SVG = "{http://www.w3.org/2000/svg}"


@contextmanager
def parked(name: str) -> Iterator[threading.Thread]:
    """A thread that waits in a function of ours."""
    there, leave = threading.Event(), threading.Event()

    def waits_here() -> None:
        there.set()
        leave.wait()

    thread = threading.Thread(target=waits_here, name=name)
    thread.start()
    there.wait()
    try:
        yield thread
    finally:
        leave.set()
        thread.join()


class Ticks:
    """A clock that a wait moves."""

    def __init__(self, stops_after: int = 10**9) -> None:
        self.now, self.left = 0.0, stops_after

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.left -= 1
        return self.left < 0


def test_a_look_tells_where_a_thread_is_and_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "cpu_seconds", dict)  # where nobody says who is idle, everybody is shown
    ticks = Ticks()
    with parked("parked"):
        seen = look(1.0, ticks.wait, clock=ticks)
    mine = {stack: us for stack, us in seen.stacks.items() if stack[0] == "parked"}
    assert sum(mine.values()) == pytest.approx(1e6 * seen.seconds, rel=1e-3)
    assert seen.seconds == pytest.approx(1.0, abs=0.02)
    assert 60 <= seen.samples <= 210
    for stack in mine:
        names = [name.partition(" (")[0] for name in stack]
        assert any(name.endswith("waits_here") for name in names)
        assert names.index("Thread.run") < next(n for n, name in enumerate(names) if name.endswith("waits_here"))
    assert not any(threading.current_thread().name == stack[0] for stack in seen.stacks), "it does not look at itself"


def test_a_look_that_is_ended_early_tells_what_it_has_seen() -> None:
    ticks = Ticks(stops_after=5)
    assert look(60.0, ticks.wait, clock=ticks).samples == 5


def test_a_late_look_counts_for_all_the_time_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "cpu_seconds", dict)
    times = iter([0.0, 0.01, 3.0, 99.0])
    with parked("parked"):
        seen = look(2.0, lambda _: False, clock=lambda: next(times))
    assert (seen.samples, seen.seconds) == (2, 3.0)
    assert sum(us for stack, us in seen.stacks.items() if stack[0] == "parked") == 3_000_000


def test_threads_that_only_wait_are_left_out_but_never_the_main_one() -> None:
    cpu = {MAIN: 0.0, "reports": 0.009, "busy": 0.5}
    stacks = {(MAIN, "a"): 1, ("reports", "b"): 1, ("busy", "c"): 1, ("unknown", "d"): 1}
    assert set(awake(stacks, cpu, 1.0)) == {(MAIN, "a"), ("busy", "c")}
    assert awake(stacks, {}, 1.0) == stacks


def test_the_cpu_time_of_a_busy_thread_is_counted() -> None:
    if sys.platform != "linux":
        pytest.skip("the system does not say")
    before, until = profiling.cpu_seconds()[MAIN], time.thread_time() + 0.05
    while time.thread_time() < until:
        sum(range(10_000))
    assert profiling.cpu_seconds()[MAIN] >= before + 0.03, "in ticks of a hundredth"


def test_what_no_thread_of_python_used_is_told_as_that_of_native_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for rest_s, native in ((3.0, {NATIVE: pytest.approx(3.0)}), (0.005, {})):
        told, used_s = iter([{"actor": 1.0}, {"actor": 1.5}]), iter([10.0, 10.5 + rest_s])
        monkeypatch.setattr(profiling, "cpu_seconds", lambda told=told: next(told))
        ticks = Ticks()
        seen = look(1.0, ticks.wait, clock=ticks, cpu_clock=lambda used_s=used_s: next(used_s))  # type: ignore[misc]
        assert seen.threads == {"actor": 0.5, **native}


def test_more_stacks_than_a_message_holds_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_STACKS", 2)
    found = fewer({(MAIN, "a"): 9, (MAIN, "b"): 7, (MAIN, "c"): 2, ("x", "d"): 1, (MAIN, "e"): 1})
    assert found == {(MAIN, "a"): 9, (MAIN, "b"): 7, (MAIN, RARE): 3, ("x", RARE): 1}


def test_a_stack_that_is_too_deep_ends_in_words() -> None:
    def down(left: int) -> Any:
        return sys._getframe() if left == 0 else down(left - 1)

    stacks = Stacks()
    stacks.add("a;b\n", down(300), 5)
    ((stack, us),) = stacks.found.items()
    assert (len(stack), stack[0], stack[-1], us) == (profiling.DEPTH, "a_b_", DEEPER, 5)


def test_files_are_named_as_they_are_imported() -> None:
    assert short(json.__file__) == "json/__init__.py"
    assert short("<string>") == "<string>"


def test_what_goes_over_the_wire_is_what_was_seen() -> None:
    sampled = packed("id", "actor", boot(1), ProfiledPeriod(1.0, 99, {MAIN: 0.7}, STACKS))
    assert len(sampled.frames) == len(set(sampled.frames)) == 5
    assert unpacked(sampled) == STACKS


@pytest.mark.parametrize("stack", [([], 1), ([5], 1), ([-1], 1), ([0], -1), ([0] * 1001, 1)])
def test_a_stack_that_makes_no_sense_is_refused(stack: tuple[list[int], int]) -> None:
    with pytest.raises(ValueError, match="not there, or of no time"):
        unpacked(Sampled("id", "actor", boot(1), 1.0, 1, {}, ["a", "b"], [stack]))


def rectangles(text: str) -> dict[str, tuple[float, float, float]]:
    """Name -> x, y, width in a flame graph."""
    found = {}
    for group in ElementTree.fromstring(text).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        found[group.attrib["data-n"]] = tuple(float(rect.attrib[key]) for key in ("x", "y", "width"))
    return found  # type: ignore[return-value]


def test_a_flame_graph_is_one_xml_document_in_which_width_is_time() -> None:
    text = flame.svg(STACKS, "learner/0 of r")
    boxes = rectangles(text)
    assert boxes["all threads"] == (0, flame.TOP, flame.WIDTH)
    assert boxes[MAIN][0] == 0, "the main thread stands first"
    assert boxes[MAIN][2] == pytest.approx(0.75 * flame.WIDTH)
    assert boxes["step (b.py:2)"] == (0, flame.TOP + 3 * flame.ROW, pytest.approx(0.6 * flame.WIDTH))
    assert boxes["reports"][0] == pytest.approx(0.75 * flame.WIDTH)
    assert "step (b.py:2): 0.60 s, 60.0 %" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is loaded from elsewhere"


def test_what_cannot_be_seen_is_not_drawn_and_names_cannot_act() -> None:
    evil = '<script>alert("x")</script>&\x0b]]>'
    text = flame.svg({(MAIN, evil): 10_000, (MAIN, "tiny"): 1}, evil)
    assert set(rectangles(text)) == {"all threads", MAIN, evil.replace("\x0b", "?")}
    assert len(list(ElementTree.fromstring(text).iter(f"{SVG}script"))) == 1


def test_collapsed_stacks_are_lines_that_other_tools_read() -> None:
    assert flame.collapsed(STACKS).splitlines() == [
        "MainThread;run (a.py:1) 150000",
        "MainThread;run (a.py:1);step (b.py:2) 600000",
        "reports;wait (t.py:3) 250000",
    ]


def test_a_process_looks_once_for_each_order_and_tells_it() -> None:
    told: list[Sampled] = []
    done, stop = threading.Event(), threading.Event()
    stop.set()  # ends every look at once
    profiler = Profiler("actor", boot(3), stop)
    for id in ("a", "a", "b"):
        profiler.obey(Sampling(id, 5.0), lambda sampled: (told.append(sampled), len(told) == 2 and done.set()))
    assert done.wait(10)
    assert sorted(one.id for one in told) == ["a", "b"]
    assert {(one.role, one.boot) for one in told} == {("actor", boot(3))}


class Waited(threading.Event):
    """A stop flag that is never set: a wait for it passes, on a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False


@pytest.mark.parametrize("error", [TimeoutError("no answer"), RemoteError("busy")])
def test_what_was_seen_is_told_again_to_a_manager_that_does_not_answer_at_first(error: Exception) -> None:
    tries, heard, stop = [0.0], threading.Event(), Waited()

    def tell(sampled: Sampled) -> None:
        tries.append(stop.now)
        if len(tries) < 4:
            raise error
        heard.set()

    Profiler("actor", boot(3), stop, lambda: stop.now).obey(Sampling("a", 0.05), tell)
    assert heard.wait(10)
    np.testing.assert_allclose(np.diff(tries[1:]), [AGAIN_S, AGAIN_S])


def test_it_is_given_up_when_the_manager_does_not_wait_for_it_any_more(caplog: pytest.LogCaptureFixture) -> None:
    tries, stop = [], Waited()

    def tell(sampled: Sampled) -> None:
        tries.append(stop.now)
        raise TimeoutError("no answer")

    Profiler("actor", boot(3), stop, lambda: stop.now).obey(Sampling("a", 0.05), tell)
    for thread in threading.enumerate():
        if thread.name == NAME:
            thread.join(10)
    assert tries[-1] - tries[0] == pytest.approx(ANSWER_S, abs=AGAIN_S)
    assert "the profile a was lost: TimeoutError: no answer" in caplog.text


# the manager's part


def order(run: Run, **asked: Any) -> str:
    live = run.manager.members.leases.live
    return run.manager.profiles.order({"seconds": 2.0, **asked}, live, 1.0).id


def answer(run: Run, id: str) -> Any:
    found = run.manager.profiles.answer({"id": id})
    return json.loads(found.body)


def sampled(id: str, number: int = ACTOR, role: str = "actor") -> Sampled:
    return packed(id, role, boot(number), ProfiledPeriod(2.0, 200, {MAIN: 1.4}, STACKS))


def test_an_order_goes_out_with_every_answer_until_the_process_has_told(run: Run) -> None:
    everybody(run)
    id = order(run, role="actor", index=None)
    assert run.report("learner", LEARNER).profile is None
    assert run.report("actor", ACTOR).profile == run.report("actor", ACTOR).profile == Sampling(id, 2.0)
    assert answer(run, id)["state"] == "waiting"
    assert run.manager.sampled(sampled(id)).ok
    assert run.report("actor", ACTOR).profile is None
    found = answer(run, id)
    assert (found["state"], found["process"], found["samples"], found["threads"]) == (
        "done",
        "actor/0",
        200,
        {MAIN: 1.4},
    )
    assert found["files"] == [f"results/profiles/{id}.svg", f"results/profiles/{id}.collapsed"]
    assert (run.layout.root / found["files"][0]).read_text() == found["svg"]
    assert (run.layout.root / found["files"][1]).read_text() == found["collapsed"] == flame.collapsed(STACKS)
    assert "actor/0 of r: 2.0 s, 200 samples" in found["svg"]


def test_nobody_tells_what_he_was_not_asked(run: Run) -> None:
    everybody(run)
    id = order(run, role="actor")
    assert not run.manager.sampled(sampled("other")).ok
    assert not run.manager.sampled(sampled(id, LEARNER)).ok
    assert run.manager.sampled(sampled(id)).ok
    assert not run.manager.sampled(sampled(id)).ok, "once is enough"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"role": "cook"}, "role must be one of"),
        ({"role": "replay"}, "no replay runs now"),
        ({"role": "actor", "index": 5}, "no actor/5 runs now; actors that do: 0"),
        ({"role": "actor", "index": True}, "index must be a number"),
        ({"role": "actor", "seconds": 0}, "seconds must be above 0"),
        ({"role": "actor", "seconds": float("nan")}, "seconds must be above 0"),
        ({"role": "actor", "seconds": 1e9}, "seconds must be above 0"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_in_words(run: Run, asked: dict[str, Any], why: str) -> None:
    everybody(run)
    with pytest.raises(ValueError, match=why):
        order(run, **asked)


def test_one_process_is_looked_at_once_at_a_time(run: Run) -> None:
    everybody(run)
    order(run, role="actor")
    order(run, role="learner")
    with pytest.raises(ValueError, match="actor/0 is being profiled already"):
        order(run, role="actor")


def test_a_process_that_ends_or_keeps_silent_fails_its_profile(run: Run) -> None:
    everybody(run)
    ends, silent = order(run, role="actor"), order(run, role="learner")
    run.join("actor", 33, prefer=0)
    assert (answer(run, ends)["state"], answer(run, ends)["why"]) == ("failed", "actor/0 ended meanwhile")
    run.time.now += 2.0 + 2.0 + ANSWER_S
    assert answer(run, silent)["why"] == "learner/0 did not say within the time what it does"
    assert run.manager.profiles.answer({"id": "none"}).status == 404


def test_a_volume_that_takes_nothing_costs_the_files_only(run: Run) -> None:
    everybody(run)
    (run.layout.results / "profiles").write_text("in the way")
    id = order(run, role="actor")
    assert run.manager.sampled(sampled(id)).ok
    found = answer(run, id)
    assert (found["state"], found["files"]) == ("done", [])
    assert "results/profiles" in found["why"]
    assert found["svg"]


def test_memory_holds_few_profiles_and_never_forgets_one_that_is_waited_for(run: Run) -> None:
    holders = [Holder("actor", index, boot(index), 0.0, 0.0) for index in range(KEPT + 4)]
    profiles: Profiles = run.manager.profiles

    def ordered(index: int) -> str:
        return profiles.order({"role": "actor", "index": index, "seconds": 1}, lambda role: holders, 1.0).id

    first, ids = ordered(0), []
    for index in range(1, KEPT + 4):
        ids.append(ordered(index))
        profiles.take(sampled(ids[-1], index))
    known = [id for id in [first, *ids] if profiles.answer({"id": id}).status == 200]
    assert known[0] == first
    assert known[-1] == ids[-1]
    assert len(known) <= KEPT + 1
