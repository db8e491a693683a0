"""Rights of the pods of a run: on their node, at the API server, to each other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from rlctl.spec import names
from tests.render.cluster import EXPOSED, Run, role_of, selects, spec_of

VOLUME_TYPES = {"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"}
"""Of those that the restricted Pod Security Standard allows, the ones that belong to no driver."""


def test_every_pod_passes_the_restricted_pod_security_standard(run: Run) -> None:
    for name, _, pod in run.pods():
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostname", "runtimeClassName"} & set(pod), name
        assert all(set(volume) - {"name"} <= VOLUME_TYPES for volume in pod["volumes"])
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"sysctls", "seLinuxOptions", "appArmorProfile", "windowsOptions"} & set(security)
    for _, _, container in run.containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in port for port in container["ports"])


def test_nobody_has_a_user_that_a_node_may_have_too(run: Run) -> None:
    for _, _, pod in run.pods():
        security = pod["securityContext"]
        assert min(security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")) > 10_000
        assert security["fsGroupChangePolicy"] == "OnRootMismatch"


def test_what_is_written_has_a_place_and_a_size(run: Run) -> None:
    for _, pod, container in run.containers():
        sizes = {it["name"]: it["emptyDir"].get("sizeLimit") for it in pod["volumes"] if "emptyDir" in it}
        assert all(sizes.values())
        writable = {it["mountPath"] for it in container["volumeMounts"] if not it.get("readOnly")}
        assert "/tmp" in writable
        home = next(it["value"] for it in container["env"] if it["name"] == "HOME")
        assert home in writable


def test_what_is_read_cannot_be_written(run: Run) -> None:
    for _, pod, container in run.containers():
        read_only = {it["name"] for it in pod["volumes"] if {"configMap", "secret"} & set(it)}
        assert all(it.get("readOnly") for it in container["volumeMounts"] if it["name"] in read_only)


def test_no_service_of_the_namespace_becomes_a_variable(run: Run) -> None:
    assert all(pod["enableServiceLinks"] is False for _, _, pod in run.pods())


def test_last_words_are_kept_when_there_is_no_message(run: Run) -> None:
    assert all(it["terminationMessagePolicy"] == "FallbackToLogsOnError" for _, _, it in run.containers())


def test_only_the_manager_has_a_token(run: Run) -> None:
    for it in run.workloads:
        pod = it["spec"]["template"]["spec"]
        is_manager = role_of(it) == "manager"
        assert pod["automountServiceAccountToken"] is is_manager
        assert ("serviceAccountName" in pod) == is_manager
    (account,) = run.of("ServiceAccount")
    assert account["metadata"]["name"] == run.workload("manager")["spec"]["template"]["spec"]["serviceAccountName"]
    assert account["automountServiceAccountToken"] is False


def test_the_manager_may_set_the_replicas_of_this_runs_workloads_and_nothing_else(run: Run) -> None:
    (rights,) = run.of("Role")
    allowed = {
        (group, resource, verb, name)
        for rule in rights["rules"]
        for group, resource, verb, name in product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule["resourceNames"]
        )
    }
    released = [it for it in run.workloads if role_of(it) in (run.core - {"manager"}) | {"actor", "evaluator"}]
    assert allowed == {("apps", f"{it['kind'].lower()}s/scale", "patch", it["metadata"]["name"]) for it in released}
    (binding,) = run.of("RoleBinding")
    assert binding["roleRef"]["name"] == rights["metadata"]["name"]
    assert [it["name"] for it in binding["subjects"]] == [it["metadata"]["name"] for it in run.of("ServiceAccount")]


def test_the_manager_is_told_which_workloads_it_releases_without_a_restart(run: Run) -> None:
    live = run.named("ConfigMap", f"{run.spec.run}-live")
    (rights,) = run.of("Role")
    named = [
        f"{rule['resources'][0].removesuffix('/scale')}/{name}"
        for rule in rights["rules"]
        for name in rule["resourceNames"]
    ]
    assert live["data"]["workloads"].split(",") == named
    pod = run.workload("manager")["spec"]["template"]["spec"]
    assert {"name": "live", "configMap": {"name": f"{run.spec.run}-live"}} in pod["volumes"]
    assert "--live=/etc/rlctl/live/live.json" in pod["containers"][0]["args"]


TALKS = {
    ("modelpool", "manager"): {7100},
    ("learner", "manager"): {7100},
    ("actor", "manager"): {7100},
    ("evaluator", "manager"): {7100},
    ("learner", "modelpool"): {7100},
    ("actor", "modelpool"): {7100, 7101},
    ("evaluator", "modelpool"): {7100, 7101},
    ("actor", "learner"): {7102},
}
TALKS_EXPOSED = {
    **TALKS,
    ("proxy-status", "manager"): {7180},
    ("proxy-tensorboard", "tensorboard"): {6006},
}
TRIED = (53, 443, 6006, 6443, 7100, 7101, 7102, 7180, 7190, 8080, 40_000)


def _matches(policy: dict[str, Any], labels: dict[str, str]) -> bool:
    return selects(policy["spec"]["podSelector"].get("matchLabels", {}), labels)


Labels = dict[str, str]


def _passes(policies: list[dict[str, Any]], way: str, own: Labels, peer: Labels | None, port: int) -> bool:
    """Whether policies let a pod talk to, or hear, a peer on a TCP port; a peer of None is outside the run."""
    concerned = [it for it in policies if _matches(it, own) and way.capitalize() in it["spec"]["policyTypes"]]
    assert concerned, "no policy denies it"
    for rule in (rule for it in concerned for rule in it["spec"].get(way, ())):
        peers = rule.get("to" if way == "egress" else "from")
        selectors = [] if peers is None else [it["podSelector"]["matchLabels"] for it in peers]
        known = peers is None or (peer is not None and any(selects(selector, peer) for selector in selectors))
        if known and any(
            it["protocol"] == "TCP" and it["port"] <= port <= it.get("endPort", it["port"]) for it in rule["ports"]
        ):
            return True
    return False


@pytest.mark.parametrize(("more", "wanted"), [({}, TALKS), ({"kubernetes": EXPOSED}, TALKS_EXPOSED)])
def test_network_policies_let_through_exactly_what_the_roles_have_to_say(
    more: dict[str, Any], wanted: dict[tuple[str, str], set[int]]
) -> None:
    run = Run(spec_of(**more))
    policies = run.of("NetworkPolicy")
    pods = {role_of(it): it["spec"]["template"]["metadata"]["labels"] for it in run.workloads}
    found: dict[tuple[str, str], set[int]] = {}
    for (one, own), (other, peer) in product(pods.items(), pods.items()):
        for port in TRIED:
            hears = _passes(policies, "ingress", peer, own, port)
            # the proxies hear anybody, and whoever may speak to anybody on a port may speak to them
            if one != other and "proxy" not in other and hears and _passes(policies, "egress", own, peer, port):
                found.setdefault((one, other), set()).add(port)
    assert found == wanted


def test_learners_and_nobody_else_meet_at_ports_that_gloo_and_nccl_choose(plain: Run) -> None:
    policies = plain.of("NetworkPolicy")
    pods = {role_of(it): it["spec"]["template"]["metadata"]["labels"] for it in plain.workloads}
    learner, port = pods["learner"], 40_000
    assert _passes(policies, "egress", learner, learner, port)
    assert {role for role, labels in pods.items() if _passes(policies, "ingress", learner, labels, port)} == {"learner"}


def test_modelpools_ask_each_other_for_weights_and_hear_of_new_ones(plain: Run) -> None:
    policies = plain.of("NetworkPolicy")
    (pool,) = (it for it in plain.workloads if role_of(it) == "modelpool")
    labels = pool["spec"]["template"]["metadata"]["labels"]
    both = {
        way: {port for port in TRIED if _passes(policies, way, labels, labels, port)} for way in ("egress", "ingress")
    }
    assert both == {"egress": {53, 7100, 7101}, "ingress": {7100, 7101}}


def test_nobody_outside_the_run_is_heard_but_by_the_proxies() -> None:
    run = Run(spec_of(kubernetes=EXPOSED))
    policies = run.of("NetworkPolicy")
    heard = {
        (role_of(it), port)
        for it in run.workloads
        for port in TRIED
        if _passes(policies, "ingress", it["spec"]["template"]["metadata"]["labels"], None, port)
    }
    assert heard == {("proxy-tensorboard", 8080), ("proxy-status", 8080)}


def test_outside_the_run_pods_reach_names_the_manager_the_api_server_and_the_proxies_who_knows_users() -> None:
    run = Run(spec_of(kubernetes=EXPOSED))
    policies = run.of("NetworkPolicy")
    reached = {
        role_of(it): {
            port
            for port in TRIED
            if _passes(policies, "egress", it["spec"]["template"]["metadata"]["labels"], None, port)
        }
        for it in run.workloads
    }
    assert reached == {
        "manager": {53, 443, 6443},
        "modelpool": {53},
        "learner": {53},
        "actor": {53},
        "evaluator": {53},
        "tensorboard": set(),
        "proxy-tensorboard": {53, 443},
        "proxy-status": {53, 443},
    }


def test_pages_stay_inside_the_cluster_unless_the_spec_says_otherwise(plain: Run) -> None:
    assert {it["spec"].get("type", "ClusterIP") for it in plain.of("Service")} == {"ClusterIP"}


def test_a_page_outside_the_cluster_stands_behind_a_proxy_for_known_callers(exposed: Run) -> None:
    outside = [it for it in exposed.of("Service") if it["spec"].get("type") == "LoadBalancer"]
    assert [role_of(it) for it in outside] == ["proxy-tensorboard", "proxy-status"]
    for service in outside:
        assert service["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24", "2001:db8::/32"]
        (shown,) = [it for it in exposed.workloads if role_of(it) == role_of(service)]
        container = shown["spec"]["template"]["spec"]["containers"][0]
        page = service["metadata"]["labels"][names.COMPONENT].removeprefix("proxy-")
        upstream = next(it["value"] for it in container["env"] if it["name"] == "UPSTREAM")
        assert upstream == f"http://{exposed.named('Service', f'{exposed.spec.run}-{page}')['metadata']['name']}"
        assert container["args"] == ["--upstream=$(UPSTREAM)"]


def test_the_manager_of_a_run_is_the_one_whose_page_the_status_service_shows(plain: Run) -> None:
    service = plain.named("Service", "pong-status")
    assert service["spec"]["selector"] == plain.workload("manager")["spec"]["selector"]["matchLabels"]


def test_a_gang_waits_in_its_queue_and_nobody_else_does() -> None:
    run = Run(spec_of(kubernetes={"gang": "kueue", "queue": "gpus"}))
    queued = [it for it in run.workloads if it["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "gpus"]
    assert [role_of(it) for it in queued] == ["learner"]
