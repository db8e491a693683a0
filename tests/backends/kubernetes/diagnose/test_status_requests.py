"""Cost of one look at a run for the API server: `rlctl status` on a cluster that has much else to do."""

from __future__ import annotations

import pytest

from rlctl.backends.kubernetes.api.interface import Object
from rlctl.backends.kubernetes.backend import KubernetesBackend
from rlctl.cli.context import World
from rlctl.cli.run.snapshot import Snapshot, take
from tests.backends.kubernetes.access.test_listing import actors, answering, core, workload
from tests.backends.kubernetes.fakes.reads import NOW, Reads, run_state, state_object

MOST = 12


def look(api: Reads) -> Snapshot:
    """As `rlctl status` does it: the run is found, then looked at."""
    backend = KubernetesBackend(api=api)
    state = backend.find("pong")
    assert state is not None
    snapshot = take(World(clock=lambda: 0.0, now=lambda: NOW), backend, "pong", state)
    assert snapshot is not None
    return snapshot


def cluster(*objects: Object) -> Reads:
    return Reads(state_object(run_state(manager=1, learner=1, actor=10_000)), *core(), *objects)


def test_the_status_of_a_run_that_is_well_takes_seven_requests() -> None:
    api = cluster(*actors(10, 0))
    api.serve = answering({"phase": "running"})

    assert look(api).ready
    assert api.requests.total == 7


@pytest.mark.parametrize("waiting", ["CrashLoopBackOff", "ContainerCreating", "ErrImagePull"])
def test_the_status_of_a_run_in_trouble_takes_few_requests_more(waiting: str) -> None:
    api = cluster(*actors(10, 1000, waiting))

    assert look(api).running("actor") == 9000
    assert api.requests.total <= MOST


def test_a_run_that_has_finished_is_asked_for_once() -> None:
    api = Reads(state_object(run_state(manager=1, learner=1)), *core()[:2], workload("StatefulSet", "learner", 0, 0))
    api.serve = answering({"phase": "finished"})

    assert look(api).phase == "finished"
    assert sum(each.startswith("Pod") for each in api.lists) == 1  # of stateful roles; the manager's is read by name
