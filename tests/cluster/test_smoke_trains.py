"""A whole run on real pods: from `up` to a solved environment, and what is left to look at."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rlctl.spec.names import selector
from tests.cluster.people import Person
from tests.cluster.specs import SMALL
from tests.cluster.training import Training, start
from tests.cluster.witness import Witness
from tests.end_to_end.conftest import wait_until

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]

SPEC = Path(__file__).parents[2] / "specs/cartpole-impala.yaml"


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images, actors=2)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """For two tests in turn, of which the first changes nothing."""
    return started


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

    ana("down", "cartpole")
    stored = ana.status("cartpole")
    assert stored["phase"] == "finished"
    assert stored["evaluation"]["mean"] >= 475


@pytest.mark.xdist_group("read")
def test_pages_are_forwarded_for_as_long_as_open_runs(run: Training) -> None:
    for page, words in (("status", b"train"), ("tensorboard", b"TensorBoard")):
        with run.who.started("open", page, "train", "--no-browser") as command:
            url = command.line()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(url, timeout=30) as answer:
                assert answer.status == 200
                assert words in answer.read()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(url, timeout=30)  # the link is good once


@pytest.mark.xdist_group("read")
def test_logs_of_every_role_are_merged_and_a_previous_life_is_kept(run: Training) -> None:
    merged = run.who("logs", "--run", "train", "-o", "json").stdout
    assert {"manager/0", "learner/0", "modelpool/0", "actor/0", "actor/1"} <= _processes(merged)
    run.who("logs", "actor", "--run", "train", "--grep", "no such words", code=1)

    before = run.uids("learner")
    run.who("restart", "learner", "--run", "train")
    run.until("learner", 1, other_than=before)
    run.goes_on()
    assert run.who("logs", "learner", "--run", "train", "--previous").stdout


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


def _processes(lines: str) -> set[str]:
    return {json.loads(line)["process"] for line in lines.splitlines() if line.strip()}
