"""Fields set by another manager: told, kept, or taken over when that is asked for; and one command at a time."""

import pytest
import yaml

from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import Person
from tests.cluster.support.specs import parked
from tests.cluster.support.witness import Object, Witness

pytestmark = pytest.mark.api


def test_a_field_that_another_manager_took_is_told_with_both_values_and_ways_out(
    counted: Person, gateway: Gateway, witness: Witness
) -> None:
    spec = parked(counted)
    counted("up", spec, "-d")
    _set(witness, counted, "terminationGracePeriodSeconds", 7)
    gateway.forget()

    refused = counted("up", spec, "-d", code=5)
    row = next(line for line in refused.stderr.splitlines() if "terminationGracePeriodSeconds" in line)
    assert row.split() == [
        "Deployment", "parked-actor-0", ".spec.template.spec.terminationGracePeriodSeconds", "mesh-team", "7", "25",
    ]  # fmt: skip
    assert "--force-conflicts" in refused.stderr
    assert [str(write) for write in gateway.writes] == []

    counted("up", spec, "-d", "--force-conflicts")
    found = witness.get("Deployment", "parked-actor-0", counted.namespace)
    assert found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 25
    counted("diff", spec)


def test_a_field_of_a_patch_is_no_conflict_once_it_says_the_same(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    _set(witness, ana, "terminationGracePeriodSeconds", 7)
    patch = yaml.safe_load((ana.home / "templates/actor.patch.yaml").read_text())
    patch["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 7
    ana.writes("templates/actor.patch.yaml", patch)
    ana("up", spec, "-d")
    ana("diff", spec)


def test_a_field_that_rlctl_does_not_send_stays_who_set_it(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    _set(witness, ana, "priorityClassName", "system-cluster-critical")
    ana("diff", spec)
    ana("up", spec, "-d", "--set", "roles.actor.envs=9")
    found = witness.get("Deployment", "parked-actor-0", ana.namespace)
    assert found["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"


def test_replicas_that_an_autoscaler_set_are_kept_by_up(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    _replicas(witness, ana, 5)
    kept = ana("up", spec, "-d", "--set", "algorithm.lr=0.0005")
    assert "5" in kept.said
    assert witness.get("Deployment", "parked-actor-0", ana.namespace)["spec"]["replicas"] == 5


def test_scale_against_an_autoscaler_is_a_conflict_that_names_it(ana: Person, witness: Witness) -> None:
    ana("up", parked(ana), "-d")
    _replicas(witness, ana, 5)
    refused = ana("scale", "actor=3", "--run", "parked", code=5)
    assert "autoscaler" in refused.stderr
    assert ".spec.replicas" in refused.stderr
    assert witness.get("Deployment", "parked-actor-0", ana.namespace)["spec"]["replicas"] == 5


def test_a_scaled_number_survives_the_next_up_until_the_spec_says_another(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    ana("scale", "actor=4", "--run", "parked")
    ana("up", spec, "-d", "--set", "algorithm.lr=0.0005")
    assert _count(witness, ana) == 4
    ana("up", spec, "-d", "--set", "algorithm.lr=0.0005", "--set", "roles.actor.replicas=3")
    assert _count(witness, ana) == 3


def test_raising_actors_touches_no_pod_template(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    before = _templates(witness, ana)
    ana("up", spec, "-d", "--set", "roles.actor.replicas=4")
    ana("scale", "actor=6", "--run", "parked")
    assert _templates(witness, ana) == before


def test_a_restart_survives_the_next_up_and_is_no_difference(ana: Person, witness: Witness) -> None:
    spec = parked(ana)
    ana("up", spec, "-d")
    ana("restart", "learner", "--run", "parked")
    after = _templates(witness, ana)
    ana("diff", spec)
    ana("up", spec, "-d")
    assert _templates(witness, ana) == after


def _set(witness: Witness, who: Person, field: str, value: object) -> None:
    """Set a field of the pods of the actors as another manager, by force."""
    found = witness.get("Deployment", "parked-actor-0", who.namespace)
    assert found
    selector = found["spec"]["selector"]
    labels = found["spec"]["template"]["metadata"]["labels"]
    images = [
        {"name": each["name"], "image": each["image"]} for each in found["spec"]["template"]["spec"]["containers"]
    ]
    template = {"metadata": {"labels": labels}, "spec": {"containers": images, field: value}}
    about = {"name": "parked-actor-0"}
    deployment: Object = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about}
    witness.apply(
        {**deployment, "spec": {"selector": selector, "template": template}},
        namespace=who.namespace,
        manager="mesh-team",
    )


def _replicas(witness: Witness, who: Person, count: int) -> None:
    witness.scale("parked-actor-0", who.namespace, count, manager="autoscaler")


def _count(witness: Witness, who: Person) -> int:
    found = witness.get("Deployment", "parked-actor-0", who.namespace)
    assert found
    return int(found["spec"]["replicas"])


def _templates(witness: Witness, who: Person) -> dict[str, object]:
    return {
        f"{kind}/{thing['metadata']['name']}": thing["spec"]["template"]
        for kind in ("Deployment", "StatefulSet")
        for thing in witness.list(kind, who.namespace)
    }
