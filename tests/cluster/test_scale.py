"""Thousands of actors on nodes that only look alive: `benchmarks/cluster.py` measures; requests have a bound.

Seconds have none, so kubectl, which they are compared with there, is left out. The full form has ten thousand,
`make test-cluster` two thousand of them: the bounds are the same.
"""

import pytest

from benchmarks.cluster import Bench, Figures
from tests.cluster.support.people import Person
from tests.cluster.support.specs import NO_IMAGE, spec
from tests.cluster.support.telling import TALLY
from tests.cluster.support.witness import Witness
from tests.support.samples import size

pytestmark = [pytest.mark.scale, pytest.mark.fake_nodes, pytest.mark.rwx, pytest.mark.timeout(2400)]
ACTORS = size(2_000, 10_000)


@pytest.fixture(scope="module")
def figures(witness: Witness, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    folder = tmp_path_factory.mktemp("bench")
    found = Bench(witness, folder, ACTORS, TALLY.figures.append, beside_kubectl=False).run()
    TALLY.figures.extend(found.table())
    return found


def test_the_status_of_thousands_of_pods_takes_25_requests(figures: Figures) -> None:
    for what in ("status", "status with trouble"):
        assert figures.total[what] <= 25
    assert (
        "CrashLoopBackOff" in figures.said["status with trouble"]
        or "does not stay up" in figures.said["status with trouble"]
    )


def test_a_second_up_of_thousands_of_actors_writes_nothing(figures: Figures) -> None:
    assert figures.writes["up again"] == 0
    assert figures.writes["diff"] == 0


def test_the_number_of_requests_does_not_grow_with_the_actors(figures: Figures) -> None:
    assert figures.total["up"] < 500
    assert figures.total["down"] < 400


def test_the_first_ten_actors_that_cannot_run_keep_the_others_from_being_asked_for(
    ana: Person, witness: Witness
) -> None:
    images = dict.fromkeys(("core", "actor", "learner"), NO_IMAGE)
    content = spec("canary", actors=5000, images=images)
    content["roles"]["actor"] |= {"cpu": 0.05, "memory": "128Mi"}
    waiting = {"metadata": {"annotations": {"test-cluster/waiting": "InvalidImageName"}}}
    ana.writes("templates/actor.patch.yaml", {"spec": {"template": waiting}})
    failed = ana("up", ana.writes("canary.yaml", content), "-d", code=7)
    assert "no more were asked for" in failed.stderr
    asked = [
        thing["spec"]["replicas"]
        for thing in witness.list("Deployment", ana.namespace)
        if "actor" in thing["metadata"]["name"]
    ]
    assert sum(asked) == 10
