"""A sweep of two settings on real pods."""

import pytest

from tests.cluster.support.people import Person
from tests.cluster.support.specs import spec

pytestmark = [pytest.mark.smoke, pytest.mark.nodes, pytest.mark.rwx, pytest.mark.registry]


def test_a_sweep_of_two_trains_on_the_cluster_and_is_compared(ana: Person, images: dict[str, str]) -> None:
    file = ana.writes("pole.yaml", spec("pole", images=images, stop={"agent_steps": 4000}))
    sweep = ("sweep", file, "--set", "algorithm.lr=1e-3,1e-4", "--seeds", "1", "--parallel", "2")
    told = ana(*sweep, "-o", "json", timeout_s=540).json()
    assert [one["state"] for one in told["trials"]] == ["finished"] * 2
    assert [len(group["runs"]) for group in told["comparison"]["groups"]] == [1, 1]
    assert ana("models", "pole-2", "-o", "json").json()["models"]
    assert "2 finished" in ana(*sweep).stderr

    before = [[run["value"] for run in group["runs"]] for group in told["comparison"]["groups"]]
    assert ana("sweep", "stop", "pole", "-o", "json").json()["stopped"] == ["pole-1", "pole-2"]
    after = ana("compare", "pole", "-o", "json").json()["groups"]  # from the last words of managers that are gone
    assert [[run["value"] for run in group["runs"]] for group in after] == before
    ana("sweep", "clean", "pole", "--yes", timeout_s=120)
    assert "there is no sweep" in ana("sweep", "list").stderr
