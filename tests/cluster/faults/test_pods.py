"""Pods are evicted and killed: one run loses one after the other, then all at once, and training goes on."""

import pytest

from tests.cluster.support.people import Person
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Witness

pytestmark = [pytest.mark.faults, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]


CORE = ("manager", "modelpool", "learner")


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images, steps=15000, actors=2)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """For one loss after the other; each test compares with what it found."""
    return started


def test_an_evicted_actor_is_replaced_and_nobody_else_notices(run: Training, witness: Witness) -> None:
    others, actors = run.uids(*CORE, "evaluator"), run.uids("actor")
    witness.evict(sorted(actors)[0], run.who.namespace)
    run.until("actor", 2)
    assert len(set(run.uids("actor").values()) - set(actors.values())) == 1
    run.goes_on()
    assert run.uids(*CORE, "evaluator") == others
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


@pytest.mark.parametrize("role", ["learner", "manager", "modelpool"])
def test_an_evicted_core_role_comes_back_and_training_goes_on(role: str, run: Training, witness: Witness) -> None:
    before, steps = run.uids(role), run.steps()
    witness.evict(f"train-{role}-0", run.who.namespace)
    run.until(role, 1, other_than=before)
    run.goes_on()
    status = run.status()
    assert status["totals"]["consumed_steps"] > steps * 0.5, "no more is lost than since the newest generation"
    assert status["policies"]["main"]["ledger"]["balanced"]


def test_every_pod_killed_at_once_goes_on_from_the_newest_generation(run: Training, witness: Witness) -> None:
    newest, last = _generation(run, "checkpoint"), _generation(run, "resumed")
    while newest <= last:  # until there is something to go on from that nobody has gone on from
        run.goes_on(1000)
        newest = _generation(run, "checkpoint")
    pods = {"manager": 1, "modelpool": 1, "learner": 1, "actor": 2, "evaluator": 1}
    before = run.uids(*pods)
    for name in before:
        witness.delete("Pod", name, run.who.namespace, grace_s=0)
    for role, count in pods.items():
        run.until(role, count, other_than=before)
    run.goes_on()
    assert _generation(run, "resumed") >= newest
    assert run.status()["resumed"]["steps"] > 0


def _generation(run: Training, what: str) -> int:
    """Number of the newest one, or of that from which the run has gone on; 0: none."""
    return int((run.status()[what] or {"number": 0})["number"])
