"""Rights of people: roles, quotas, Pod Security, and two people with one run name. None of them rules the cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cluster.support.gateway import Gateway
from tests.cluster.support.people import ACCOUNT, Person
from tests.cluster.support.specs import parked
from tests.cluster.support.witness import Object, Witness

pytestmark = pytest.mark.api

Admit = Callable[[str], Person]


def test_what_render_admin_prints_is_all_that_an_administrator_has_to_do(
    witness: Witness, ana: Person, tmp_path: Path
) -> None:
    user = f"system:serviceaccount:{ana.namespace}:{ACCOUNT}"
    ana("render", "--admin", "-n", ana.namespace, "--user", user, "--out-dir", str(tmp_path / "admin"))
    printed = [yaml.safe_load(path.read_text()) for path in sorted((tmp_path / "admin").rglob("*.yaml"))]
    assert {document["kind"] for document in printed} == {"Namespace", "Role", "RoleBinding", "PriorityClass"}
    (binding,) = [document["metadata"]["name"] for document in printed if document["kind"] == "RoleBinding"]
    witness.delete("RoleBinding", binding, ana.namespace)
    witness.apply(*printed)

    doctor = ana("doctor", "-t", "kubernetes", "-o", "json").json()
    problems = [check for check in doctor["targets"]["kubernetes"] if check["verdict"] == "problem"]
    assert not problems
    ana("up", parked(ana), "-d")
    ana("down", "parked", "--volumes", "--yes")


def test_one_researcher_more_takes_nothing_from_the_first(ana: Person, person: Admit) -> None:
    ben = person("ben")
    ana("up", parked(ana), "-d")
    ben("doctor", "-t", "kubernetes")


def test_a_researcher_may_nothing_outside_the_namespace(ana: Person) -> None:
    ana("status", "--all", "-n", "kube-system", "-t", "kubernetes", code=4)


def test_a_missing_right_is_named_with_the_way_to_get_it(ana: Person, witness: Witness) -> None:
    _take_away(witness, ana, "networkpolicies")
    refused = ana("up", parked(ana), "-d", code=8)
    assert "create NetworkPolicy" in refused.stderr
    assert ACCOUNT in refused.stderr
    assert "rlctl render --admin" in refused.stderr
    assert "Traceback" not in refused.said
    doctor = ana("doctor", "-t", "kubernetes", code=1)
    assert "networkpolicies" in doctor.said


def test_up_goes_on_after_the_missing_right_is_granted(ana: Person, witness: Witness) -> None:
    before = _take_away(witness, ana, "networkpolicies")
    spec = parked(ana)
    ana("up", spec, "-d", code=8)
    witness.apply(before)
    ana("up", spec, "-d")
    ana("diff", spec)


def test_without_the_right_to_make_roles_up_says_so_and_goes_on(
    counted: Person, gateway: Gateway, witness: Witness
) -> None:
    _take_away(witness, counted, "roles", "rolebindings")
    spec = parked(counted)
    done = counted("up", spec, "-d")
    assert "rlctl down" in done.stderr
    gateway.forget()
    counted("up", spec, "-d")
    assert [str(write) for write in gateway.writes] == []
    counted("down", "parked")


def test_a_quota_that_the_run_cannot_fit_is_told_in_numbers_before_anything_is_sent(
    counted: Person, gateway: Gateway, witness: Witness
) -> None:
    _quota(witness, counted, {"requests.memory": "1Gi"})
    refused = counted("up", parked(counted), "-d", code=5)
    assert "requests.memory" in refused.stderr
    assert "1Gi" in refused.stderr
    assert [str(write) for write in gateway.writes] == []


def test_a_quota_that_stops_up_in_its_middle_is_told_with_the_sums_and_up_goes_on(
    counted: Person, gateway: Gateway, witness: Witness
) -> None:
    """It comes when the preflight has looked already."""
    quota = {"count/networkpolicies.networking.k8s.io": "2"}
    gateway.at_write(5, lambda: _quota(witness, counted, quota))
    spec = parked(counted)
    stopped = counted("up", spec, "-d", code=8)
    assert "count/networkpolicies.networking.k8s.io: 2 used + 1 asked > 2" in stopped.stderr
    witness.delete("ResourceQuota", "team", counted.namespace)
    counted("up", spec, "-d")
    counted("diff", spec)


def test_pods_that_a_quota_keeps_away_are_explained_by_status(ana: Person, witness: Witness) -> None:
    ana("up", parked(ana), "-d")
    _quota(witness, ana, {"pods": "3"})
    ana("scale", "actor=4", "--run", "parked")
    _until_replicas_fail(witness, ana, "parked-actor-0")
    status = ana("status", "parked")
    assert "quota" in status.stdout
    assert "pods" in status.stdout


@pytest.mark.psa
def test_pods_that_pod_security_forbids_are_explained_by_status(ana: Person, witness: Witness) -> None:
    """The level comes when the run is up: one that is there before is told by the preflight."""
    spec = parked(ana)
    patch = yaml.safe_load((ana.home / "templates/actor.patch.yaml").read_text())
    patch["spec"]["template"]["spec"]["hostNetwork"] = True
    ana.writes("templates/actor.patch.yaml", patch)
    _enforce(witness, ana, "privileged")
    ana("up", spec, "-d")
    _enforce(witness, ana, "restricted")
    ana("scale", "actor=4", "--run", "parked")
    _until_replicas_fail(witness, ana, "parked-actor-0")
    status = ana("status", "parked")
    assert "restricted" in status.stdout
    assert "hostNetwork" in status.stdout or "host namespaces" in status.stdout


def test_two_people_with_one_run_name_are_told_whose_it_is(ana: Person, person: Admit, witness: Witness) -> None:
    ben = person("ben")
    ana("up", parked(ana), "-d")
    before = witness.get("ConfigMap", "parked-state", ana.namespace)
    told = ben("up", parked(ben), "-d", code=5)
    assert "owned by ana@" in told.stderr
    assert witness.get("ConfigMap", "parked-state", ana.namespace) == before

    seen = ben("status", "parked", "-t", "kubernetes", "-o", "json").json()
    assert seen["uid"] == ana.status("parked")["uid"]
    ben("up", parked(ben, run="mine"), "-d")


def test_a_command_meant_for_another_namespace_than_the_runs_is_refused(ana: Person, person: Admit) -> None:
    ana("up", parked(ana), "-d")
    kubeconfig = yaml.safe_load(ana.kubeconfig.read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = "default"
    ana.kubeconfig.write_text(yaml.safe_dump(kubeconfig))
    assert ana.status("parked")["phase"] in ("running", "starting"), "the recorded namespace counts, not the context's"
    ana("status", "parked", "-n", "default", "-t", "kubernetes", code=4)


def _take_away(witness: Witness, who: Person, *resources: str) -> Object:
    """Rights on these resources, but for reading; returns the Role as it was, to be given back."""
    found = witness.get("Role", "rlctl", who.namespace)
    assert found
    whole = {"apiVersion": found["apiVersion"], "kind": "Role", "rules": found["rules"]}
    whole["metadata"] = {"name": "rlctl", "namespace": who.namespace}
    rules = []
    for rule in found["rules"]:
        kept = [name for name in rule["resources"] if name not in resources]
        rules += [{**rule, "resources": kept}] if kept else []
        taken = [name for name in rule["resources"] if name in resources]
        rules += [{**rule, "resources": taken, "verbs": ["get", "list", "watch"]}] if taken else []
    witness.apply({**whole, "rules": rules})
    return whole


def _quota(witness: Witness, who: Person, hard: dict[str, str]) -> None:
    """A quota, once the controller has counted what is there."""
    about = {"name": "team"}
    witness.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": about, "spec": {"hard": hard}},
        namespace=who.namespace,
    )
    witness.until(
        "ResourceQuota", who.namespace, lambda quotas: "used" in (quotas["team"].get("status") or {}),
        what="the quota to be counted", timeout_s=30,
    )  # fmt: skip


def _enforce(witness: Witness, who: Person, level: str) -> None:
    """The Pod Security level of a namespace; its other labels stay."""
    about = {"name": who.namespace, "labels": {"pod-security.kubernetes.io/enforce": level}}
    witness.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about}, manager="pod-security")


def _until_replicas_fail(witness: Witness, who: Person, deployment: str) -> None:
    def fails(found: dict[str, Object]) -> bool:
        conditions = (found[deployment].get("status") or {}).get("conditions") or ()
        return any(each["type"] == "ReplicaFailure" and each["status"] == "True" for each in conditions)

    witness.until("Deployment", who.namespace, fails, what=f"{deployment} to be refused pods", timeout_s=60)
