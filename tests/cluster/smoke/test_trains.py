"""A whole run on real pods: from `up` to a solved environment, and what is left to look at."""

from pathlib import Path

import pytest

from rlctl.spec.names import selector
from tests.cluster.support.people import Person
from tests.cluster.support.specs import SMALL
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Witness
from tests.end_to_end.conftest import wait_until

pytestmark = [pytest.mark.smoke, pytest.mark.fresh, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]

SPEC = Path(__file__).parents[3] / "specs/cartpole-impala.yaml"


@pytest.mark.timeout(1200)
def test_the_spec_of_the_laptop_trains_to_its_target_on_the_cluster(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    cluster = {"target": "kubernetes", "images": images, "storage": {"size": "1Gi"}, "roles": SMALL}
    overlay = ana.writes("cluster.yaml", cluster)
    done = ana("up", str(SPEC), overlay, timeout_s=500)
    assert "475" in done.stdout

    status = ana.status("cartpole")
    assert status["phase"] == "finished"
    assert status["evaluation"]["episodes"] == 100
    assert status["evaluation"]["mean"] >= 475  # Gymnasium's own threshold for CartPole-v1
    assert status["policies"]["main"]["ledger"]["balanced"]
    assert not status["problems"]

    def released(pods: dict[str, object]) -> bool:
        return {name.rpartition("-")[0] for name in pods if "tensorboard" not in name} == {"cartpole-manager"}

    witness.until(
        "Pod", ana.namespace, released, what="the pods of a finished run to be released", timeout_s=90,
        labels=selector("cartpole"),
    )  # fmt: skip
    assert ana("logs", "learner", "--run", "cartpole", "--tail", "5").stdout, "logs of pods that are gone"
    assert "finished" in ana("up", str(SPEC), overlay).said

    goal = next(one for one in ana("models", "cartpole", "-o", "json").json()["models"] if one["name"] == "goal")
    beginning = ("--set", "run=second", "--set", "init.run=cartpole@goal", "--set", "stop.agent_steps=2000")
    ana("up", str(SPEC), overlay, *beginning, timeout_s=300)
    assert ana.status("second")["init"]["version"] == goal["version"]
    begun = ana("logs", "learner", "--run", "second", "--grep", "begins with").stdout
    assert f"begins with the weights of cartpole@goal, version {goal['version']}" in begun
    ana("down", "second", "--volumes", "--yes")

    ana("pull", "cartpole@goal", "live")
    ana("down", "cartpole")
    stored = ana.status("cartpole")
    assert stored["phase"] == "finished"
    assert stored["evaluation"]["mean"] >= 475

    listed = ana("models", "cartpole", "-o", "json").json()["models"]
    assert next(one for one in listed if one["name"] == "goal") == goal
    ana("pull", "cartpole@goal", "over")
    for name in ("policy.json", "policy.safetensors"):
        assert (ana.home / "over" / name).read_bytes() == (ana.home / "live" / name).read_bytes()
    again = ana("eval", "cartpole@goal", "--episodes", "100", "-o", "json", timeout_s=300).json()
    assert again["results"]["greedy"]["mean"] >= 450
    for file in ("policy.onnx", "policy.pt2"):
        assert "acts as the policy" in ana("export", "cartpole@goal", file, timeout_s=300).said
        assert (ana.home / file).stat().st_size
    ana("play", "cartpole@goal", "--episodes", "1", "--video", "films", timeout_s=300)
    assert [one.read_bytes()[:4] for one in (ana.home / "films").iterdir()] == [b"GIF8"]
    ana("up", str(SPEC), overlay, *beginning, timeout_s=300)
    assert ana.status("second")["init"]["version"] == goal["version"]
    ana("down", "second", "--volumes", "--yes")
    for kind in ("Pod", "NetworkPolicy"):
        witness.until(
            kind, ana.namespace, lambda left: not left, what=f"the {kind} that read the volume to be gone",
            timeout_s=60, labels=selector("cartpole", "reader"),
        )  # fmt: skip
    assert ana("models", "cartpole", "-o", "json").json()["models"] == listed
    ana("down", "cartpole", "--volumes", "--yes")


def test_three_modelpools_are_a_tree_whose_relay_and_root_may_be_lost(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    roles = {**SMALL, "modelpool": {**SMALL["modelpool"], "replicas": 3}, "actor": {**SMALL["actor"], "replicas": 2}}
    run = start(ana, witness, images, run="tree", roles=roles)

    def follow() -> None:
        """Every pool and every actor gets newer weights than the learner has now."""
        newest = run.status()["policies"]["main"]["ref"]["version"]
        wait_until(lambda: min(versions(run, "modelpool")) > newest, timeout_s=120, what="every modelpool")
        wait_until(lambda: min(versions(run, "actor")) > newest, timeout_s=120, what="every actor")

    follow()
    for lost in ("tree-modelpool-2", "tree-modelpool-0"):
        before = {lost: run.uids("modelpool")[lost]}
        witness.delete("Pod", lost, ana.namespace, grace_s=0)
        run.until("modelpool", 3, other_than=before)
        run.goes_on()
        follow()
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


def versions(run: Training, role: str) -> list[int]:
    """Of the weights that each of a role has; -1: none."""
    found = run.status()["roles"][role]
    return [one["model"]["version"] if one["model"] else -1 for one in found] or [-1]
