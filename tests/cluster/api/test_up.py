"""Writes of `up`, `diff`, `rollback` and `down`, as the API server sees them. No pod of these runs ever starts."""

import pytest
import yaml

from rlctl.spec.names import COMPONENT, selector
from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person
from tests.cluster.support.specs import parked
from tests.cluster.support.witness import Witness

pytestmark = pytest.mark.api


def test_a_second_up_sends_no_write_and_diff_says_0(counted: Person, gateway: Gateway) -> None:
    spec = parked(counted)
    counted("up", spec, "-d")
    assert gateway.writes

    gateway.forget()
    again = counted("up", spec, "-d")
    assert "unchanged" in again.said
    assert [str(write) for write in gateway.writes] == []

    counted("diff", spec)
    assert [str(write) for write in gateway.writes] == []


def test_diff_tells_which_roles_a_change_restarts_and_changes_nothing(counted: Person, gateway: Gateway) -> None:
    spec = parked(counted)
    counted("up", spec, "-d")
    gateway.forget()

    learning_rate = counted("diff", spec, "--set", "algorithm.lr=0.0005", code=1)
    assert "restart learner" in learning_rate.stdout
    assert "restart actor" not in learning_rate.stdout
    more_actors = counted("diff", spec, "--set", "roles.actor.replicas=3", code=1)
    assert "restart" not in more_actors.stdout
    counted("diff", spec, "--set", "env.id=Acrobot-v1", code=1)
    assert [str(write) for write in gateway.writes] == []


def test_a_new_env_is_refused_with_exit_5_and_nothing_is_written(counted: Person, gateway: Gateway) -> None:
    spec = parked(counted)
    counted("up", spec, "-d")
    gateway.forget()
    refused = counted("up", spec, "-d", "--set", "env.id=Acrobot-v1", code=5)
    assert "env.id" in refused.stderr
    assert [str(write) for write in gateway.writes] == []


def test_dry_runs_show_every_object_and_write_none(counted: Person, gateway: Gateway, witness: Witness) -> None:
    spec = parked(counted)
    before = witness.names(counted.namespace)
    client = counted("up", spec, "--dry-run", "client")
    assert [str(request) for request in gateway.passed] == []
    server = counted("up", spec, "--dry-run", "server")
    for name in ("parked-learner", "parked-actor-0", "parked-manager"):
        assert name in client.stdout
        assert name in server.stdout
    assert witness.names(counted.namespace) == before


def test_render_prints_exactly_what_up_sends(ana: Person, witness: Witness) -> None:
    spec, before = parked(ana), witness.names(ana.namespace)
    ana("up", spec, "-d")
    rendered = [yaml.safe_load(document["text"]) for document in ana("render", spec, "-o", "json").json()["documents"]]
    sent = {f"{document['kind']}/{document['metadata']['name']}" for document in rendered}
    own = {
        "ConfigMap/parked-state",
        "ConfigMap/parked-revision-1",
        "Secret/parked-keys-core",
        "Secret/parked-keys-actor",
    }
    assert witness.names(ana.namespace) - before == sent | own


def test_down_leaves_what_it_names_and_volumes_leaves_nothing(ana: Person, witness: Witness) -> None:
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "parked-notes"}, "data": {"mine": "stays"}}
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
    mine_too = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "parked-data"}, "spec": claim}
    witness.apply(mine, mine_too, namespace=ana.namespace)
    before = witness.names(ana.namespace)
    ana("up", parked(ana), "-d")

    down = ana("down", "parked")
    left = witness.names(ana.namespace) - before
    assert left == {
        "ConfigMap/parked-state", "ConfigMap/parked-revision-1", "Secret/parked-keys-core", "Secret/parked-keys-actor",
        "PersistentVolumeClaim/parked-volume",
    }  # fmt: skip
    assert "parked-volume" in down.said
    assert ana.status("parked")["phase"] == "stopped"

    ana("down", "parked", "--volumes", "--yes")
    witness.until(
        "PersistentVolumeClaim", ana.namespace, lambda claims: "parked-volume" not in claims,
        what="the volume to go", timeout_s=30,
    )  # fmt: skip
    assert witness.names(ana.namespace) == before
    ana("down", "parked")


def test_up_after_down_goes_on_with_the_same_run(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    keys = witness.get("Secret", "parked-keys-core", ana.namespace)
    uid = ana.status("parked")["uid"]
    ana("down", "parked")
    ana("up", spec, "-d")
    assert ana.status("parked")["uid"] == uid
    assert witness.get("Secret", "parked-keys-core", ana.namespace)["data"] == keys["data"]


def test_rollback_sends_the_documents_of_before_as_a_new_revision(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    before = _learner(witness, ana)
    ana("up", spec, "-d", "--set", "algorithm.lr=0.0005")
    assert _learner(witness, ana) != before

    ana("rollback", "--run", "parked")
    assert _learner(witness, ana) == before
    revisions = ana("history", "parked", "-o", "json").json()["revisions"]
    assert [revision["revision"] for revision in revisions] == [3, 2, 1]
    assert revisions[0]["note"] == "rollback to 1"
    ana("diff", spec)


def test_an_object_of_somebody_else_in_our_place_stops_up_before_it_writes(
    counted: Person, gateway: Gateway, witness: Witness
) -> None:
    service = {"ports": [{"port": 80}], "selector": {"app": "other"}}
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "parked-learner"}, "spec": service}
    witness.apply(other, namespace=counted.namespace, manager="another-team")
    refused = counted("up", parked(counted), "-d", code=5)
    assert "Service parked-learner" in refused.stderr
    assert [str(write) for write in gateway.writes] == []


def test_a_run_started_by_an_older_rlctl_stays_operable_without_its_spec(ana: Person, witness: Witness) -> None:
    ana("up", parked(ana), "-d")
    state = witness.get("ConfigMap", "parked-state", ana.namespace)
    older = state["data"]["state.json"].replace(f'"rlctl_version": "{_version()}"', '"rlctl_version": "0.0.1"')
    assert older != state["data"]["state.json"]
    about = {"name": "parked-state"}
    witness.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {"state.json": older}},
        namespace=ana.namespace,
    )
    for path in (*ana.home.glob("*.yaml"), *ana.home.glob("templates/*")):
        path.unlink()

    assert ana.status("parked")["rlctl"] == "0.0.1"
    ana("scale", "actor=3", "--run", "parked")
    assert witness.get("Deployment", "parked-actor-0", ana.namespace)["spec"]["replicas"] == 3
    ana("restart", "learner", "--run", "parked")
    ana("history", "parked")
    ana("down", "parked")
    assert not witness.list("Deployment", ana.namespace, selector("parked"))


def test_a_spec_that_needs_fewer_shards_has_the_others_removed(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d", "--set", "roles.actor.max_replicas=3000")
    shards = f"{selector('parked')},{COMPONENT}=actor"
    assert len(witness.list("Deployment", ana.namespace, shards)) == 3
    pruned = ana("up", spec, "-d", "--set", "roles.actor.max_replicas=1000")
    assert "parked-actor-2" in pruned.said
    assert [thing["metadata"]["name"] for thing in witness.list("Deployment", ana.namespace, shards)] == [
        "parked-actor-0"
    ]


def _learner(witness: Witness, who: Person) -> object:
    found = witness.get("StatefulSet", "parked-learner", who.namespace)
    assert found
    return found["spec"]["template"]


def _version() -> str:
    from rlctl import __version__

    return __version__
