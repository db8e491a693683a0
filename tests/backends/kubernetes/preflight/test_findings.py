"""Findings before anything is sent: what is known to go wrong, in numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rlctl.backends.base import Check
from rlctl.backends.kubernetes.api.interface import ApiError, Object
from rlctl.backends.kubernetes.preflight import findings
from rlctl.plan import Document, Plan, RolePlan
from rlctl.spec import names
from rlctl.spec.base import Role
from tests.backends.kubernetes.fakes.reads import UID, Reads, labelled
from tests.backends.kubernetes.preflight.test_doctor import CLASSES, NAMESPACE, cluster, storage_class

IMAGE = "registry.example.com/team/actor@sha256:" + "4b" * 32
NODES = "/api/v1/nodes?limit=500"

Patch = Callable[[Object], object]


def role_plan(role: Role, replicas: int) -> RolePlan:
    return RolePlan(role, replicas, 1.0, 1024.0, 0, 1, {}, "0" * 12)


def plan(**replicas: int) -> Plan:
    counts: dict[Any, int] = {"manager": 1, "modelpool": 2, "learner": 1, "actor": 1000} | replicas
    roles = tuple(role_plan(role, count) for role, count in counts.items())
    return Plan("pong", UID, "0", "kubernetes", roles, {}, None)


def workload(kind: str, role: str, shard: str = "") -> Object:
    more = {names.SHARD: shard} if shard else {}
    return {
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {
            "name": f"pong-{role}" + (f"-{shard}" if shard else ""), "labels": labelled(role, **more),
            "annotations": {names.UID: UID},
        },
        "spec": {
            "selector": {"matchLabels": {names.INSTANCE: "pong", names.COMPONENT: role, **more}},
            "template": {
                "metadata": {"labels": labelled(role, **more)},
                "spec": {
                    "enableServiceLinks": False,
                    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": role, "image": IMAGE, "args": ["--name=$(POD_NAME)"],
                        "env": [{"name": "HOME", "value": "/tmp"}],
                        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                    "volumes": [] if role == "actor" else [
                        {"name": "volume", "persistentVolumeClaim": {"claimName": "pong-volume"}}
                    ],
                },
            },
        },
    }  # fmt: skip


def objects(shards: int = 1) -> list[Object]:
    owned = {"annotations": {names.UID: UID}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "pong-volume", **owned},
         "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "50Gi"}}}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "pong-learner", **owned},
         "spec": {"selector": {names.INSTANCE: "pong", names.COMPONENT: "learner"}}},
        *(workload("StatefulSet", role) for role in ("manager", "modelpool", "learner")),
        *(workload("Deployment", "actor", str(shard)) for shard in range(shards)),
    ]  # fmt: skip


def documents(things: list[Object]) -> list[Document]:
    return [Document(f"{each['kind']}-{each['metadata']['name']}.yaml".lower(), json.dumps(each)) for each in things]


def node(name: str, cpu: str = "64", images: dict[str, int] | None = None) -> Object:
    held = [{"names": [image], "sizeBytes": size} for image, size in (images or {}).items()]
    return {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "memory": "256Gi"}, "images": held}}


def room(*more: Object) -> Reads:
    """A cluster with three nodes that hold the image."""
    api = cluster()
    api.answers[NODES] = {"items": [node(f"n{number}", images={IMAGE: 400_000_000}) for number in range(3)]}
    api.answers[f"{NAMESPACE}/limitranges"] = {"items": []}
    api.objects += more
    return api


def checks(api: Reads, things: list[Object] | None = None, **replicas: int) -> dict[str, Check]:
    given = objects(max(1, replicas.get("actor", 0) // 1000)) if things is None else things
    found = findings.checks(api, plan(**replicas), documents(given))
    return {each.name: each for each in sorted(found, key=lambda each: each.verdict != "ok")}


def container(thing: Object) -> Object:
    found: Object = thing["spec"]["template"]["spec"]["containers"][0]
    return found


def patched(role: str, change: Patch) -> list[Object]:
    things = objects()
    for thing in things:
        if thing["metadata"].get("labels", {}).get(names.COMPONENT) == role:
            change(thing)
    return things


def quota(**hard: str) -> Object:
    amounts = {name.replace("_", "."): value for name, value in hard.items()}
    used = dict.fromkeys(amounts, "0")
    status = {"hard": amounts, "used": used}
    return {"kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {}, "status": status}


def test_a_small_run_passes_with_nothing_to_say() -> None:
    found = checks(room(), actor=10)

    assert {each.verdict for each in found.values()} == {"ok"}
    assert set(found) == {
        "environment", "services", "objects", "pods", "creation", "quota", "storage", "volume", "model traffic",
        "images", "nodes", "pod security",
    }  # fmt: skip


def test_ten_thousand_pods_are_told_how_long_they_take() -> None:
    found = checks(room(), actor=10_000)["creation"]

    assert found.verdict == "warning"
    assert found.text == (
        "10,004 pods take at least 501 s at the controllers' default of 20/s (10,004 / 20), and 201 s at the "
        "scheduler's of 50/s"
    )


def test_pods_that_exist_are_not_created_again() -> None:
    live = []
    for each in objects():
        if each["kind"] in ("Deployment", "StatefulSet"):
            count = {"modelpool": 2, "actor": 1000}.get(each["metadata"]["labels"][names.COMPONENT], 1)
            live.append({**each, "status": {"replicas": count}})

    assert checks(room(*live), actor=1000)["creation"].text == "all pods exist"


def test_a_variable_larger_than_the_kernel_takes_is_a_problem() -> None:
    peers = {"name": "PEERS", "value": "x" * 140_000}
    found = checks(room(), patched("actor", lambda thing: container(thing)["env"].append(peers)))["environment"]

    assert found.verdict == "problem"
    assert "PEERS of Deployment pong-actor-0 has 140,007 bytes" in found.text
    assert "131,072" in found.text


def test_many_variables_together_are_a_problem() -> None:
    many = [{"name": f"V{number:03d}", "value": "x" * 100_000} for number in range(25)]
    found = checks(room(), patched("actor", lambda thing: container(thing)["env"].extend(many)))["environment"]

    assert found.verdict == "problem"
    assert "those of Deployment pong-actor-0 together 2,500," in found.text


def test_a_variable_from_a_config_map_of_the_run_counts_with_its_value() -> None:
    source = {"valueFrom": {"configMapKeyRef": {"name": "pong-live", "key": "workloads"}}, "name": "RLCTL_WORKLOADS"}
    things = patched("manager", lambda thing: container(thing)["env"].append(source))
    metadata = {"name": "pong-live", "annotations": {names.UID: UID}}
    things.append({"kind": "ConfigMap", "metadata": metadata, "data": {"workloads": "w" * 200_000}})

    assert checks(room(), things)["environment"].verdict == "problem"


def test_variables_for_every_service_of_the_namespace_are_counted_unless_switched_off() -> None:
    services = [{"kind": "Service", "metadata": {"name": f"s{number}"}} for number in range(5_000)]
    things = patched("actor", lambda thing: thing["spec"]["template"]["spec"].pop("enableServiceLinks"))
    found = checks(room(*services), things)["environment"]

    assert found.verdict == "problem"
    assert "together 2,100,0" in found.text


def test_a_service_over_all_actors_is_a_warning() -> None:
    things = objects()
    things[1]["spec"]["selector"] = {names.INSTANCE: "pong", names.COMPONENT: "actor"}

    found = checks(room(), things, actor=1000)["services"]

    assert found.verdict == "warning"
    assert "largest: pong-learner with 1,000 endpoints of 250" in found.text


def test_a_config_map_beyond_a_mebibyte_is_a_problem() -> None:
    metadata = {"name": "pong-big", "annotations": {names.UID: UID}}
    big = {"kind": "ConfigMap", "metadata": metadata, "data": {"run.json": "é" * 600_000}}

    found = checks(room(), [*objects(), big])["objects"]

    assert found.verdict == "problem"
    assert "ConfigMap pong-big: 1,200,000 of 1,048,576 bytes of data" in found.text


def test_more_pods_than_a_namespace_is_tested_with_is_a_warning() -> None:
    others = [{"kind": "Pod", "metadata": {"name": f"p{number}"}} for number in range(20)]

    found = checks(room(*others), actor=4000)["pods"]

    assert found.verdict == "warning"
    assert found.text.startswith("4,004 pods of this run + 20 others = 4,024 in namespace team-a")


def test_a_quota_smaller_than_the_run_is_a_problem_with_the_sum() -> None:
    found = checks(room(quota(pods="500", requests_cpu="2k")), actor=1000)["quota"]

    assert found.verdict == "problem"
    assert found.text == "quota team is smaller than the run: pods: the run needs 1,004 of 500"


def test_a_quota_that_others_use_is_a_warning_with_the_sum() -> None:
    shared = quota(requests_memory="1100Gi")
    shared["status"]["used"]["requests.memory"] = "200Gi"

    found = checks(room(shared), actor=1000)["quota"]

    assert found.verdict == "warning"
    assert "requests.memory: 200Gi used + 1004Gi more > 1.1Ti" in found.text


def test_what_the_run_uses_already_is_not_asked_for_twice() -> None:
    live = [{**each, "status": {"replicas": 1000}} for each in objects() if each["kind"] == "Deployment"]
    tight = quota(pods="1010")
    tight["status"]["used"]["pods"] = "1000"

    assert checks(room(tight, *live), actor=1000)["quota"].verdict == "ok"


def test_a_quota_that_demands_a_limit_that_no_pod_states_is_a_problem() -> None:
    found = checks(room(quota(limits_cpu="5k")), actor=10)["quota"]

    assert found.verdict == "problem"
    assert "demands limits.cpu of every pod" in found.text


def test_a_limit_range_may_state_it_instead() -> None:
    api = room(quota(limits_cpu="5k"))
    limits = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    api.answers[f"{NAMESPACE}/limitranges"] = {"items": [{"spec": limits}]}

    assert checks(api, actor=10)["quota"].verdict == "ok"


@pytest.mark.parametrize(
    ("classes", "told", "text"),
    [
        ([], "problem", "there is no default storage class; there are: none"),
        ([storage_class("gp3", "ebs.csi.aws.com", default=True)], "problem",
         "storage class gp3 (EBS) does not share a volume between nodes"),
        ([storage_class("efs", "efs.csi.aws.com", default=True)], "ok",
         "claim pong-volume: 50Gi of class efs (EFS), which shares between nodes"),
    ],
)  # fmt: skip
def test_the_class_of_the_volume_must_share(classes: list[Object], told: str, text: str) -> None:
    api = room()
    api.answers[CLASSES] = {"items": classes}

    found = checks(api, actor=10)["storage"]

    assert (found.verdict, found.text) == (told, text)


def test_an_existing_claim_must_share_too() -> None:
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "team"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    things = [each for each in objects() if each["kind"] != "PersistentVolumeClaim"]
    text = json.dumps(things).replace("pong-volume", "team")

    found = checks(room(claim), json.loads(text), actor=10)["storage"]

    assert (found.verdict, found.text) == (
        "problem",
        "claim team is ReadWriteOnce: it cannot be mounted on several nodes",
    )


def test_a_claim_that_is_named_and_missing_is_a_problem() -> None:
    things = [each for each in objects() if each["kind"] != "PersistentVolumeClaim"]

    assert checks(room(), things, actor=10)["storage"].text == (
        "there is no PersistentVolumeClaim pong-volume in namespace team-a"
    )


def test_reading_a_model_from_the_volume_is_reckoned() -> None:
    found = checks(room(), actor=10)["volume"]

    assert found.text == "4 pods mount the volume: each 10 MB of model takes 0.1 s to read (4 x 10 MB / 300 MiB/s)"


@pytest.mark.parametrize(
    ("spec", "bandwidth"),
    [({"storageClassName": "efs"}, "500 MiB/s"), ({"storageClassName": ""}, "100 MiB/s, assumed")],
)
def test_a_claim_of_the_users_is_reckoned_by_its_own_class(spec: dict[str, str], bandwidth: str) -> None:
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "team"}, "spec": spec}
    things = [each for each in objects() if each["kind"] != "PersistentVolumeClaim"]
    api = room(claim)
    api.answers[CLASSES] = {"items": [
        storage_class("cfs", "com.tencent.cloud.csi.cfs", default=True), storage_class("efs", "efs.csi.aws.com"),
    ]}  # fmt: skip

    found = checks(api, json.loads(json.dumps(things).replace("pong-volume", "team")), actor=10)["volume"]

    assert found.text.endswith(f"(4 x 10 MB / {bandwidth})")


def test_actors_that_mount_the_volume_by_a_patch_are_reckoned_and_warned_of() -> None:
    volume = {"name": "volume", "persistentVolumeClaim": {"claimName": "pong-volume"}}
    things = objects(10)
    for each in things:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["volumes"].append(volume)

    found = checks(room(), things, actor=10_000)["volume"]

    assert found.verdict == "warning"
    assert "each 10 MB of model takes 318.0 s to read" in found.text


def test_weights_that_take_long_to_reach_all_actors_are_a_warning_with_a_way_out() -> None:
    found = checks(room(), actor=10_000)["model traffic"]

    assert found.verdict == "warning"
    assert found.text == (
        "each 10 MB of weights takes 100.0 s to reach all actors (10,000 x 10 MB / (1 of 2 model pools x 1,000 MB/s))"
    )
    assert "roles.modelpool.replicas" in found.next
    assert "publish_every_updates" in found.next


def test_every_modelpool_but_the_first_serves_actors() -> None:
    found = checks(room(), actor=10_000, modelpool=9)["model traffic"]

    assert found.verdict == "ok"
    assert found.text == (
        "each 10 MB of weights takes 12.5 s to reach all actors (10,000 x 10 MB / (8 of 9 model pools x 1,000 MB/s))"
    )


def test_a_pod_larger_than_every_node_is_a_warning() -> None:
    api = room()
    things = patched("learner", lambda thing: container(thing)["resources"]["requests"].update(cpu="96"))

    found = checks(api, things, actor=10)["nodes"]

    assert found.verdict == "warning"
    assert "learner asks for cpu 96, memory 1Gi" in found.text


def test_a_patch_that_the_namespace_forbids_is_a_problem() -> None:
    things = patched("actor", lambda thing: thing["spec"]["template"]["spec"].update(hostNetwork=True))

    found = checks(room(), things, actor=10)["pod security"]

    assert (found.verdict, found.text) == (
        "problem",
        "namespace team-a enforces restricted, and would refuse actor: hostNetwork",
    )


@pytest.mark.parametrize(
    ("level", "verdict", "text"),
    [
        ("baseline", "problem",
         "namespace team-a enforces baseline, and would refuse actor: hostIPC; actor: volume roms of kind hostPath;"
         " actor: container actor adds the capability SYS_ADMIN"),
        ("privileged", "ok", "namespace team-a enforces privileged"),
    ],
)  # fmt: skip
def test_what_a_level_below_restricted_admits_is_no_problem(level: str, verdict: str, text: str) -> None:
    def change(thing: Object) -> None:
        thing["spec"]["template"]["spec"] |= {"hostIPC": True, "securityContext": {"runAsNonRoot": False}}
        thing["spec"]["template"]["spec"]["volumes"] = [{"name": "roms", "hostPath": {"path": "/roms"}}]
        added = {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN", "CHOWN"]}}
        thing["spec"]["template"]["spec"]["containers"][0]["securityContext"] |= added

    api = room()
    api.answers[NAMESPACE] = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}

    found = checks(api, patched("actor", change), actor=10)["pod security"]

    assert (found.verdict, found.text) == (verdict, text)


def test_a_queue_without_kueue_is_a_problem() -> None:
    api = room()
    api.answers["/apis"] = {"groups": [{"name": "apps"}]}
    label = {"kueue.x-k8s.io/queue-name": "gpu"}
    things = patched("learner", lambda thing: thing["metadata"]["labels"].update(label))

    found = checks(api, things, actor=10)["gang"]

    assert found.verdict == "problem"
    assert found.text.startswith("Kueue is not installed: queue gpu does not exist")


def test_what_may_not_be_read_is_not_checked_and_stops_nobody() -> None:
    api = room()
    no = ApiError("no", status=403)
    api.answers = {CLASSES: no, NAMESPACE: no, NODES: no, "/apis": no}
    api.refused = {"ResourceQuota", "Pod"}

    found = findings.checks(api, plan(), documents(objects()))

    assert {each.name for each in found if each.verdict == "not checked"} == {
        "quota", "storage", "nodes", "pods", "pod security", "images",
    }  # fmt: skip
