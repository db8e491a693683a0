"""Pods are evicted and killed, a node is cut off: training goes on, and `status` says what happened."""

import pytest
import yaml

from tests.cluster.contract import Contract
from tests.cluster.people import Person
from tests.cluster.specs import WORKLOADS
from tests.cluster.training import Training, start
from tests.cluster.witness import Object, Witness

pytestmark = [pytest.mark.faults, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]


def test_an_evicted_actor_is_replaced_and_nobody_else_notices(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    run = start(ana, witness, images, actors=2)
    others, actors = run.uids("manager", "modelpool", "learner", "evaluator"), run.uids("actor")
    witness.evict(sorted(actors)[0], ana.namespace)
    run.until("actor", 2)
    assert len(set(run.uids("actor").values()) - set(actors.values())) == 1
    run.goes_on()
    assert run.uids("manager", "modelpool", "learner", "evaluator") == others
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


@pytest.mark.parametrize("role", ["learner", "manager", "modelpool"])
def test_an_evicted_core_role_comes_back_and_training_goes_on(
    role: str, ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    run = start(ana, witness, images, rows=15000)
    before, rows = run.uids(role), run.rows()
    witness.evict(f"train-{role}-0", ana.namespace)
    run.until(role, 1, other_than=before)
    run.goes_on()
    status = run.status()
    assert status["totals"]["consumed_rows"] > rows * 0.5, "no more is lost than since the newest generation"
    assert status["policies"]["main"]["ledger"]["balanced"]


def test_every_pod_killed_at_once_goes_on_from_the_newest_generation(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    run = start(ana, witness, images)
    while not (run.status()["checkpoint"] or {"rows": 0})["rows"]:  # until there is something to go on from
        run.goes_on(1000)
    before = run.uids("manager", "modelpool", "learner", "actor", "evaluator")
    for name in before:
        witness.delete("Pod", name, ana.namespace, grace_s=0)
    for role in ("manager", "modelpool", "learner", "actor", "evaluator"):
        run.until(role, 1, other_than=before)
    run.goes_on()
    assert run.status()["resumed"]["rows"] > 0


@pytest.mark.two_nodes
@pytest.mark.disturb
def test_a_node_that_is_cut_off_costs_its_actors_and_comes_back(
    ana: Person, witness: Witness, images: dict[str, str], contract: Contract
) -> None:
    run = _on_two_nodes(ana, witness, images)
    core = run.uids("manager", "modelpool", "learner")
    contract.disturb("cut", "n2")
    try:
        _until_node(witness, "n2", ready=False)
        run.goes_on()  # with the actor of the other node
        told = ana("status", "train")
        assert "n2" in told.stdout
    finally:
        contract.disturb("mend", "n2")
    _until_node(witness, "n2", ready=True)
    run.until("actor", 2, timeout_s=240)
    run.goes_on()
    assert run.uids("manager", "modelpool", "learner") == core
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


@pytest.mark.two_nodes
@pytest.mark.disturb
def test_actors_that_lost_sight_of_the_core_come_back_to_it(
    ana: Person, witness: Witness, images: dict[str, str], contract: Contract
) -> None:
    """The node of the core is cut off, shorter than anybody gives up: nothing is restarted for good."""
    run = _on_two_nodes(ana, witness, images)
    before = run.uids("manager", "modelpool", "learner")
    contract.disturb("cut", "n1")
    try:
        _until_node(witness, "n1", ready=False)
    finally:
        contract.disturb("mend", "n1")
    _until_node(witness, "n1", ready=True)
    for role in ("manager", "modelpool", "learner"):
        run.until(role, 1, timeout_s=240)
    run.goes_on()
    assert run.uids("manager", "modelpool", "learner") == before


def _on_two_nodes(who: Person, witness: Witness, images: dict[str, str]) -> Training:
    """The core on n1, one actor on each node."""
    for role in WORKLOADS:
        template: Object = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
        if role == "actor":
            strict = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            template = {"topologySpreadConstraints": [strict]}
        who.writes(f"templates/{role}.patch.yaml", yaml.safe_dump({"spec": {"template": {"spec": template}}}))
    run = start(who, witness, images, actors=2)
    assert {pod["spec"]["nodeName"] for pod in run.pods("actor").values()} == {"n1", "n2"}
    return run


def _until_node(witness: Witness, name: str, *, ready: bool) -> None:
    def is_so(nodes: dict[str, Object]) -> bool:
        conditions = nodes[name]["status"]["conditions"]
        return any(each["type"] == "Ready" and (each["status"] == "True") == ready for each in conditions)

    what = f"node {name} to be {'ready' if ready else 'lost'}"
    witness.until("Node", None, is_so, what=what, timeout_s=120)
