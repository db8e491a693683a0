"""Shards of a replay are killed, cut off, added and removed: training goes on, and rows come back."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.cluster.support.contract import Contract
from tests.cluster.support.images import relabelled
from tests.cluster.support.people import Person
from tests.cluster.support.specs import SMALL, WORKLOADS
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Object, Witness
from tests.end_to_end.conftest import wait_until

pytestmark = [
    pytest.mark.faults, pytest.mark.two_nodes, pytest.mark.rwx, pytest.mark.registry, pytest.mark.disturb,
]  # fmt: skip

CORE = ("manager", "modelpool", "learner")
CAPACITY = 20_000
"""Of both shards: filled within a minute."""


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    """The core and all actors on n1, a shard on each node."""
    for role in (*WORKLOADS, "replay"):
        template: Object = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
        if role == "replay":
            strict = {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            template = {"topologySpreadConstraints": [strict]}
        resident.writes(f"templates/{role}.patch.yaml", yaml.safe_dump({"spec": {"template": {"spec": template}}}))
    run = start(
        resident, witness, images, steps=4000,
        algorithm={"name": "apex_dqn"}, model={},
        replay={"capacity": CAPACITY, "checkpoint": "full"}, checkpoint={"every": "10s"},
        roles={
            **SMALL, "actor": {**SMALL["actor"], "replicas": 2, "envs": 8},
            "replay": {"replicas": 2, "cpu": 0.1, "memory": "512Mi"},
        },
    )  # fmt: skip
    assert {pod["spec"]["nodeName"] for pod in run.pods("replay").values()} == {"n1", "n2"}
    assert {pod["spec"]["nodeName"] for pod in run.pods("learner").values()} == {"n1"}
    return run


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """For one loss after the other; each test compares with what it found."""
    return started


def test_a_killed_shard_comes_back_and_nobody_else_notices(run: Training, witness: Witness) -> None:
    wait_until(lambda: bool(run.status()["checkpoint"]), timeout_s=120, what="a generation")
    core, shards, before = run.uids(*CORE), run.uids("replay"), replay(run)
    gone = "train-replay-1"
    witness.delete("Pod", gone, run.who.namespace, grace_s=0)
    run.until("replay", 2, other_than={gone: shards[gone]})
    run.goes_on()
    wait_until(lambda: answering(run) == 2, timeout_s=60, what="both shards")
    run.goes_on()
    assert run.uids(*CORE) == core
    assert set(run.uids("replay").values()) - {run.uids("replay")[gone]} == set(shards.values()) - {shards[gone]}
    after = replay(run)
    assert after["inserted"] > before["inserted"], "what the dead one had inserted still counts"
    assert "restored replay1 of generation" in run.who("logs", "replay/1", "--run", "train").stdout
    assert before["wanted_samples_per_insert"] == after["wanted_samples_per_insert"]
    assert after["samples_per_insert"] == pytest.approx(after["wanted_samples_per_insert"], rel=0.1)
    balanced(run)


def test_a_shard_whose_node_is_cut_off_is_left_out_and_comes_back(
    run: Training, witness: Witness, contract: Contract
) -> None:
    core = run.uids(*CORE)
    lost = next(name for name, pod in run.pods("replay").items() if pod["spec"]["nodeName"] == "n2")
    contract.disturb("cut", "n2")
    try:
        wait_until(lambda: answering(run) == 1, timeout_s=120, what="the learner to leave out the shard")
        run.goes_on()  # with the shard of the other node
        told = run.who("status", "train").stdout
        assert "1 of 2 shards answer" in told
    finally:
        contract.disturb("mend", "n2")
    run.until("replay", 2, timeout_s=240)
    wait_until(lambda: answering(run) == 2, timeout_s=120, what="both shards")
    run.goes_on()
    assert run.uids(*CORE) == core
    assert lost in run.pods("replay")
    balanced(run)


@pytest.mark.buildah
def test_another_image_rolls_through_the_shards_and_training_goes_on(run: Training, images: dict[str, str]) -> None:
    wait_until(
        lambda: not (run.status()["checkpoint"] or {"absent": True})["absent"],
        timeout_s=120, what="a generation with the rows of both shards",
    )  # fmt: skip
    learner, shards = run.uids("learner"), run.uids("replay")
    generation = run.status()["checkpoint"]["number"]
    other = relabelled(images["core"])
    run.up("--set", f"images.core={other}")
    run.until("replay", 2, other_than=shards, timeout_s=240)
    run.until("manager", 1)
    assert {container["image"] for pod in run.pods("replay").values() for container in pod["spec"]["containers"]} == {
        other
    }
    wait_until(lambda: answering(run) == 2, timeout_s=120, what="both shards")
    run.goes_on()
    assert run.uids("learner") == learner
    for shard in range(2):
        [restored] = re.findall(
            rf"restored replay{shard} of generation (\d+)", run.who("logs", f"replay/{shard}", "--run", "train").stdout
        )[-1:]
        assert int(restored) >= generation, "rows of the newest generation, not of the first"
    balanced(run)


def test_shards_are_added_and_removed_while_it_trains(run: Training) -> None:
    core = run.uids(*CORE)
    run.who("scale", "replay=3", "--run", "train")
    run.until("replay", 3)
    wait_until(lambda: answering(run) == 3, timeout_s=120, what="the new shard")
    run.goes_on()
    run.who("scale", "replay=1", "--run", "train")
    run.until("replay", 1)
    wait_until(lambda: answering(run) == 1, timeout_s=120, what="the others to be gone")
    run.goes_on()
    assert run.uids(*CORE) == core
    wait_until(lambda: replay(run)["dropped"] > 0, timeout_s=30, what="the leases of the others to end")
    balanced(run)


def replay(run: Training) -> dict[str, Any]:
    """Figures of the replay, of all shards."""
    told = run.status()["replay"]
    assert isinstance(told, dict), json.dumps(told)
    return told


def answering(run: Training) -> int:
    """Shards that the learner draws from."""
    return int(replay(run)["shards"]["answer"] or 0)


def balanced(run: Training) -> None:
    ledger = run.status()["policies"]["main"]["ledger"]
    assert ledger["balanced"], ledger
