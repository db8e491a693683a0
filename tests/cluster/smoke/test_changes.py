"""Changes to one run that trains, in this order: the uids of its pods tell what each one does."""

import re
from pathlib import Path

import pytest

from tests.cluster.support.contract import Contract
from tests.cluster.support.images import with_code
from tests.cluster.support.people import Person
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Object, Witness
from tests.end_to_end.conftest import wait_until

pytestmark = [
    pytest.mark.smoke, pytest.mark.early, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry,
    pytest.mark.timeout(1200),  # the images may have to be built first
]  # fmt: skip

ALL = ("manager", "modelpool", "learner", "actor", "evaluator")
TWO = ("--set", "roles.actor.replicas=2")


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    """With the actors that the test before has left: each says what it begins with."""
    return started


def test_more_actors_restart_nothing(run: Training) -> None:
    before = run.uids(*ALL)
    run.who("scale", "actor=3", "--run", "train")
    run.until("actor", 3)
    after = run.uids(*ALL)
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2

    run.up()  # keeps what was scaled
    assert run.uids(*ALL) == after
    run.up(*TWO)
    run.until("actor", 2)
    assert run.uids("manager", "modelpool", "learner", "evaluator").items() <= before.items()
    run.goes_on()
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


def test_changed_code_of_the_actors_rolls_out_while_training_goes_on_and_rolls_back(
    run: Training, images: dict[str, str], contract: Contract, tmp_path: Path
) -> None:
    other = with_code(contract, tmp_path, images)
    assert other != images["actor"]
    run.up(*TWO)
    run.until("actor", 2)
    core, actors = run.uids("manager", "modelpool", "learner"), run.uids("actor")

    run.up(*TWO, "--set", f"images.actor={other}")
    run.until("actor", 2, other_than=actors, timeout_s=180)
    run.goes_on()
    assert run.uids("manager", "modelpool", "learner") == core
    assert _images(run.pods("actor")) == {other}

    newer = run.uids("actor")
    run.who("rollback", "--run", "train")
    run.until("actor", 2, other_than=newer, timeout_s=180)
    run.goes_on()
    assert run.uids("manager", "modelpool", "learner") == core
    assert _images(run.pods("actor")) == {images["actor"]}
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


def test_learners_of_changed_settings_begin_together_when_those_of_old_have_left(run: Training) -> None:
    run.up(*TWO, "--set", "roles.learner.replicas=2")
    run.until("learner", 2, timeout_s=180)
    run.goes_on()
    before, told = run.uids("learner"), len(run.log("manager").splitlines())
    run.up(*TWO, "--set", "roles.learner.replicas=2", "--set", "algorithm.lr=0.0007")
    run.until("learner", 2, other_than=before, timeout_s=300)
    run.goes_on()

    def since() -> str:
        return "\n".join(run.log("manager").splitlines()[told:])

    wait_until(lambda: "2" in _groups(since()), timeout_s=120, what="a group of two")
    log = since()
    before_all_have_left, left, _ = log.partition("learner 0 ")  # ended, or was replaced
    assert left, log
    assert "2" not in _groups(before_all_have_left), f"those that are left learn on alone\n{log}"
    assert "a learner waits: learner/0" in before_all_have_left, log
    assert run.status()["policies"]["main"]["ledger"]["balanced"]


def test_down_and_up_go_on_from_the_newest_generation(run: Training) -> None:
    run.who("wait", "train", "--for", "updates=60", "--timeout", "2m", timeout_s=150)
    generation = int((run.status()["checkpoint"] or {"number": 0})["number"])
    run.who("down", "train")
    assert not run.pods()
    assert run.status()["phase"] == "stopped"
    run.up("--wait", "--timeout", "4m")
    run.goes_on()
    assert run.status()["resumed"]["steps"] > 0
    assert run.status()["checkpoint"]["number"] >= generation


def _groups(log: str) -> list[str]:
    """Learners that stepped together, one number for each group."""
    return re.findall(r"group [0-9]+ of ([0-9]+) learner", log)


def _images(pods: dict[str, Object]) -> set[str]:
    return {container["image"] for pod in pods.values() for container in pod["spec"]["containers"]}
