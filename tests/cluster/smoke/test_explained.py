"""Faults on real nodes are said in words: at once where nothing can mend them, undone where that was asked.

Trouble with the evaluator comes to one run in turn, each by another `up`, which takes the one before back.
"""

import pytest

from tests.cluster.support.people import Person
from tests.cluster.support.specs import spec
from tests.cluster.support.training import Training, start
from tests.cluster.support.witness import Object, Witness

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]


@pytest.fixture(scope="module")
def started(resident: Person, witness: Witness, images: dict[str, str]) -> Training:
    return start(resident, witness, images)


@pytest.fixture
def run(started: Training, explained: None) -> Training:
    return started


def test_up_wait_gives_up_within_seconds_on_an_image_that_is_not_there(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    wrong = images["actor"].partition("@")[0] + "@sha256:" + "0" * 64
    file = ana.writes("wrong.yaml", spec("wrong", images={**images, "actor": wrong}))
    failed = ana("up", file, "--wait", "--timeout", "5m", code=7, timeout_s=330)
    assert failed.seconds < 60
    assert wrong in failed.stderr
    assert "does not exist" in failed.stderr
    assert "Traceback" not in failed.said
    status = ana("status", "wrong")
    assert wrong in status.stdout


def test_atomic_puts_back_what_ran_before(run: Training, images: dict[str, str]) -> None:
    before = run.uids("manager", "modelpool", "learner", "actor")
    wrong = images["actor"].partition("@")[0] + "@sha256:" + "0" * 64
    atomic = ("--atomic", "--timeout", "3m", "--set", f"images.actor={wrong}")
    failed = run.who("up", run.file, *atomic, code=7, timeout_s=240)
    assert wrong in failed.said
    run.who("diff", run.file)
    run.goes_on()
    run.until("actor", 1)
    assert run.uids("manager", "modelpool", "learner").items() <= before.items()


def test_a_pod_that_finds_no_node_is_told_with_the_reason(run: Training, witness: Witness) -> None:
    run.up("--set", "roles.evaluator.cpu=1000")
    witness.until(
        "Pod", run.who.namespace,
        lambda pods: any(_unschedulable(pod) for pod in pods.values()), what="a pod without a node", timeout_s=60,
    )  # fmt: skip
    reasons = [process["reason"] for process in run.status()["processes"]]  # for a minute it is no problem yet
    assert any("waits for a node" in reason and "cpu" in reason for reason in reasons), reasons
    run.goes_on()


def test_a_role_that_is_killed_for_memory_is_told_with_its_limit(run: Training, witness: Witness) -> None:
    run.up("--set", "roles.evaluator.memory=96Mi")
    _until_looping(witness, run, "evaluator")
    status = run.who("status", "train")
    assert "memory" in status.stdout
    assert "96Mi" in status.stdout
    run.goes_on()


def test_a_crash_is_told_with_its_first_cause(ana: Person, witness: Witness, images: dict[str, str]) -> None:
    file = ana.writes("absent.yaml", spec("absent", images=images, env={"id": "NoSuchEnv-v0"}))
    failed = ana("up", file, "--wait", "--timeout", "4m", code=7, timeout_s=300)
    assert "NoSuchEnv" in failed.said
    assert "Traceback" not in failed.said
    assert "NoSuchEnv" in ana("status", "absent").stdout


def _unschedulable(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def _until_looping(witness: Witness, run: Training, role: str) -> None:
    """A container has ended again and again."""

    def looping(pods: dict[str, Object]) -> bool:
        statuses = [each for pod in pods.values() for each in (pod.get("status") or {}).get("containerStatuses") or ()]
        return any((each["state"].get("waiting") or {}).get("reason") == "CrashLoopBackOff" for each in statuses)

    witness.until(
        "Pod", run.who.namespace, looping, what=f"a {role} that ends again and again", timeout_s=120,
        labels=f"app.kubernetes.io/component={role}",
    )  # fmt: skip
