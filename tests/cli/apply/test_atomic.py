"""`up --atomic` on an API server that refuses in the middle: what was written is put back."""

from __future__ import annotations

import pytest

from rlctl.backends.kubernetes.api.interface import ApiError, Key, Object
from rlctl.backends.kubernetes.backend import KubernetesBackend
from tests.backends.kubernetes.fakes.lab import Lab
from tests.cli.clusters import CLUSTER_SPEC
from tests.cli.conftest import Rlctl

ACTORS = Key("Deployment", "pole-actor-0")
CLAIM: Object = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "50Gi"}}},
    "status": {"phase": "Bound", "accessModes": ["ReadWriteMany"]},
}


class Place:
    """One namespace in memory as the target kubernetes."""

    def __init__(self, rlctl: Rlctl) -> None:
        self.rlctl, self.lab = rlctl, Lab()
        self.api = self.lab.api
        rlctl.targets["kubernetes"] = self._backend
        self.api.put(CLAIM)
        self.spec = str(rlctl.write("cluster.yaml", f"{CLUSTER_SPEC}storage: {{claim: shared}}\n"))

    def _backend(self, context: str | None = None, namespace: str | None = None) -> KubernetesBackend:
        return self.lab.backend()

    def refuse(self, *, after: int) -> None:
        """The Deployment of actors, for the first request that comes after so many writes."""
        so_far = len(self.api.writes)

        def refuse(method: str, key: Key) -> ApiError | None:
            if (method, key) != ("PATCH", ACTORS) or len(self.api.writes) - so_far < after:
                return None
            return ApiError('admission webhook "policy" denied the request: no team', status=403, key=key)

        self.api.refuse = refuse

    def templates(self) -> dict[str, Object]:
        return {
            key.name: thing["spec"]["template"]
            for key, thing in self.api.objects.items()
            if key.kind in ("Deployment", "StatefulSet")
        }


@pytest.fixture
def place(rlctl: Rlctl) -> Place:
    return Place(rlctl)


def test_what_was_written_is_put_back_though_the_revision_has_not_moved(rlctl: Rlctl, place: Place) -> None:
    assert rlctl("up", place.spec, "-d").code == 0
    place.lab.settle()
    before = place.templates()
    other = "--set=images." + "actor=registry.example/actor@sha256:" + "cd" * 32
    place.refuse(after=1)
    result = rlctl("up", place.spec, "--atomic", other, "--set", "algorithm.lr=5e-3")
    assert result.code == 8
    assert "restarted StatefulSet pole-learner" in result.err, "something was written"
    assert "no team" in result.err
    assert "by a patch" in result.err
    assert "pole is rolled back to revision 1" in result.err
    assert place.templates() == before
    found = place.lab.backend().find("pole")
    assert found is not None
    assert (found.revision, found.spec["algorithm"]["lr"]) == (1, 1e-3)
    place.api.refuse = lambda method, key: None
    assert "unchanged" in rlctl("up", place.spec, "-d").err


def test_a_first_up_that_is_refused_in_the_middle_leaves_nothing(rlctl: Rlctl, place: Place) -> None:
    place.refuse(after=1)
    result = rlctl("up", place.spec, "--atomic")
    assert result.code == 8
    assert "pole is removed again" in result.err
    assert place.lab.there() == {"PersistentVolumeClaim shared"}


def test_where_no_up_has_ever_ended_nothing_is_said_to_run_as_before(rlctl: Rlctl, place: Place) -> None:
    place.refuse(after=1)
    assert rlctl("up", place.spec).code == 8
    result = rlctl("up", place.spec, "--atomic")
    assert result.code == 8
    assert "as before" not in result.err
    assert "nothing of pole was undone" in result.err


def test_a_manager_that_was_told_of_what_is_undone_is_told_of_what_was_before(rlctl: Rlctl, place: Place) -> None:
    assert rlctl("up", place.spec, "-d").code == 0
    place.lab.settle()
    told: list[float] = []

    def manager(method: str, path: str, body: object) -> tuple[int, object]:
        if isinstance(body, dict) and path == "/reload":
            told.append(body["live"]["stop"]["eval_return"])
            place.api.refuse = end
        return 200, {}

    def end(method: str, key: Key) -> ApiError | None:
        place.api.refuse = lambda method, key: None
        return ApiError("etcd is away", status=503, key=key)

    place.api.manager = manager
    result = rlctl("up", place.spec, "--atomic", "--set", "stop.eval_return=400")
    assert result.code == 8
    assert told == [400, 475]
