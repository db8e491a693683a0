"""Cadence of evaluations: as the spec states it, or as a tenth of the run's CPU or a fifth of a core allows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rlctl_agents.manager.accounting.counters import Cpu
from rlctl_agents.manager.evaluation.cadence import CPU_SHARE, LONGEST_S, SHORTEST_S, Cadence
from tests.manager.world import ACTOR, JUDGE, LEARNER, POOL, Run, Time, boot, everybody, play, ref, status


class Machine:
    """Cores that are always busy; an evaluation takes so many CPU seconds, and first of all."""

    def __init__(self, cores: float, cost_s: float) -> None:
        self.time, self.cores, self.cost_s = Time(), cores, cost_s
        self.evaluators = self.everything = self.left_s = 0.0
        self.hopeful = False
        self.cadence = Cadence(self.time, lambda: Cpu(self.evaluators, self.everything), lambda: self.hopeful)
        self.starts: list[float] = []

    def run(self, seconds: int, every_s: float | None = None) -> None:
        """The evaluator asks once a second when it is idle."""
        for _ in range(seconds):
            if self.left_s <= 0 and self.cadence.due(every_s):
                self.cadence.begin()
                self.starts.append(self.time.now)
                self.left_s = self.cost_s
            played_s = min(self.left_s, 1.0)
            self.left_s -= played_s
            self.evaluators += played_s
            self.everything += self.cores
            self.time.now += 1

    @property
    def share(self) -> float:
        return self.evaluators / self.everything

    @property
    def apart_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.starts)]


def test_by_default_evaluation_takes_a_tenth_of_the_cpu_however_much_one_costs() -> None:
    machine = Machine(cores=2, cost_s=4)
    machine.run(600)
    assert set(machine.apart_s) == {20}, "4 s of 40 CPU seconds"
    assert machine.share == pytest.approx(CPU_SHARE)
    taken = machine.cadence.taken
    assert taken is not None
    assert (taken.every_s, taken.cpu_share) == (20, pytest.approx(CPU_SHARE))


@pytest.mark.parametrize(
    ("cores", "cost_s", "apart_s"),
    [(2, 0.5, SHORTEST_S), (64, 9, SHORTEST_S), (2, 20, 100), (1, 5, LONGEST_S), (1, 20, 100), (16, 20, 20)],
)
def test_the_next_evaluation_starts_when_the_last_one_is_paid_for(cores: float, cost_s: float, apart_s: float) -> None:
    machine = Machine(cores, cost_s)
    machine.run(1000)
    assert set(machine.apart_s) == {apart_s}


def test_once_training_has_come_to_the_goal_evaluations_are_30_s_apart_at_most() -> None:
    machine = Machine(cores=2, cost_s=20)
    machine.run(250)
    machine.hopeful = True
    machine.run(100)
    assert machine.apart_s == [100, 100, 50, 30, 30, 30], "at once, then each 30 s"


def test_an_evaluator_that_asks_between_two_seconds_still_starts_within_30_s() -> None:
    machine = Machine(cores=1, cost_s=5)
    machine.run(1)
    machine.time.now += 0.4
    machine.run(100)
    assert max(machine.apart_s) <= LONGEST_S


def test_an_evaluation_that_was_cut_short_says_nothing_of_the_cadence() -> None:
    machine = Machine(cores=2, cost_s=4)
    machine.run(25)
    before = machine.cadence.taken
    machine.cadence.again()
    machine.left_s = 0.0
    machine.run(5)
    assert machine.apart_s == [20, 5]
    assert machine.cadence.taken == before


def test_an_evaluation_that_was_dear_delays_only_its_own_successor() -> None:
    machine = Machine(cores=2, cost_s=5)
    machine.run(26)
    machine.cost_s = 1.0
    machine.run(100)
    assert machine.apart_s[:1] == [25]
    assert set(machine.apart_s[2:]) == {SHORTEST_S}


@pytest.mark.parametrize("every_s", [1.0, 7.0, 300.0])
def test_a_stated_cadence_is_obeyed_whatever_it_costs(every_s: float) -> None:
    machine = Machine(cores=2, cost_s=1)
    machine.run(1000, every_s)
    assert set(machine.apart_s) == {every_s}
    taken = machine.cadence.taken
    assert taken is not None
    assert taken.cpu_share == pytest.approx(1 / (2 * every_s)), "and what it takes is told"


def cpu(run: Run, seconds: float, judge_s: float) -> None:
    """So much time passes; actor, learner and modelpool have used two cores, the evaluator some of it."""
    run.time.now += seconds
    for role, number, used_s in (
        ("actor", ACTOR, run.time.now), ("learner", LEARNER, run.time.now - judge_s), ("modelpool", POOL, 0.0),
    ):  # fmt: skip
        model = ref(int(run.time.now)) if role != "actor" else None
        run.report(role, number, counters={"cpu_seconds": used_s, "consumed_steps": 1.0}, model=model)


@pytest.mark.parametrize(
    ("sections", "apart_s"),
    [
        ({}, 20),
        ({"evaluation": {"every": "5s", "episodes": 2}}, 5),
        ({"sync": True}, 10),
        ({"sync": True, "evaluation": {"every": "5s", "episodes": 2}}, 5),
    ],
)
def test_the_manager_counts_the_cpu_seconds_that_all_processes_report(
    tmp_path: Path, sections: dict[str, object], apart_s: float
) -> None:
    run = Run(tmp_path, **{"evaluation": {"episodes": 2}, **sections})
    everybody(run)
    used_s, starts, number = 0.0, list[float](), 1
    for _ in range(100):
        cpu(run, 1, used_s)
        orders = run.report("evaluator", JUDGE, counters={"cpu_seconds": used_s})
        if orders.match is not None and orders.match.id != number:
            number = orders.match.id
            starts.append(run.time.now)
            used_s += 4
            run.report("evaluator", JUDGE, counters={"cpu_seconds": used_s})
            assert play(run, orders.match, 1.0, 2.0).ok
    apart = [after - before for before, after in pairwise(starts)]
    assert apart[0] == pytest.approx(apart_s, abs=1.0)
    assert len(set(apart)) == 1
    told = status(run)["cadence"]
    assert told["every_s"] == apart[0]
    assert told["cpu_share"] == pytest.approx(4 / (2 * apart[0]), abs=0.02)
    stated = run.settings.evaluation.every
    assert told["stated_s"] == (stated if stated or not run.settings.sync else 10)


def test_an_evaluation_that_dies_with_its_evaluator_does_not_hold_up_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path)
    everybody(run)
    cpu(run, 1, 0.0)
    assert run.report("evaluator", JUDGE).match is not None
    run.join("evaluator", 44, prefer=0)
    assert run.report("evaluator", 44).match is not None
    assert run.manager.members.leases.alive(boot(44))


@pytest.mark.parametrize(("trained", "apart_s"), [(9.0, 100.0), (10.0, 30.0)])
def test_the_return_of_training_makes_the_manager_look_sooner(tmp_path: Path, trained: float, apart_s: float) -> None:
    run = Run(tmp_path, stop={"eval_return": 10}, evaluation={"episodes": 2})
    everybody(run)
    run.report("actor", ACTOR, gauges={"train_return": trained})
    starts, used_s = list[float](), 0.0
    for _ in range(202):
        run.time.now += 1
        now = run.time.now
        run.report("actor", ACTOR, counters={"cpu_seconds": now}, gauges={"train_return": trained})
        run.learn(LEARNER, steps=int(now), version=int(now))
        run.report("modelpool", POOL, model=ref(int(now)))
        orders = run.report("evaluator", JUDGE, counters={"cpu_seconds": used_s})
        if orders.match is not None:
            starts.append(now)
            used_s += 20
            run.report("evaluator", JUDGE, counters={"cpu_seconds": used_s})
            assert play(run, orders.match, 1.0, 2.0).ok
    assert {after - before for before, after in pairwise(starts)} == {apart_s}
