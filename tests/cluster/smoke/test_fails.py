"""A run that learns nothing in the time it has, on real pods: it ends, says why, and is given its time again."""

import pytest

from rlctl.spec.names import selector
from tests.cluster.support.people import Person
from tests.cluster.support.specs import spec
from tests.cluster.support.training import Training
from tests.cluster.support.witness import Object, Witness

pytestmark = [pytest.mark.smoke, pytest.mark.fresh, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]

VAIN = "stop.wall_time of 1 s is over, and nothing was ever learned from"


def test_a_run_in_vain_gives_its_pods_back_and_goes_on_with_the_same_up(
    ana: Person, witness: Witness, images: dict[str, str]
) -> None:
    """Its time is over before a learner can be there."""
    file = ana.writes("vain.yaml", spec("vain", images=dict(images), stop={"wall_time": 1}))
    vain = Training(ana, witness, "vain", file)

    def manager_alone(pods: dict[str, Object]) -> bool:
        return {name.rpartition("-")[0] for name in pods if "tensorboard" not in name} == {"vain-manager"}

    def given_back() -> None:
        witness.until(
            "Pod", ana.namespace, manager_alone, what="the pods of the failed run to be given back", timeout_s=240,
            labels=selector("vain"),
        )  # fmt: skip

    refused = ana("up", file, code=7, timeout_s=300)
    assert VAIN in refused.stderr
    given_back()
    status = vain.status()
    assert status["phase"] == "failed"
    assert VAIN in status["failure"]["text"]
    assert VAIN in ana("status").stdout, "the only run there is"
    assert VAIN in ana("logs", "manager", "--run", "vain").stdout

    again = ana("up", file, code=7, timeout_s=300)
    assert "the run that was over goes on" in again.said
    given_back()

    ana("down", "vain")
    stored = vain.status()
    assert (stored["phase"], VAIN in stored["failure"]["text"]) == ("failed", True)
    ana("up", file, "--set", "stop.wall_time=600", "-d", timeout_s=120)
    ana("wait", "vain", "--for", "consumed_steps=2000", "--timeout", "4m", timeout_s=300)
    assert vain.status()["phase"] == "running"
    ana("down", "vain", "--volumes", "--yes")
