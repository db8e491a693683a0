"""The verdict of `status` on real runs in which one side is slow by our doing.

An environment and an algorithm of an outside project are as slow as their parameters say; a modelpool is slow because
the kernel stops it most of the time.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.end_to_end.conftest import Cli, wait_until
from tests.support.samples import sample

pytestmark = [pytest.mark.processes, pytest.mark.alone, pytest.mark.timeout(900)]

VERDICT_S = 240.0
"""A verdict covers the last ten seconds and begins five after the first update; the rest is for a busy machine."""

SLOW = '''
import time

import gymnasium
import numpy as np

from rlctl_agents.algorithms.impala import Impala


class Lamp(gymnasium.Env):
    """Twenty steps; each takes so many seconds, as if somebody else computed it."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_s=0.0):
        self._step_s = step_s

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if self._step_s:
            time.sleep(self._step_s)
        self.left -= 1
        return np.ones(2, np.float32), float(action), self.left == 0, False, {}


class Heavy(Impala):
    """IMPALA whose loss takes a quarter of a second."""

    def loss(self, batch):
        time.sleep(0.25)
        return super().loss(batch)
'''


def start(cli: Cli, run: str, *, step_s: float = 0.0, **algorithm: Any) -> None:
    """A run of the slow package; it goes on until `down`."""
    (cli.folder / "slow.py").write_text(SLOW)
    spec = cli.spec(
        run,
        env={"id": "slow:Lamp", "kwargs": {"step_s": step_s}},
        algorithm={"name": "impala", "unroll_length": 10, "batch_size": 40, "max_lag_versions": 8} | algorithm,
        code={"path": "."},
        roles={"actor": {"replicas": 1, "envs": 4}, "evaluator": {"replicas": 0}},
        stop={"wall_time": "1h"},
    )
    cli("up", spec, "-d")


def verdict(cli: Cli, run: str, *kinds: str) -> dict[str, Any]:
    """The first verdict of one of these kinds."""
    seen: list[dict[str, Any]] = []

    def given() -> bool:
        seen.append(cli.status(run)["verdict"])
        return seen[-1]["kind"] in kinds

    try:
        wait_until(given, timeout_s=VERDICT_S, what=f"the verdict {' or '.join(kinds)}")
    except AssertionError as error:
        raise AssertionError(f"{error}; the last was {seen[-1]}") from None
    return seen[-1]


@contextmanager
def mostly_stopped(pid: int) -> Iterator[None]:
    """A process that gets one slice of time in ten: SIGSTOP takes the others, whatever it does."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while not ended.wait(0.1):
            os.kill(pid, signal.SIGSTOP)
            ended.wait(0.9)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go, name="stop and go")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def a_learner_with_too_few_actors_is_starved(cli: Cli) -> None:
    # so much at once is cheap for each row, unless the value is moved again and again: four environments are too few
    start(cli, "starved", batch_size=1280, value_batches=0)
    found = verdict(cli, "starved", "actor-bound")
    assert found["learner_waits_data"] > max(found["actor_waits_credit"], found["learner_waits_model"])
    assert found["suggest"].startswith("rlctl scale actor=") or "cores of this machine" in found["text"]


def a_slow_modelpool_is_named_and_not_the_actors_that_wait_because_of_it(cli: Cli) -> None:
    # of 40 rows a healthy pool is the slow side: every update is published
    start(cli, "pool", batch_size=640, value_batches=0)
    others = ("actor-bound", "simulator-bound", "learner-bound", "balanced")
    verdict(cli, "pool", *others)
    (pool,) = cli.pids("pool", "modelpool")
    with mostly_stopped(pool):
        found = verdict(cli, "pool", "modelpool-bound")
    assert max(found["learner_waits_model"], found["actor_waits_model"]) >= 0.2
    verdict(cli, "pool", *others)  # as soon as it is fast again


def a_slow_simulator_is_named_behind_the_learner_that_starves(cli: Cli) -> None:
    start(cli, "simulator", step_s=0.02)
    found = verdict(cli, "simulator", "simulator-bound")
    assert found["learner_waits_data"] > 0.5
    assert found["actor_simulates"] > max(found["actor_waits_credit"], found["actor_waits_model"])
    assert "the simulator takes" in found["text"]


def a_slow_learner_is_named_when_actors_may_not_send(cli: Cli) -> None:
    start(cli, "learner", name="slow:Heavy", params={})
    found = verdict(cli, "learner", "learner-bound")
    assert found["actor_waits_credit"] > max(found["learner_waits_data"], found["learner_waits_model"])


SIDES = [
    a_learner_with_too_few_actors_is_starved,
    a_slow_simulator_is_named_behind_the_learner_that_starves,
    a_slow_learner_is_named_when_actors_may_not_send,
    a_slow_modelpool_is_named_and_not_the_actors_that_wait_because_of_it,
]


@pytest.mark.parametrize("side", sample("verdicts", SIDES, 2), ids=lambda side: side.__name__)
def test_the_verdict_names_the_slow_side(cli: Cli, side: Callable[[Cli], None]) -> None:
    side(cli)
