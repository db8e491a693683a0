"""Trackers that are slow, full, broken or not there: the manager goes on, and says once what is lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlctl.spec.schema import Trackers
from rlctl_agents.manager.trackers.background import Background, await_end
from rlctl_agents.manager.trackers.base import ManagerEnd, Point, TrackedRun, flat, redacted
from rlctl_agents.manager.trackers.curves import WENT_BACK, Curves, opened_trackers
from rlctl_agents.manager.trackers.tensorboard import CurveWriter
from tests.support.fakes import wait_until

WITHIN_S = 20.0


@dataclass
class Fake:
    """A tracker that remembers, and does before each point what it is told to."""

    before: Callable[[Point], None] = lambda point: None
    where: str = "run 1 of experiment rlctl"
    got: list[Any] = field(default_factory=list)
    ends: list[ManagerEnd] = field(default_factory=list)

    def configure(self, config: Mapping[str, Any]) -> None:
        self.got.append(config)

    def add(self, point: Point) -> None:
        self.before(point)
        self.got.append((point.steps, dict(point.values)))

    def end(self, outcome: ManagerEnd) -> None:
        self.ends.append(outcome)


def point(steps: int) -> Point:
    return Point(steps, 1.7e9, {"return/train": steps / 10})


def end(tracker: Background, outcome: ManagerEnd = "finished", within_s: float = WITHIN_S) -> None:
    tracker.close(outcome)
    await_end([tracker], lambda: within_s, lambda: None)


def test_every_point_arrives_in_order_and_then_the_end() -> None:
    fake = Fake()
    tracker = Background("fake", lambda: fake)
    for steps in (100, 200, 150):
        tracker.put(point(steps))
    wait_until(lambda: len(fake.got) == 3, "the points")
    tracker.configure({"seed": 3})
    end(tracker)
    assert fake.got == [
        (100, {"return/train": 10}),
        (200, {"return/train": 20}),
        (150, {"return/train": 15}),
        {"seed": 3},
    ]
    assert (fake.ends, tracker.lost, tracker.problem) == (["finished"], 0, "")
    assert tracker.news() == ["tracker fake: run 1 of experiment rlctl"]
    assert tracker.news() == []


def test_a_slow_tracker_never_makes_the_manager_wait_and_what_does_not_fit_is_counted_and_told_once() -> None:
    goes_on, took = threading.Event(), threading.Event()

    def slow(_: Point) -> None:
        took.set()
        goes_on.wait(WITHIN_S)

    tracker = Background("fake", lambda: Fake(slow), room=3)
    tracker.put(point(0))
    assert took.wait(WITHIN_S)
    tracker.news()
    for steps in range(1, 10):
        tracker.put(point(steps))  # it would hang here
    assert tracker.lost == 6
    assert tracker.news() == ["tracker fake: it is slow: 3 points wait for it; 6 points are lost"]
    tracker.put(point(11))
    assert tracker.news() == [], "told once"
    assert "7 points are lost" in tracker.problem, "the status goes on counting"
    goes_on.set()
    end(tracker)
    assert (tracker.lost, tracker.problem) == (7, "")


def test_a_point_that_a_tracker_refuses_is_lost_and_the_next_one_is_not() -> None:
    def refuse(point: Point) -> None:
        if point.steps < 300:
            raise RuntimeError("500 Internal Server Error\nwith a page of HTML")

    fake = Fake(refuse)
    tracker = Background("fake", lambda: fake)
    for steps in (100, 200, 300):
        tracker.put(point(steps))
    end(tracker, "failed")
    assert [steps for steps, _ in fake.got] == [300]
    assert (fake.ends, tracker.lost) == (["failed"], 2)


def test_a_spec_that_a_tracker_refuses_comes_again_with_the_next_point() -> None:
    class Away(Fake):
        def configure(self, config: Mapping[str, Any]) -> None:
            if not self.got:
                raise OSError("away")
            super().configure(config)

    fake = Away()
    tracker = Background("fake", lambda: fake)
    tracker.configure({"lr": 1})
    wait_until(lambda: bool(tracker.problem), "the refusal")
    for steps in (100, 200):
        tracker.put(point(steps))
    wait_until(lambda: {"lr": 1} in fake.got, "the spec")
    end(tracker)
    assert (len(fake.got), tracker.lost, tracker.problem) == (3, 0, "")


def test_even_an_exit_of_the_package_ends_nothing_but_the_attempt() -> None:
    def leave(_: Point) -> None:
        sys.exit(1)

    tracker = Background("fake", lambda: Fake(leave))
    tracker.put(point(1))
    end(tracker)
    assert tracker.lost == 1


def test_a_tracker_that_cannot_be_opened_is_tried_again_and_gets_what_has_waited() -> None:
    fake, tries = Fake(), list[int]()

    def open_run() -> Fake:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("nobody listens")
        return fake

    tracker = Background("fake", open_run, retry_s=0.0)
    tracker.put(point(100))
    wait_until(lambda: bool(tracker.where), "the tracker to open", WITHIN_S)
    end(tracker)
    assert [steps for steps, _ in fake.got] == [100]
    assert (len(tries), tracker.lost) == (3, 0)


def test_the_end_does_not_wait_for_a_tracker_that_hangs_once_the_manager_is_told_to_leave() -> None:
    goes_on, beats = threading.Event(), list[int]()

    def hang(_: Point) -> None:
        goes_on.wait(WITHIN_S)

    tracker = Background("fake", lambda: Fake(hang))
    for steps in (1, 2, 3):
        tracker.put(point(steps))
    tracker.close("stopped")
    await_end([tracker], lambda: 0.0 if len(beats) > 1 else WITHIN_S, lambda: beats.append(1))
    assert tracker.lost in (2, 3), "what it was given and may still take is not counted as lost"
    assert beats
    goes_on.set()


def test_no_message_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush" * 10)
    error = RuntimeError(f"key {'hush' * 10} for https://me:word@host:5000/api refused")
    assert redacted(error) == "RuntimeError: key *** for https://***@host:5000/api refused"


def test_leaves_of_a_spec_are_named_by_their_path() -> None:
    config = {"env": {"id": "a", "kwargs": {}}, "seed": 3, "model": {"hidden": [64]}, "entity": None}
    assert flat(config) == {
        "env.id": "a", "env.kwargs": "{}", "seed": "3", "model.hidden": "[64]", "entity": "null"
    }  # fmt: skip


def curves(folder: Path, fake: Fake, **more: Any) -> Curves:
    return Curves(CurveWriter(folder, 1), [Background("fake", lambda: fake)], unix=lambda: 1.7e9, **more)


def test_trackers_get_the_curves_of_tensorboard_a_changed_spec_and_the_end(tmp_path: Path) -> None:
    fake, configs = Fake(), iter([{"lr": 1}, {"lr": 1}, {}, {"lr": 2}])
    with curves(tmp_path, fake, config=lambda: next(configs)) as made:
        made.add(100, {"return/train": 10.0, "loss/policy": 0.5})
        for _ in range(3):  # as before; not to be read just now; another one
            made.turn()
        made.void_from(50)
        made.outcome = "finished"
    points = [(100, {"return/train": 10.0, "loss/policy": 0.5}), (50, {WENT_BACK: 1.0})]
    assert [one for one in fake.got if one != {"lr": 2}] == points
    assert fake.got.count({"lr": 2}) == 1
    assert fake.ends == ["finished"]


def test_an_end_by_an_error_or_by_another_process_is_a_failure_and_one_that_was_asked_for_is_none(
    tmp_path: Path,
) -> None:
    fake = Fake()
    with pytest.raises(RuntimeError), curves(tmp_path, fake):
        raise RuntimeError("the time is over in vain")
    with curves(tmp_path, fake, gave_up=lambda: True):
        pass
    with curves(tmp_path, fake):
        pass
    with curves(tmp_path, fake) as made:
        made.outcome = "replaced"
    assert fake.ends == ["failed", "failed", "stopped", "replaced"]


def test_losses_and_problems_are_told_by_name(tmp_path: Path) -> None:
    def refuse(_: Point) -> None:
        raise RuntimeError("quota exceeded")

    with curves(tmp_path, Fake(refuse)) as made:
        made.add(1, {"a": 1.0})
        wait_until(lambda: "lost" in str(made.problems), "the point to be refused", WITHIN_S)
        assert made.problems == [
            {"text": "tracker fake: RuntimeError: quota exceeded; 1 points are lost", "next": "rlctl logs manager"}
        ]
    assert made.losses == ["tracker fake: 1 points are lost"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_says_which_extra_brings_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"rlctl_agents.manager.trackers.{name}", raising=False)
    run = TrackedRun("r", "ab" * 16, 1, tmp_path, tmp_path, {})
    (tracker,) = opened_trackers(Trackers.model_validate({name: {}}), run)
    end(tracker)
    assert tracker.news() == [
        f'tracker {name}: Missing: {name} is not installed: pip install "rlctl[{name}]", or images.core with'
        f" --build-arg EXTRAS={name}"
    ]
