"""Ready and alive, role by role: what `/readyz` and `/healthz` say while others are there, and while they are not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlctl.spec.layout import Layout
from rlctl_agents.roles import actor, evaluator, learner, modelpool
from rlctl_agents.roles.actor import FLUSH_OFF_HOST_S
from rlctl_agents.runtime.health import Pulse
from rlctl_agents.runtime.manager_session import LAST_REPORT_S
from rlctl_agents.runtime.process import STOP_S, Process
from rlctl_agents.types.control import Commit, Generation, Match
from rlctl_agents.types.experience import ModelRef
from rlctl_agents.weights import client
from tests.envs.tiny import Reach
from tests.manager.world import Run, boot, ref
from tests.runtime.test_process_says import Clock
from tests.support.chain import private_folder
from tests.support.fakes import Manager, Pool, process_of, running, wait_until
from tests.support.workers.small import SPEC, spec_of
from tests.weights.test_modelpool import World


class Beats(Pulse):
    """Counts the turns of the loop."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.count = 0

    def beat(self) -> None:
        super().beat()
        self.count += 1


@pytest.fixture
def folder() -> Iterator[Path]:
    with private_folder() as folder:
        Layout(folder).make()
        yield folder


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    with Manager(folder) as manager:
        manager.matches["actor"] = Match(1, {0: ModelRef("main", -1, -1)}, (0,), 7)
        yield manager


def beating(process: Process) -> Beats:
    process.pulse = Beats(Clock())
    return process.pulse


def test_a_modelpool_is_ready_when_it_holds_the_current_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    seen = [world.pool.ready]
    world.put(7)
    seen.append(world.pool.ready)
    assert world.keep(7).file
    world.start()
    seen.append(world.pool.ready)  # what is kept is not what the run is at
    assert seen == [False, True, False]


def test_a_modelpool_is_alive_and_not_ready_while_there_is_no_learner(folder: Path, manager: Manager) -> None:
    process = process_of("modelpool", manager, SPEC, volume=folder)
    pulse = beating(process)
    with running(modelpool.main, process) as raised:
        wait_until(lambda: pulse.count > 3, "turns of the loop")
        assert (pulse.alive, pulse.ready) == (True, False)
    assert raised == []


@pytest.mark.parametrize("role", [actor, evaluator])
def test_who_plays_is_ready_once_it_has_weights_in_hand_and_alive_while_it_waits_for_them(
    role: object, folder: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PULL_S", 0.1)  # a turn of the loop
    name = "actor" if role is actor else "evaluator"
    process = process_of(name, manager, SPEC)
    pulse = beating(process)
    main = actor.main if role is actor else evaluator.main
    with running(main, process) as raised:
        wait_until(lambda: pulse.count > 3, "turns of the loop while there is no modelpool")
        assert (pulse.alive, pulse.ready) == (True, False)
        with Pool(folder), running(learner.main, process_of("learner", manager, SPEC, volume=folder)):
            wait_until(lambda: pulse.ready, "weights")
        turns = pulse.count
        wait_until(lambda: pulse.count > turns + 3, "turns of the loop when learner and modelpool are gone")
        assert pulse.alive
    assert raised == []


class LoadsAWorld(Reach):
    """Its reset takes as long as a test wants."""

    begun, loaded = threading.Event(), threading.Event()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.begun.set()
        self.loaded.wait(60)
        return super().reset(seed=seed)


def test_who_plays_is_alive_during_a_reset_of_ten_minutes_and_not_during_one_without_end(
    folder: Path, manager: Manager
) -> None:
    spec = spec_of(env={"id": f"{__name__}:LoadsAWorld"})
    process = process_of("actor", manager, spec)
    clock = Clock()
    process.pulse = Pulse(clock)
    learning = running(learner.main, process_of("learner", manager, spec, volume=folder))
    with Pool(folder), learning, running(actor.main, process) as raised:
        assert LoadsAWorld.begun.wait(60)
        clock.now += 600
        assert process.pulse.alive
        clock.now += 600
        assert not process.pulse.alive
        LoadsAWorld.loaded.set()
        wait_until(lambda: process.pulse.alive, "a turn of the loop")
    assert raised == []


def test_a_learner_is_ready_once_it_has_joined_and_alive_while_nobody_says_what_the_environment_is(
    folder: Path, manager: Manager
) -> None:
    process = process_of("learner", manager, SPEC, volume=folder)
    clock = Clock()
    process.pulse = Pulse(clock)
    with running(learner.main, process) as raised:
        wait_until(lambda: len(manager.hellos) >= 2, "it asks again")
        clock.now += 3600
        assert (process.pulse.alive, process.pulse.ready) == (True, False)
        with running(actor.main, process_of("actor", manager, SPEC)):
            wait_until(lambda: process.pulse.ready, "the learner")
    assert raised == []


def test_a_learner_reports_while_it_reads_a_large_generation(folder: Path, manager: Manager) -> None:
    part = Layout(folder).checkpoints / "large"
    os.mkfifo(part)  # as long as nobody writes there, reading takes
    generation = Generation(7, "main", 1, ModelRef("main", 1, 7), 700, 0.0, {"learner": part.name}, {"learner": "ab"})
    manager.generations = (generation,)
    process = process_of("learner", manager, SPEC, volume=folder)
    with running(actor.main, process_of("actor", manager, SPEC)), running(learner.main, process) as raised:
        wait_until(lambda: manager.newest("learner") is not None, "a report")
        report = manager.newest("learner")
        assert report is not None
        assert report.gauges["resuming"] == 1
        assert not process.pulse.ready
        part.write_bytes(b"not what was written")
        wait_until(lambda: bool(raised), "the end")
    assert "none of 1 generations can be read" in str(raised[0])


def test_nothing_is_said_of_a_learner_that_has_not_resumed_yet(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.join("actor", 3)
    run.join("learner", 2)
    run.learn(2, steps=700, version=7)
    for number in (1, 2):
        (run.layout.checkpoints / f"part{number}").write_bytes(b"x")
        parts, sums = {"learner": f"part{number}"}, {"learner": "ab"}
        generation = Generation(number, "main", run.manager.life.term, ref(number), 100 * number, 0.0, parts, sums)
        assert run.manager.commit(Commit(generation, boot(2))).ok
    run.join("learner", 22)

    def resumed() -> list[str]:
        return [one["text"] for one in run.manager.events.since(0)[0] if one["kind"] == "resumed"]

    run.report("learner", 22, gauges={"resuming": 1.0})
    assert resumed() == []
    run.report("learner", 22, gauges={"resuming": 0.0, "resumed_generation": 1.0})
    assert resumed() == ["learner 0 went on from generation 1: version 1, 100 steps"]


def test_what_an_actor_does_at_its_end_fits_into_the_time_it_has() -> None:
    last_report_s = LAST_REPORT_S + 2.0
    assert FLUSH_OFF_HOST_S + last_report_s + LAST_REPORT_S < STOP_S
