"""The API server is away, one node is cut off, then the other: a run on both goes on, and `status` tells of it."""

import pytest
import yaml

from tests.cluster.faults.test_server import until_it_knows_us
from tests.cluster.support.contract import Contract
from tests.cluster.support.people import Person
from tests.cluster.support.specs import WORKLOADS
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Object, Witness

pytestmark = [
    pytest.mark.faults, pytest.mark.two_nodes, pytest.mark.rwx, pytest.mark.registry, pytest.mark.disturb,
]  # fmt: skip

CORE = ("manager", "modelpool", "learner")


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    """The core on n1, one actor on each node."""
    for role in WORKLOADS:
        template: Object = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
        if role == "actor":
            strict = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            template = {"topologySpreadConstraints": [strict]}
        resident.writes(f"templates/{role}.patch.yaml", yaml.safe_dump({"spec": {"template": {"spec": template}}}))
    run = start(resident, witness, images, actors=2)
    assert {pod["spec"]["nodeName"] for pod in run.pods("actor").values()} == {"n1", "n2"}
    return run


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """For one disturbance after the other; each test compares with what it found."""
    return started


def test_training_does_not_notice_that_the_api_server_is_away(run: Training, contract: Contract) -> None:
    before, steps, restarts = run.uids(*CORE, "actor", "evaluator"), run.steps(), _restarts(run)
    contract.disturb("restart", "kube-apiserver")
    until_it_knows_us(run.who, "status", "train")
    run.who("wait", "train", "--for", f"consumed_steps={steps + 5000}", "--timeout", "3m", timeout_s=240)
    assert run.uids(*CORE, "actor", "evaluator") == before
    assert _restarts(run) == restarts


def test_a_node_that_is_cut_off_costs_its_actors_and_comes_back(
    run: Training, witness: Witness, contract: Contract
) -> None:
    core = run.uids(*CORE)
    contract.disturb("cut", "n2")
    try:
        _until_node(witness, "n2", ready=False)
        run.goes_on()  # with the actor of the other node
        told = run.who("status", "train")
        assert "n2" in told.stdout
    finally:
        contract.disturb("mend", "n2")
    _until_node(witness, "n2", ready=True)
    run.until("actor", 2, timeout_s=240)
    run.goes_on()
    assert run.uids(*CORE) == core
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


def test_actors_that_lost_sight_of_the_core_come_back_to_it(
    run: Training, witness: Witness, contract: Contract
) -> None:
    """The node of the core is cut off, shorter than anybody gives up: nothing is restarted for good."""
    before = run.uids(*CORE)
    contract.disturb("cut", "n1")
    try:
        _until_node(witness, "n1", ready=False)
    finally:
        contract.disturb("mend", "n1")
    _until_node(witness, "n1", ready=True)
    for role in CORE:
        run.until(role, 1, timeout_s=240)
    run.goes_on()
    assert run.uids(*CORE) == before


def _restarts(run: Training) -> dict[str, int]:
    """Pod -> how often its containers were started again."""
    statuses = {name: pod["status"].get("containerStatuses") or () for name, pod in run.pods().items()}
    return {name: sum(int(each.get("restartCount") or 0) for each in every) for name, every in statuses.items()}


def _until_node(witness: Witness, name: str, *, ready: bool) -> None:
    def is_so(nodes: dict[str, Object]) -> bool:
        conditions = nodes[name]["status"]["conditions"]
        return any(each["type"] == "Ready" and (each["status"] == "True") == ready for each in conditions)

    what = f"node {name} to be {'ready' if ready else 'lost'}"
    witness.until("Node", None, is_so, what=what, timeout_s=120)
